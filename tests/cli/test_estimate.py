"""`dsgen estimate` as a program: exit codes, what it prints, and what it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsgen.cli.main import main_code

from ..conftest import RECIPES

Write = Callable[..., Path]
TOO_LARGE: dict[str, Any] = {"model": "llama-2-70b", "zero": {"stage": 2}}


def test_json_of_a_job_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["estimate", str(RECIPES / "7b-fp16-accum4.yaml"), "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] in ("fits", "tight")
    device = said["device"]
    assert device["allocated_peak_bytes"] < device["reserved_peak_bytes"] < device["total_peak_bytes"]
    assert device["total_peak_bytes"] < device["capacity_bytes"]
    by_name = {phase["name"]: phase for phase in device["phases"]}
    assert list(by_name)[:6] == ["load", "initialize", "forward", "loss", "backward", "step"]
    assert by_name[device["peak_phase"]]["allocated_bytes"] == device["allocated_peak_bytes"]
    for phase in device["phases"]:
        assert sum(phase["parts"].values()) == phase["allocated_bytes"]
    assert said["host"]["peak_bytes"] == sum(said["host"]["parts"].values())
    assert said["advice"] == []


def test_a_job_that_does_not_fit_ends_with_1(write_recipe: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["estimate", str(write_recipe(**TOO_LARGE))]) == 1
    said = capsys.readouterr().out
    assert "does not fit" in said.splitlines()[1]
    assert "!" in said


def test_text_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for path in sorted(RECIPES.glob("*.yaml")):
        main_code(["estimate", str(path)])
        for line in capsys.readouterr().out.splitlines()[2:]:
            assert len(line) <= 80, line


def test_set_changes_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = []
    for micro in (1, 4):
        arguments = ["estimate", str(RECIPES / "13b-zero2.yaml"), "--format", "json", "--set", f"batch.micro={micro}"]
        main_code(arguments)
        phases = json.loads(capsys.readouterr().out)["device"]["phases"]
        sizes.append({phase["name"]: phase["parts"] for phase in phases}["loss"]["logits and loss"])
    assert sizes[1] == 4 * sizes[0]


def test_a_bad_recipe_is_told_like_everywhere(write_recipe: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["estimate", str(write_recipe(zero={"stage": 7}))]) == 1
    assert "zero.stage" in capsys.readouterr().err


def test_torch_is_not_loaded() -> None:
    program = (
        "import sys; from dsgen.cli.main import main_code;"
        f"main_code(['estimate', {str(RECIPES / '13b-zero2.yaml')!r}]);"
        "sys.exit(bool({'torch', 'deepspeed', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
