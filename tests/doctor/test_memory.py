from __future__ import annotations

from collections.abc import Callable

import pytest

from dsgen.doctor import memory
from dsgen.doctor.check import State, Subject
from dsgen.doctor.memory import check_memory, host_memory, least_host_bytes
from dsgen.doctor.probe import Machine
from dsgen.recipe.plan import Plan

from .conftest import by_name

GIB = 2**30
MEMINFO = f"MemTotal:       {1024 * GIB // 1024} kB\nMemFree:  1 kB\nMemAvailable:   {900 * GIB // 1024} kB\n"
OFFLOAD = {"stage": 3, "offload": {"optimizer": "cpu", "parameters": "cpu"}}


def test_no_limit(machine: Callable[..., Machine]) -> None:
    found = host_memory(machine({"/proc/meminfo": MEMINFO}))
    assert found is not None
    assert (found.total, found.available, found.limit, found.most) == (1024 * GIB, 900 * GIB, None, 1024 * GIB)
    assert host_memory(machine()) is None


def test_control_groups_of_version_2(machine: Callable[..., Machine]) -> None:
    files = {
        "/proc/meminfo": MEMINFO,
        "/proc/self/cgroup": "0::/a/b\n",
        "/sys/fs/cgroup/a/b/memory.max": "max\n",
        "/sys/fs/cgroup/a/memory.max": f"{100 * GIB}\n",
        "/sys/fs/cgroup/a/memory.current": f"{60 * GIB}\n",
        "/sys/fs/cgroup/a/memory.stat": f"anon 1\ninactive_file {20 * GIB}\n",
        "/sys/fs/cgroup/memory.max": f"{200 * GIB}\n",
    }
    found = host_memory(machine(files))
    assert found is not None
    assert (found.limit, found.available, found.most) == (100 * GIB, 60 * GIB, 100 * GIB)
    assert found.limited_by == "/sys/fs/cgroup/a/memory.max"


def test_control_groups_of_version_1(machine: Callable[..., Machine]) -> None:
    groups = "/sys/fs/cgroup/memory"
    files = {
        "/proc/meminfo": MEMINFO,
        "/proc/self/cgroup": "5:cpu:/\n4:hugetlb,memory:/docker/x\n0::/\n",
        # Inside a container the folder of its own group is the top one.
        f"{groups}/memory.limit_in_bytes": f"{64 * GIB}\n",
        f"{groups}/memory.usage_in_bytes": f"{10 * GIB}\n",
        f"{groups}/memory.stat": f"inactive_file 5\ntotal_inactive_file {2 * GIB}\n",
    }
    found = host_memory(machine(files))
    assert found is not None
    assert (found.limit, found.available) == (64 * GIB, 56 * GIB)
    unlimited = host_memory(machine({**files, f"{groups}/memory.limit_in_bytes": "9223372036854771712\n"}))
    assert unlimited is not None
    assert unlimited.limit is None


def test_the_least_that_offloading_keeps(plan: Callable[..., Plan]) -> None:
    parameters = 6_738_415_616
    assert least_host_bytes(plan())[0] == 0
    assert least_host_bytes(plan(zero={"stage": 2, "offload": {"optimizer": "cpu"}}))[0] == 12 * parameters
    two = {"device": "910b3", "per_node": 8, "nodes": 2, "hosts": ["a", "b"]}
    assert least_host_bytes(plan(zero=OFFLOAD, hardware=two))[0] == 7 * parameters
    lora = plan(zero={"stage": 2, "offload": {"optimizer": "cpu"}}, adapter={"rank": 8})
    assert 0 < least_host_bytes(lora)[0] == 12 * lora.trainable_parameters < parameters


def test_memory_against_the_recipe(machine: Callable[..., Machine], subject: Callable[..., Subject]) -> None:
    def judged(available_gib: int, **changes: object) -> tuple[State, str]:
        text = f"MemTotal: {1000 * GIB // 1024} kB\nMemAvailable: {available_gib * GIB // 1024} kB\n"
        check = by_name(check_memory(subject(machine({"/proc/meminfo": text}), **changes)))["memory.host"]
        return check.state, check.found

    # 14 bytes for each of 6.74e9 parameters are 87.9 GiB.
    state, found = judged(87, zero=OFFLOAD)
    assert (state, "offloading keeps 87.9 GiB here at least" in found) == (State.ERROR, True)
    state, found = judged(88, zero=OFFLOAD)
    assert (state, "gradients and buffers not compared" in found) == (State.OK, True)
    state, found = judged(10)
    assert (state, "not compared" in found) == (State.OK, True)
    hardware = {"device": "910b3", "per_node": 8, "host_memory": "2TiB"}
    state, found = judged(900, hardware=hardware)
    assert (state, "hardware.host_memory of the recipe is 2048.0 GiB" in found) == (State.WARNING, True)
    # A server of 910B3 is sold with 1 TiB, of which this recipe says nothing.
    small = f"MemTotal: {400 * GIB // 1024} kB\nMemAvailable: {400 * GIB // 1024} kB\n"
    check = by_name(check_memory(subject(machine({"/proc/meminfo": small}))))["memory.host"]
    assert check.state is State.OK


def test_limits_of_the_user(
    machine: Callable[..., Machine], subject: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvme = {"stage": 3, "offload": {"optimizer": {"device": "nvme", "path": "/nvme"}}}
    many = {"device": "910b3", "per_node": 8, "nodes": 64, "hosts": [f"h{i}" for i in range(64)]}

    def judged(soft: int, **changes: object) -> tuple[State, State]:
        monkeypatch.setattr(memory.resource, "getrlimit", lambda which: (soft, memory.resource.RLIM_INFINITY))
        checks = by_name(check_memory(subject(machine(), **changes)))
        return checks["memory.locked"].state, checks["limits.files"].state

    assert judged(2048) == (State.OK, State.OK)
    assert judged(512) == (State.OK, State.WARNING)
    assert judged(2048, zero=nvme) == (State.WARNING, State.OK)
    assert judged(memory.resource.RLIM_INFINITY, zero=nvme) == (State.OK, State.OK)
    assert judged(2048, hardware=many, batch={"sequence_length": 2048, "micro": 1, "global": 512}) == (
        State.OK,
        State.WARNING,
    )
