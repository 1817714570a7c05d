from __future__ import annotations

from collections.abc import Callable

import pytest

from dsgen.doctor.check import State, Subject
from dsgen.doctor.mask import check_mask
from dsgen.doctor.probe import Captured, Machine

EIGHT = {"npu-smi-info.txt": "npu-smi-info-a2-910b3-idle.txt"}
NPU = "ASCEND_RT_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("mask", "state", "words"),
    [
        ("0,1", State.OK, "=0,1"),
        ("6,7", State.OK, "=6,7"),
        ("1,0", State.ERROR, "must ascend"),
        ("0,0", State.ERROR, "twice"),
        ("0-1", State.ERROR, "no list of device numbers"),
        ("NPU0,1", State.ERROR, "no list of device numbers"),
        ("", State.ERROR, "hides every device"),
        ("7,8", State.ERROR, "names 8, and the devices here are 0, 1, 2, 3, 4, 5, 6, 7"),
        ("3", State.ERROR, "shows 1 devices, and the recipe needs 2"),
    ],
)
def test_masks_of_npus(
    capture: Callable[..., Captured], subject: Callable[..., Subject], mask: str, state: State, words: str
) -> None:
    probe = capture(EIGHT, environment={NPU: mask})
    (check,) = check_mask(subject(probe, hardware={"device": "910b3", "per_node": 2}))
    assert check.state is state
    assert words in check.found


def test_the_ordered_mask_is_the_remedy(capture: Callable[..., Captured], subject: Callable[..., Subject]) -> None:
    probe = capture(EIGHT, environment={NPU: "5,2"})
    (check,) = check_mask(subject(probe, hardware={"device": "910b3", "per_node": 2}))
    assert check.remedy == f"export {NPU}=2,5"


def test_numbers_are_those_that_programs_use(capture: Callable[..., Captured], subject: Callable[..., Subject]) -> None:
    files = {"npu-smi-info.txt": "npu-smi-info-a3-16dies.txt", "npu-smi-info-m.txt": "npu-smi-info-m-a3.txt"}
    probe = capture(files, environment={NPU: "14,15"})
    (check,) = check_mask(subject(probe, hardware={"device": "910c", "per_node": 2}))
    assert check.state is State.OK


def test_a_job_of_several_nodes_takes_whole_nodes(
    capture: Callable[..., Captured], subject: Callable[..., Subject]
) -> None:
    hardware = {"device": "910b3", "per_node": 8, "nodes": 2, "hosts": ["a", "b"]}
    probe = capture(EIGHT, environment={NPU: "0,1,2,3,4,5,6,7"})
    (check,) = check_mask(subject(probe, hardware=hardware))
    assert (check.state, check.remedy.split(",")[0]) == (State.ERROR, f"unset {NPU}")
    # torchrun is started on every node, which may have a mask of its own.
    (check,) = check_mask(subject(probe, hardware=hardware, launcher="torchrun"))
    assert check.state is State.OK


def test_a_mask_that_something_else_reads(
    capture: Callable[..., Captured], machine: Callable[..., Machine], subject: Callable[..., Subject]
) -> None:
    (check,) = check_mask(subject(capture(EIGHT, environment={"CUDA_VISIBLE_DEVICES": "0"})))
    assert (check.state, NPU in check.remedy) == (State.WARNING, True)
    of_runtime = {"ASCEND_VISIBLE_DEVICES": "0-3"}
    (outside,) = check_mask(subject(machine(environ=of_runtime)))
    assert outside.state is State.WARNING
    (inside,) = check_mask(subject(machine({"/.dockerenv": ""}, environ=of_runtime)))
    assert inside.state is State.OK


def test_without_a_list_of_devices_nothing_is_compared(
    capture: Callable[..., Captured], subject: Callable[..., Subject]
) -> None:
    (check,) = check_mask(subject(capture(environment={NPU: "0,9"}), hardware={"device": "910b3", "per_node": 2}))
    assert (check.state, "not known" in check.found) == (State.OK, True)
    (unknown,) = check_mask(subject(capture(EIGHT, environment=None)))
    assert unknown.state is State.SKIPPED


def test_cuda_takes_names_but_deepspeeds_launcher_does_not(
    capture: Callable[..., Captured], subject: Callable[..., Subject]
) -> None:
    probe = capture(environment={"CUDA_VISIBLE_DEVICES": "GPU-5f,GPU-6f"})
    hardware = {"device": "h200", "per_node": 2}
    (check,) = check_mask(subject(probe, hardware=hardware))
    assert check.state is State.ERROR
    (torchrun,) = check_mask(subject(probe, hardware=hardware, launcher="torchrun"))
    assert torchrun.state is State.OK
    unordered = capture(environment={"CUDA_VISIBLE_DEVICES": "1,0"})
    (check,) = check_mask(subject(unordered, hardware=hardware))
    assert check.state is State.OK
