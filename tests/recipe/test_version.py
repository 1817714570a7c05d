"""Rendering for other releases of DeepSpeed than the newest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsgen.catalog.deepspeed_keys import DEFAULT_VERSION, known_versions, load_keys
from dsgen.cli.main import main_code
from dsgen.dsconfig.job import Job
from dsgen.findings import FindingsError
from dsgen.lint.lint import lint_bytes
from dsgen.lint.options import Options
from dsgen.render.files import Rendered, render_recipe

from ..conftest import RECIPES

Write = Callable[..., Path]
VERSIONS = ("0.14.0", "0.15.4", "0.16.9", "0.17.6", "0.18.9", "0.19.2", "0.19.7")


def config_of(rendered: Rendered) -> Any:
    return json.loads(rendered.files["ds_config.json"])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_recipes_are_sound_for_every_release(recipe: Path, version: str) -> None:
    rendered = render_recipe(recipe, deepspeed=version)
    assert rendered.plan.deepspeed == version
    linted = lint_bytes(rendered.files["ds_config.json"], "c.json", Options(job=Job(deepspeed=version)))
    assert linted is not None
    assert [(f.code, f.path) for f in linted.findings if f.severity.value == "error"] == []


def test_what_a_release_does_not_have_is_left_out() -> None:
    recipe = RECIPES / "13b-zero2.yaml"
    newest, old = config_of(render_recipe(recipe)), config_of(render_recipe(recipe, deepspeed="0.16.9"))
    assert newest["bf16"] == {"enabled": True, "check_grad_overflow": True}
    known = load_keys("0.16.9").get("bf16.check_grad_overflow") is not None
    assert ("check_grad_overflow" in old["bf16"]) is known


def test_defaults_that_differ_are_written_out(write_recipe: Write) -> None:
    path = write_recipe(zero={"stage": 3, "offload": {"optimizer": "cpu"}})
    old = config_of(render_recipe(path, deepspeed="0.19.2"))
    assert load_keys("0.19.2").get("zero_optimization.offload_optimizer.pin_memory").default is False
    assert old["zero_optimization"]["offload_optimizer"]["pin_memory"] is True
    assert old["gradient_clipping"] == 1.0


def test_a_raw_key_that_a_release_does_not_have_is_refused(write_recipe: Write) -> None:
    path = write_recipe(deepspeed={"zero_optimization": {"compute_grad_norm": True}})
    render_recipe(path, deepspeed="0.19.8")
    with pytest.raises(FindingsError, match=r"KEY001 DeepSpeed 0\.16\.9 knows no key 'compute_grad_norm'"):
        render_recipe(path, deepspeed="0.16.9")


def test_every_release_can_be_rendered_for() -> None:
    for version in known_versions():
        config = config_of(render_recipe(RECIPES / "70b-zero3-offload.yaml", deepspeed=version))
        assert config["zero_optimization"]["stage"] == 3


def test_the_lock_remembers_the_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = str(RECIPES / "13b-zero2.yaml"), str(tmp_path / "out")
    assert main_code(["render", recipe, "-o", out, "--deepspeed-version", "0.16"]) == 0
    assert "deepspeed: 0.16.9" in (tmp_path / "out" / "dsgen.lock.yaml").read_text()
    assert main_code(["render", recipe, "-o", out, "--check"]) == 0
    assert main_code(["render", recipe, "-o", out, "--check", "--deepspeed-version", DEFAULT_VERSION]) == 1
    capsys.readouterr()
    assert main_code(["render", recipe, "-o", out, "--deepspeed-version", "0.3"]) == 2
    assert "nothing is known of DeepSpeed 0.3" in capsys.readouterr().err
