"""Devices of captured and of (fake) live machines, judged for recipes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dsgen.doctor import nvidia_smi
from dsgen.doctor.check import Check, State, Subject
from dsgen.doctor.devices import check_devices
from dsgen.doctor.probe import Captured, Machine

from .conftest import SAMPLES, by_name

Judge = Callable[..., dict[str, Check]]


@pytest.fixture
def judge(capture: Callable[..., Captured], subject: Callable[..., Subject]) -> Judge:
    """The device checks of a captured sample of `npu-smi info`."""

    def run(
        sample: str, *, mask: str | None = None, files: dict[str, str] | None = None, **changes: object
    ) -> dict[str, Check]:
        environment = {} if mask is None else {"ASCEND_RT_VISIBLE_DEVICES": mask}
        probe = capture({"npu-smi-info.txt": sample, **(files or {})}, environment=environment)
        return by_name(check_devices(subject(probe, **changes)))

    return run


def _states(checks: dict[str, Check]) -> dict[str, str]:
    return {name.removeprefix("devices."): check.state.value for name, check in checks.items()}


def _without_npu_7() -> str:
    lines = (SAMPLES / "npu-smi-info-a2-910b3-idle.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if "| 7     910B3" not in line and "3339 / 65536" not in line)


GOOD = {"tool": "ok", "count": "ok", "kind": "ok", "health": "ok", "memory": "ok"}


def test_an_idle_machine_is_good(judge: Judge) -> None:
    checks = judge("npu-smi-info-a2-910b3-idle.txt", files={"npu-smi-info-l.txt": "npu-smi-info-l.txt"})
    assert _states(checks) == GOOD
    assert checks["devices.kind"].found == "910B3: ascend-910b3-64g"
    assert checks["devices.memory"].found.startswith("60.7 GiB or more of each device are free")
    assert "not compared" in checks["devices.memory"].found


def test_a_machine_in_use(judge: Judge, capture: Callable[..., Captured]) -> None:
    checks = judge("npu-smi-info-a2-910b3-training.txt")
    assert _states(checks) == GOOD | {"memory": "error"}
    assert "NPU 0: 57.6 GiB of 64.0 GiB in use by python3.11 (pid 48988, 54.3 GiB)" in checks["devices.memory"].found
    assert "kill 48988 48989" in checks["devices.memory"].remedy
    assert "export" not in checks["devices.memory"].remedy
    unasked = Subject(probe=capture({"npu-smi-info.txt": "npu-smi-info-a2-910b3-training.txt"}))
    assert by_name(check_devices(unasked))["devices.memory"].state is State.WARNING


def test_one_leftover_process_and_a_way_around_it(judge: Judge) -> None:
    sample = "npu-smi-info-910prob-23.0.txt"
    hardware = {"device": "ascend-910prob-32g", "per_node": 4}
    checks = judge(sample, hardware=hardware, precision="fp16")
    assert _states(checks) == GOOD | {"memory": "error"}
    assert "pid 221034" in checks["devices.memory"].found
    assert "export ASCEND_RT_VISIBLE_DEVICES=0,1,3,4" in checks["devices.memory"].remedy
    around = judge(sample, mask="0,1,3,4", hardware=hardware, precision="fp16")
    assert _states(around) == GOOD
    assert "NPU 2 held by others" in around["devices.memory"].found
    few = judge(sample, hardware=hardware | {"per_node": 2}, precision="fp16")
    assert few["devices.memory"].state is State.OK


def test_dies_of_a3_have_numbers_of_their_own(judge: Judge) -> None:
    hardware = {"device": "ascend-910c-64g", "per_node": 8}
    checks = judge(
        "npu-smi-info-a3-16dies.txt", files={"npu-smi-info-m.txt": "npu-smi-info-m-a3.txt"}, hardware=hardware
    )
    assert _states(checks) == GOOD | {"memory": "error"}
    assert checks["devices.count"].found.startswith("16 NPUs")
    assert "NPU 0 chip 1:" in checks["devices.memory"].found
    assert "ASCEND_RT_VISIBLE_DEVICES=2,3,4,5,6,7,8,9" in checks["devices.memory"].remedy
    odd = judge(
        "npu-smi-info-a3-16dies.txt",
        mask="2,3,4",
        hardware=hardware | {"per_node": 3},
        batch={"sequence_length": 2048, "micro": 1, "global": 48},
    )
    assert _states(odd) == GOOD | {"count": "warning"}


def test_too_few_devices(judge: Judge) -> None:
    count = judge(_without_npu_7())["devices.count"]
    assert count.state is State.ERROR
    assert count.found == "7 NPUs, and the recipe needs 8 on each node"
    assert count.remedy.endswith("--set hardware.per_node=7")


def test_another_device_than_the_recipes(judge: Judge) -> None:
    same_size = judge("npu-smi-info-a2-910b4-1-64g.txt")["devices.kind"]
    assert same_size.state is State.WARNING
    assert "ascend-910b4-1-64g" in same_size.remedy
    smaller = judge("npu-smi-info-a2-910b4-32g.txt")["devices.kind"]
    assert smaller.state is State.ERROR
    assert "29.5 GiB usable; the recipe counts on 61.0 GiB" in smaller.found
    no_bf16 = judge("npu-smi-info-910prob-23.0.txt")["devices.kind"]
    assert no_bf16.state is State.ERROR
    assert "no bf16" in no_bf16.found


def test_names_and_sizes_that_disagree(judge: Judge) -> None:
    text = (SAMPLES / "npu-smi-info-a2-910b3-idle.txt").read_text()
    unknown = judge(text.replace("910B3  ", "910X7  "))["devices.kind"]
    assert unknown.state is State.NOT_UNDERSTOOD
    mixed = judge(text.replace("910B3  ", "910B1  ", 1))["devices.kind"]
    assert mixed.state is State.WARNING
    assert "910B1, 910B3" in mixed.found
    small = judge(text.replace("65536", "32768"))["devices.kind"]
    assert small.state is State.WARNING
    assert "NPU 0 shows 32.0 GiB" in small.found


def test_health(judge: Judge) -> None:
    text = (SAMPLES / "npu-smi-info-a2-910b3-idle.txt").read_text()
    for word, state in (("Warning", State.WARNING), ("Alarm  ", State.ERROR), ("UNKNOWN", State.WARNING)):
        health = judge(text.replace("OK     ", word, 1))["devices.health"]
        assert (health.state, health.found) == (state, f"NPU 0: {word.strip()}")
    unused = judge(text.replace("OK     ", "Alarm  ", 1), mask="1,2", hardware={"device": "910b3", "per_node": 2})
    assert unused["devices.health"].state is State.WARNING


def test_a_device_that_dropped_out(judge: Judge) -> None:
    checks = judge(
        _without_npu_7(),
        files={"npu-smi-info-l.txt": "npu-smi-info-l.txt"},
        hardware={"device": "910b3", "per_node": 4},
    )
    assert checks["devices.count"].state is State.ERROR
    assert "shows 7 devices, and npu-smi info -l counts 8" in checks["devices.count"].found


def test_a_process_that_the_table_does_not_list(judge: Judge) -> None:
    text = (SAMPLES / "npu-smi-info-a2-910b3-idle.txt").read_text().replace("3318 / 65536", "58990/ 65536")
    nobody = judge(text)["devices.memory"]
    assert nobody.state is State.ERROR
    assert "not listed" in nobody.found
    named = judge(text, files={"npu-smi-info-t-proc-mem-i-0-c-0.txt": "npu-smi-info-t-proc-mem.txt"})["devices.memory"]
    assert "python3.11 (pid 907864, 54.3 GiB), a process without a name (pid 907990" in named.found


@pytest.mark.parametrize("part", [1, 2, 3])
def test_npu_smi_that_fails(judge: Judge, part: int) -> None:
    text = (SAMPLES / "npu-smi-errors.txt").read_text().split("# ")[part].partition("\n")[2]
    (check,) = judge(text).values()
    assert (check.name, check.state) == ("devices.tool", State.ERROR)


@pytest.mark.parametrize(
    "sample", ["oom-backward-2.13.txt", "hccl-ei0002-notify-timeout.txt", "hccn.conf", "npu-smi-info-m.txt"]
)
def test_other_outputs_are_not_understood(judge: Judge, sample: str) -> None:
    (check,) = judge(sample).values()
    assert (check.name, check.state) == ("devices.tool", State.NOT_UNDERSTOOD)


def test_half_a_table_is_said_to_be_half(judge: Judge) -> None:
    text = (SAMPLES / "npu-smi-info-a2-910b3-idle.txt").read_text()
    cut = text[: text.index("| 0                         | 0000:82")]
    checks = judge(cut + "\n")
    assert checks["devices.tool"].state is State.NOT_UNDERSTOOD
    assert checks["devices.count"].state is State.ERROR
    assert checks["devices.count"].found.startswith("3 NPUs")


def test_a_live_machine(machine: Callable[..., Machine], subject: Callable[..., Subject], tmp_path: Path) -> None:
    sample = (SAMPLES / "npu-smi-info-a2-910b3-training.txt").read_text()
    # Of eight processes one runs here: this test.
    (tmp_path / "table").write_text(sample.replace("| 48990  ", f"| {os.getpid():<7}"))
    program = f'[ "$*" = info ] || exit 3\ncat {tmp_path / "table"}'
    checks = by_name(check_devices(subject(machine(programs={"npu-smi": program}))))
    assert checks["devices.tool"].state is State.OK
    assert f"kill {os.getpid()}, and wait" in checks["devices.memory"].remedy


def test_a_tool_that_hangs_or_is_not_there(machine: Callable[..., Machine], subject: Callable[..., Subject]) -> None:
    hanging = machine(programs={"npu-smi": "echo working; exec sleep 60"})
    output = hanging.run("npu-smi", "info", seconds=0.3)
    assert (output.text, output.problem) == ("working\n", "no answer within 0 s")
    (check,) = check_devices(subject(hanging))
    assert "npu-smi: no answer within" in check.found
    (check,) = check_devices(subject(machine()))
    assert check.found == "npu-smi is not on PATH"


def test_cuda(capture: Callable[..., Captured], subject: Callable[..., Subject]) -> None:
    devices = "0, GPU-a, 143771, 5, 550.1, NVIDIA H200\n1, GPU-b, 143771, 90000, 550.1, NVIDIA H200\n"
    sections = (
        f"# {' '.join(nvidia_smi.DEVICES)}\n{devices}# {' '.join(nvidia_smi.PROCESSES)}\nGPU-b, 42, 89990, python\n"
    )
    probe = capture({"nvidia-smi.txt": sections}, environment={})
    one = by_name(check_devices(subject(probe, hardware={"device": "h200", "per_node": 1})))
    assert _states(one) == GOOD | {"health": "skipped"}
    both = by_name(check_devices(subject(probe, hardware={"device": "h200", "per_node": 2})))
    assert both["devices.memory"].state is State.ERROR
    assert "GPU 1: 87.9 GiB of 140.4 GiB in use by python (pid 42" in both["devices.memory"].found
