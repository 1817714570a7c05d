from __future__ import annotations

from collections.abc import Callable

import pytest

from dsgen.doctor import container, shared_memory
from dsgen.doctor.check import State, Subject
from dsgen.doctor.container import check_container, in_container
from dsgen.doctor.probe import Machine

from .conftest import by_name

NODES = {
    f"/dev/{name}": "" for name in ("davinci_manager", "devmm_svm", "hisi_hdc", *(f"davinci{i}" for i in range(8)))
}
MOUNTS: dict[str, str | None] = {"/usr/local/Ascend/driver": None, "/usr/local/dcmi": None}


@pytest.mark.parametrize(
    ("files", "environ", "found"),
    [
        ({}, {}, None),
        ({"/proc/1/cgroup": "0::/init.scope\n"}, {}, None),
        ({"/.dockerenv": ""}, {}, "/.dockerenv"),
        ({"/run/.containerenv": ""}, {}, "/run/.containerenv"),
        ({"/proc/1/cgroup": "4:memory:/kubepods/pod1\n"}, {}, "kubepods"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "KUBERNETES_SERVICE_HOST"),
    ],
)
def test_what_tells_a_container(
    machine: Callable[..., Machine], files: dict[str, str], environ: dict[str, str], found: str | None
) -> None:
    assert in_container(machine(files, environ=environ)) == found


def test_a_good_container(machine: Callable[..., Machine], subject: Callable[..., Subject]) -> None:
    probe = machine({**NODES, **MOUNTS, "/.dockerenv": ""}, programs={"npu-smi": "exit 0"})
    checks = by_name(check_container(subject(probe)))
    assert checks["container.devices"].found == "8 NPUs (/dev/davinci*) and the manager's devices"
    assert checks["container.driver"].state is State.OK


def test_what_is_missing_in_a_container(machine: Callable[..., Machine], subject: Callable[..., Subject]) -> None:
    checks = by_name(check_container(subject(machine({"/.dockerenv": "", "/dev/davinci0": "", "/dev/hisi_hdc": ""}))))
    devices, driver = checks["container.devices"], checks["container.driver"]
    assert (devices.state, devices.found) == (State.ERROR, "missing: /dev/davinci_manager, /dev/devmm_svm")
    assert devices.remedy == "start the container with --device /dev/davinci_manager --device /dev/devmm_svm"
    assert (driver.state, "-v /usr/local/dcmi:/usr/local/dcmi" in driver.remedy) == (State.ERROR, True)
    bare = by_name(check_container(subject(machine())))
    assert bare["container.driver"].state is State.SKIPPED
    assert "/dev/davinci0 and the others" in bare["container.devices"].found
    assert "--device" not in bare["container.devices"].remedy


def test_too_few_nodes_and_no_rights(
    machine: Callable[..., Machine], subject: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: text for name, text in NODES.items() if name != "/dev/davinci7"}
    check = by_name(check_container(subject(machine({**few, "/.dockerenv": ""}))))["container.devices"]
    assert (check.state, "--device /dev/davinciN" in check.remedy) == (State.ERROR, True)
    probe = machine(NODES)
    monkeypatch.setattr(probe, "may_use", lambda path: path != "/dev/davinci3")
    check = by_name(check_container(subject(probe)))["container.devices"]
    assert (check.state, check.found) == (State.ERROR, "no right to read and write /dev/davinci3")


def test_shared_memory(
    machine: Callable[..., Machine], subject: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(container.shutil.disk_usage("/"))
    cpu = {"hardware": {"device": "cpu", "per_node": 2}, "precision": "fp32"}

    def judged(total: int, free: int, **changes: object) -> tuple[State, str]:
        monkeypatch.setattr(container.shutil, "disk_usage", lambda path: usage(total, 0, free))
        check = by_name(check_container(subject(machine({"/.dockerenv": ""}), **changes)))["container.shared_memory"]
        return check.state, check.remedy

    state, remedy = judged(64 * 2**20, 64 * 2**20)
    assert (state, "--ipc=host" in remedy) == (State.WARNING, True)
    assert judged(64 * 2**20, 64 * 2**20, **cpu)[0] is State.ERROR
    assert judged(2**31, 100 * 10**6, **cpu)[0] is State.ERROR
    assert judged(2**31, 2**30, **cpu)[0] is State.OK


def test_leaks(tmp_path: object, monkeypatch: pytest.MonkeyPatch, machine: Callable[..., Machine]) -> None:
    from pathlib import Path

    buffer = Path(str(tmp_path)) / "deepspeed_allreduce_buffer_0_127.0.0.1_1_0"
    buffer.write_bytes(b"x" * 3 * 2**20)
    monkeypatch.setattr(shared_memory, "leaked_buffers", lambda: [buffer])
    (check,) = shared_memory.check_shared_memory(Subject(probe=machine()))
    assert (check.state, "1 buffers of killed DeepSpeed runs hold 3 MiB" in check.found) == (State.WARNING, True)
    monkeypatch.setattr(shared_memory, "leaked_buffers", lambda: [])
    (check,) = shared_memory.check_shared_memory(Subject(probe=machine()))
    assert check.state is State.OK
