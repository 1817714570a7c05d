from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsgen.doctor import versions
from dsgen.doctor.check import State, Subject
from dsgen.doctor.probe import Captured, Machine
from dsgen.doctor.versions import check_packages, check_python, torch_build

from .conftest import PACKAGES, by_name


def test_packages(capture: Callable[..., Captured], subject: Callable[..., Subject]) -> None:
    def judged(**changes: str | None) -> dict[str, State]:
        packages = {name: version for name, version in {**PACKAGES, **changes}.items() if version is not None}
        checks = by_name(check_packages(subject(capture(packages=packages))))
        return {name.removeprefix("packages."): check.state for name, check in checks.items()}

    good = dict.fromkeys(("torch", "deepspeed", "transformers", "torch_npu"), State.OK)
    assert judged() == good
    assert judged(transformers="5.24.3") == good
    assert judged(transformers="4.57.0") == good | {"transformers": State.WARNING}
    assert judged(deepspeed=None) == good | {"deepspeed": State.ERROR}
    assert judged(torch="2.12.0") == good | {"torch": State.WARNING, "torch_npu": State.ERROR}
    assert judged(torch="2.12.0", torch_npu="2.12.0.post1") == good | {"torch": State.WARNING}
    assert judged(torch_npu="nightly") == good | {"torch_npu": State.WARNING}
    assert judged(torch_npu=None) == good | {"torch_npu": State.ERROR}


def test_names_of_packages_are_written_in_several_ways(
    capture: Callable[..., Captured], subject: Callable[..., Subject]
) -> None:
    probe = capture({"packages.txt": "Torch==2.13.0+cpu\ntorch-npu==2.13.0\n-e git+ssh://x\n"}, packages=None)
    assert probe.version("torch_npu") == "2.13.0"
    assert probe.version("torch") == "2.13.0"


def test_without_a_recipe_nothing_has_to_be_installed(capture: Callable[..., Captured]) -> None:
    checks = by_name(check_packages(Subject(probe=capture(packages={}))))
    assert {check.state for check in checks.values()} == {State.WARNING}


def test_nothing_captured(capture: Callable[..., Captured]) -> None:
    (check,) = check_packages(Subject(probe=capture(packages=None)))
    assert check.state is State.SKIPPED


def test_a_cpu_torch_for_cuda(
    machine: Callable[..., Machine], subject: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "torch_build", lambda: "cpu")
    monkeypatch.setattr(Machine, "version", lambda self, package: PACKAGES.get(package))
    cuda = {"device": "cuda-a100-80g", "per_node": 8}
    checks = by_name(check_packages(subject(machine(), hardware=cuda)))
    assert (checks["packages.torch"].state, "CPU build" in checks["packages.torch"].found) == (State.ERROR, True)
    assert by_name(check_packages(subject(machine())))["packages.torch"].state is State.OK


def test_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    (good,) = check_python(Subject(probe=Machine()))
    assert (good.state, sys.executable in good.found) == (State.OK, True)
    monkeypatch.setattr(versions, "_NEWEST", (3, 9))
    (new,) = check_python(Subject(probe=Machine()))
    assert new.state is State.WARNING


def test_a_cuda_torch_beside_torch_npu(
    machine: Callable[..., Machine], plan: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("torch", "2.13.0"), ("torch_npu", "2.13.0")):
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch" / "version.py").write_text("cuda: Optional[str] = '13.0'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    importlib.invalidate_caches()
    assert torch_build() == "CUDA 13.0"
    checks = by_name(check_packages(Subject(probe=machine(), plan=plan())))  # type: ignore[arg-type]
    assert checks["packages.torch_npu"].state is State.ERROR
    assert "a build for CUDA 13.0" in checks["packages.torch_npu"].found
