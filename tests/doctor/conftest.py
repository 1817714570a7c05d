"""Captured machines, machines made of folders, and plans to judge them for."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dsgen.doctor.check import Check, Subject
from dsgen.doctor.probe import Captured, Machine
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve import resolve

SAMPLES = Path(__file__).parent / "captured"

CANN = {"ASCEND_HOME_PATH": "/usr/local/Ascend/ascend-toolkit/latest", "ASCEND_OPP_PATH": "/usr/local/Ascend/opp"}
PACKAGES = {"torch": "2.13.0", "torch_npu": "2.13.0", "deepspeed": "0.19.8", "transformers": "5.24.0"}


def by_name(checks: Iterable[Check]) -> dict[str, Check]:
    """Checks by their names, which must differ; those that ask for something have a remedy."""
    found: dict[str, Check] = {}
    for check in checks:
        assert check.name not in found
        assert check.found
        assert bool(check.remedy) == (check.state.value in ("warning", "error", "not understood"))
        found[check.name] = check
    return found


@pytest.fixture
def capture(tmp_path: Path) -> Callable[..., Captured]:
    """Makes a folder of captured files: name there -> sample, or text with a line break in it."""

    def make(
        files: Mapping[str, str] | None = None,
        *,
        environment: Mapping[str, str] | None = CANN,
        packages: Mapping[str, str] | None = PACKAGES,
    ) -> Captured:
        folder = tmp_path / "captured"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, sample in (files or {}).items():
            text = sample if "\n" in sample else (SAMPLES / sample).read_text()
            (folder / name).write_text(text)
        if environment is not None:
            (folder / "environment.txt").write_text("".join(f"{k}={v}\n" for k, v in environment.items()))
        if packages is not None:
            (folder / "packages.txt").write_text("".join(f"{k}=={v}\n" for k, v in packages.items()))
        return Captured(folder)

    return make


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Machine]:
    """Makes a machine: path -> content of a file, None for a folder; programs are shell scripts on its PATH."""

    def make(
        files: Mapping[str, str | None] | None = None,
        *,
        programs: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Machine:
        root, commands = tmp_path / "root", tmp_path / "commands"
        for folder in (root, commands):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        for name, content in (files or {}).items():
            path = root / name.lstrip("/")
            if content is None:
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
        for name, script in (programs or {}).items():
            (commands / name).write_text(f"#!/bin/sh\n{script}\n")
            (commands / name).chmod(0o755)
        return Machine(root=root, environ={"PATH": f"{commands}:/usr/bin:/bin", "HOME": "/home/a", **(environ or {})})

    return make


@pytest.fixture
def plan(write_recipe: Callable[..., Path]) -> Callable[..., Plan]:
    """The plan of the tests' base recipe (8 x 910B3, bf16, ZeRO-2) with some fields replaced."""

    def make(**changes: Any) -> Plan:
        return resolve(check_recipe(load_recipe(write_recipe(**changes))))

    return make


@pytest.fixture
def subject(plan: Callable[..., Plan]) -> Callable[..., Subject]:
    """A probe, judged for a plan made of changes to the base recipe."""

    def make(probe: Captured | Machine, *, quick: bool = False, **changes: Any) -> Subject:
        return Subject(probe=probe, plan=plan(**changes), quick=quick)

    return make
