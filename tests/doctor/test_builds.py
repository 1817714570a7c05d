from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsgen.doctor import builds
from dsgen.doctor.builds import check_builds, is_built, missing_tools, operators_of, stale_locks
from dsgen.doctor.check import State, Subject
from dsgen.doctor.probe import Machine
from dsgen.recipe.plan import Plan

from .conftest import by_name

CPU = {"device": "cpu", "per_node": 2}
NVME = {"stage": 3, "offload": {"optimizer": {"device": "nvme", "path": "/nvme"}}}


def _lock(root: Path, name: str, *, old: bool) -> Path:
    lock = root / name / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    if old:
        then = time.time() - 3600
        os.utime(lock, (then, then))
        os.utime(lock.parent, (then, then))
    return lock


def test_a_lock_is_stale_when_nobody_holds_it_and_nothing_changes(tmp_path: Path) -> None:
    killed, held = _lock(tmp_path, "cpu_adam", old=True), _lock(tmp_path, "async_io", old=True)
    fresh = _lock(tmp_path, "fused_adam", old=False)
    with held.open():
        assert stale_locks([killed, held, fresh]) == [killed]
    assert stale_locks([killed, held, fresh, tmp_path / "gone"]) == [held, killed]


def test_stale_locks_are_told(machine: Callable[..., Machine], tmp_path: Path) -> None:
    probe = machine(environ={"TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")})
    (tmp_path / "extensions").mkdir()
    assert by_name(check_builds(Subject(probe=probe)))["builds.locks"].state is State.OK
    lock = _lock(tmp_path / "extensions", "py311_cpu/cpu_adam", old=True)
    check = by_name(check_builds(Subject(probe=probe)))["builds.locks"]
    assert (check.state, f"rm {lock} " in check.remedy) == (State.WARNING, True)


def test_operators_that_are_compiled(plan: Callable[..., Plan]) -> None:
    offload = {"stage": 2, "offload": {"optimizer": "cpu"}}
    assert operators_of(plan()) == ()
    assert operators_of(plan(zero=offload)) == ("cpu_adam",)
    assert operators_of(plan(zero=NVME)) == ("cpu_adam", "async_io")
    assert operators_of(plan(hardware={"device": "h200", "per_node": 8})) == ("fused_adam",)
    fp32 = {"hardware": CPU, "precision": "fp32"}
    assert operators_of(plan(**fp32)) == ("deepspeed_shm_comm", "fused_adam")
    of_torch = {"type": "AdamW", "lr": 1e-5, "torch_adam": True}
    assert operators_of(plan(**fp32, optimizer=of_torch)) == ("deepspeed_shm_comm",)


def test_operators_that_are_built(
    machine: Callable[..., Machine], subject: Callable[..., Subject], tmp_path: Path
) -> None:
    root = tmp_path / "extensions"
    probe = machine(environ={"TORCH_EXTENSIONS_DIR": str(root)})
    judged = subject(probe, zero={"stage": 2, "offload": {"optimizer": "cpu"}})
    assert not is_built("cpu_adam", root)
    before = by_name(check_builds(judged))["builds.operators"].found
    assert before.startswith("cpu_adam will be compiled")
    assert "DS_ACCELERATOR=npu" in before and "CPUAdamBuilder" in before
    (root / "py311_cpu" / "cpu_adam").mkdir(parents=True)
    (root / "py311_cpu" / "cpu_adam" / "cpu_adam.so").touch()
    assert is_built("cpu_adam", root)
    assert by_name(check_builds(judged))["builds.operators"].found.startswith("cpu_adam built in")


def test_every_builder_exists_in_deepspeed() -> None:
    deepspeed = pytest.importorskip("deepspeed.ops.op_builder.builder", reason="deepspeed is not installed")
    folder = Path(deepspeed.__file__).parent
    text = "".join(path.read_text() for path in folder.rglob("*.py"))
    for operator, builder in builds._BUILDERS.items():
        assert f"class {builder}(" in text
        assert f'NAME = "{operator}"' in text


def test_tools(
    machine: Callable[..., Machine], subject: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds.sysconfig, "get_path", lambda name: "/nowhere")
    assert missing_tools(ninja=False)[-1].startswith("Python.h")
    needed = by_name(check_builds(subject(machine(), zero={"stage": 2, "offload": {"optimizer": "cpu"}})))
    assert needed["builds.tools"].state is State.ERROR
    unneeded = by_name(check_builds(subject(machine())))
    with monkeypatch.context() as patch:
        patch.setattr(builds, "missing_tools", lambda *, ninja: ["ninja"] if ninja else [])
        waiting = Subject(probe=machine(), installs=True)
        assert by_name(check_builds(waiting))["builds.tools"].state is State.OK
    assert unneeded["builds.tools"].state is State.WARNING
    assert unneeded["builds.operators"].found == "the job compiles none"


def test_libaio(machine: Callable[..., Machine], subject: Callable[..., Subject]) -> None:
    assert by_name(check_builds(subject(machine())))["builds.libaio"].state is State.SKIPPED
    missing = by_name(check_builds(subject(machine(), zero=NVME)))["builds.libaio"]
    assert (missing.state, "libaio-dev" in missing.remedy) == (State.ERROR, True)
    there = machine({"/usr/include/libaio.h": ""})
    assert by_name(check_builds(subject(there, zero=NVME)))["builds.libaio"].state is State.OK
