"""What doctor says, as findings about the recipe that is to be launched; and nothing heavy imported."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsgen.doctor import builds
from dsgen.doctor.probe import Machine
from dsgen.documents.positions import undotted
from dsgen.findings import Finding, Severity
from dsgen.launch.checks import check_machine
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.resolve import resolve
from tests.launch.conftest import REPOSITORY

Check = Callable[..., dict[str, Finding]]
CPU: dict[str, Any] = {"hardware": {"device": "cpu", "per_node": 2}, "precision": "fp32"}


@pytest.fixture
def check(write_recipe: Callable[..., Path], tmp_path: Path) -> Check:
    """The findings, by code, about the tests' base recipe (8 x 910B3) on a machine without anything."""

    def run(*, packages: bool = True, environ: dict[str, str] | None = None, **changes: Any) -> dict[str, Finding]:
        checked = check_recipe(load_recipe(write_recipe(**changes)))
        probe = Machine(root=tmp_path / "root", environ={"PATH": "/usr/bin:/bin", "HOME": "/home/a", **(environ or {})})
        document = checked.loaded.document
        found = check_machine(
            resolve(checked), document, tmp_path, tmp_path / "runs" / "001", packages=packages, probe=probe
        )
        assert all(each.message and each.help for each in found)
        assert all(each.position == document.at(undotted(each.path)) for each in found)
        return {each.code: each for each in found}

    return run


def test_everything_at_once_at_the_fields_that_decide_it(check: Check) -> None:
    found = check()
    errors = {code: each.path for code, each in found.items() if each.severity is Severity.ERROR}
    assert {
        "cann.environment": "hardware.device",
        "container.devices": "hardware.per_node",
        "devices.tool": "",
        "inputs.data": "data.files",
        "inputs.tokenizer": "tokenizer",
    }.items() <= errors.items()
    lines = [found[code].position.line for code in ("inputs.tokenizer", "inputs.data", "cann.environment")]
    assert lines == sorted(set(lines), reverse=True)
    assert "there is no CANN here" in found["cann.environment"].message


def test_of_several_nodes_this_one_may_be_none(check: Check) -> None:
    several = {"device": "ascend-910b3-64g", "per_node": 8, "nodes": 2, "hosts": ["a", "b"]}
    found = check(hardware=several, environ={"ASCEND_RT_VISIBLE_DEVICES": "0"})
    assert not {code for code in found if code.startswith(("devices", "container"))}
    assert "launch.sh refuses to start" in found["mask"].message


def test_what_is_installed_later_is_not_missed(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "version", lambda self, package: None)
    assert "packages.torch" in check()
    assert not {code for code in check(packages=False) if code.startswith(("packages", "accelerator"))}


def test_the_simulated_npu_is_no_hardware(check: Check) -> None:
    found = check(environ={"DSGEN_SIMULATED_NPU": "1", "ASCEND_HOME_PATH": "/a"}, packages=False)
    themes = {code.split(".")[0] for code in found}
    assert not {"devices", "links", "mask", "container", "ports"} & themes
    assert {code for code in found if code.startswith("cann")} == {"cann.environment"}


def test_what_launch_sh_mends_is_not_said(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "extensions" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    monkeypatch.setattr(builds, "stale_locks", list)
    assert "builds.locks" not in check(environ={"TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}, **CPU)


def test_an_ascend_recipe_is_refused_here_in_seconds_and_without_torch(tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("ASCEND")}
    code = (
        "import sys\n"
        "from dsgen.cli.main import run\n"
        "try:\n"
        f"    run(['launch', {str(REPOSITORY / 'recipes' / 'tiny-npu.yaml')!r}])\n"
        "finally:\n"
        "    heavy = {'torch', 'deepspeed', 'transformers', 'torch_npu', 'numpy'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environ | {"PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert time.monotonic() - begun < 10
    assert done.returncode == 1
    assert "there is no CANN here" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()
