"""Tensor and sequence parallelism can be estimated, and not yet run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsgen.cli.main import main_code

from ..conftest import RECIPES

RECIPE = str(RECIPES / "13b-zero2.yaml")


def estimated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main_code(["estimate", *words, "--format", "json"])
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


@pytest.mark.parametrize("field", ["parallel.sequence", "parallel.tensor"])
def test_a_recipe_is_estimated_that_cannot_be_rendered(
    field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = estimated(capsys, RECIPE)
    shared = estimated(capsys, RECIPE, "--set", f"{field}=2")
    assert shared["device"]["total_peak_bytes"] != whole["device"]["total_peak_bytes"]
    assert main_code(["render", RECIPE, "--set", f"{field}=2", "-o", str(tmp_path / "job")]) == 1
    assert "NYB001" in capsys.readouterr().err


def test_what_has_no_run_and_no_estimate_is_still_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", RECIPE, "--set", "parallel.tensor=2", "--set", "restart.attempts=2"]
    assert main_code(words) == 1
    said = capsys.readouterr().err
    assert "restart" in said
    assert "parallel" not in said


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"tensor_parallel": {"autotp_size": 2}}, "parallel.tensor"),
        ({"sequence_parallel_size": 2, "data_parallel_size": 4}, "parallel.sequence"),
    ],
)
def test_a_config_with_these_keys(
    keys: dict[str, Any], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {
        "bf16": {"enabled": True},
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }
    around = ["--model", "llama-2-7b", "--device", "ascend-910b3-64g", "--world-size", "8", "--sequence-length", "4096"]
    (tmp_path / "plain.json").write_text(json.dumps(plain))
    (tmp_path / "shared.json").write_text(json.dumps({**plain, **keys}))
    by_key = estimated(capsys, "--ds-config", str(tmp_path / "shared.json"), *around)
    by_field = estimated(capsys, "--ds-config", str(tmp_path / "plain.json"), *around, "--set", f"{field}=2")
    assert by_key["device"]["parts"] == by_field["device"]["parts"]


def test_stages_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", RECIPE, "--set", "parallel.sequence=2", "--compare", "stage", "--format", "json"]
    main_code(words)
    assert "NYB001" not in capsys.readouterr().out
