from __future__ import annotations

from typing import Any

import pytest

from .linted import lint_config, said

NPU = {"device": "ascend-910b3-64g", "model": "llama-2-7b", "world_size": 8}
SMALL = {**NPU, "model": "llama-3.2-1b"}


def zero(stage: int, **keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **keys}}


def codes(changes: dict[str, Any], **job: Any) -> list[str]:
    found = lint_config(changes, "ADV", **job)
    assert {each.severity.value for each in found} <= {"info"}
    return [each.code for each in found]


def message(changes: dict[str, Any], code: str, **job: Any) -> str:
    (finding,) = lint_config(changes, code, **job)
    return f"{finding.message}; {finding.help}"


@pytest.mark.parametrize(
    ("changes", "ranks", "expected"),
    [
        (zero(2), 2, ["ADV001"]),
        (zero(2, overlap_comm=False), 2, ["ADV001"]),
        (zero(3, overlap_comm=False), 2, ["ADV001"]),
        (zero(3), 2, []),
        (zero(2, overlap_comm=True), 2, []),
        (zero(2, overlap_comm="auto"), 2, []),
        (zero(1), 2, []),
        (zero(2), 1, []),
        (zero(2), None, []),
    ],
)
def test_overlap(changes: dict[str, Any], ranks: int | None, expected: list[str]) -> None:
    assert codes(changes, **({"world_size": ranks} if ranks else {})) == expected


def test_the_cost_of_overlap() -> None:
    text = message(zero(2, reduce_bucket_size=1e8), "ADV001", world_size=2)
    assert "a second bucket of 0.19 GiB" in text
    assert "bucket" not in message(zero(3, overlap_comm=False), "ADV001", world_size=2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (zero(2, contiguous_gradients=False), ["ADV002"]),
        (zero(2, contiguous_gradients=True), []),
        (zero(2, contiguous_gradients=False, offload_optimizer={"device": "cpu", "pin_memory": True}), []),
        (zero(0, contiguous_gradients=False), []),
        (zero(2, offload_optimizer={"device": "cpu", "pin_memory": False}), ["ADV005"]),
        (zero(2, offload_param={"device": "cpu", "pin_memory": False}), []),
        (zero(3, offload_param={"device": "cpu", "pin_memory": False}), ["ADV005"]),
        ({"wall_clock_breakdown": True}, ["ADV006"]),
        ({"memory_breakdown": True}, ["ADV006"]),
        ({"flops_profiler": {"enabled": True}}, ["ADV006"]),
        ({"flops_profiler": {"enabled": False}}, []),
        ({"dump_state": True}, ["ADV009"]),
        ({"dump_state": False}, []),
        ({**zero(1), "data_types": {"grad_accum_dtype": "fp32"}}, ["ADV011"]),
        ({**zero(2), "data_types": {"grad_accum_dtype": "fp32"}}, []),
    ],
)
def test_switches(changes: dict[str, Any], expected: list[str]) -> None:
    assert codes(changes) == expected


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        (zero(2), None),
        (zero(2, overlap_comm=True), None),
        (zero(2, overlap_comm=True, reduce_bucket_size=6e8), "2.24 GiB"),
        (zero(3, overlap_comm=True), None),
        (zero(3, reduce_bucket_size=2e9), "3.73 GiB"),
        (zero(2, reduce_bucket_size=1e9), None),
        ({**zero(2, reduce_bucket_size=6e8), "bf16": None}, "2.24 GiB"),
        (zero(2, reduce_bucket_size=10**400), None),
        (zero(2, reduce_bucket_size="1e9"), None),
        (zero(2, reduce_bucket_size=2e9, contiguous_gradients=False), None),
    ],
)
def test_buckets(changes: dict[str, Any], size: str | None) -> None:
    found = lint_config(changes, "ADV007")
    assert [str(size) in each.message for each in found] == ([True] if size else [])


def test_a_stage_that_is_not_needed() -> None:
    # 2 bytes of weights, and 14 bytes over 8 ranks: 3.75 bytes for each of 6,738,415,616 parameters.
    assert "stage 2 would hold 23.53 GiB" in message(zero(3), "ADV003", **NPU)
    assert "ADV003" not in codes(zero(3), **{**NPU, "model": "llama-2-13b"})
    assert "ADV003" not in codes(zero(3), **{**NPU, "world_size": 1})
    assert "ADV003" not in codes(zero(3), model="llama-2-7b", world_size=8)
    assert "ADV003" not in codes({**zero(3), "bf16": None}, **NPU)
    assert "ADV003" not in codes({**zero(3), "tensor_parallel": {"autotp_size": 2}}, **NPU)


def test_offload_that_is_not_needed() -> None:
    pinned = {"device": "cpu", "pin_memory": True}
    both = zero(3, offload_optimizer=pinned, offload_param=pinned)
    found = lint_config(both, "ADV004", **NPU)
    assert {each.path for each in found} == {"zero_optimization.offload_optimizer", "zero_optimization.offload_param"}
    assert "all states take 12.55 GiB" in found[0].message
    assert lint_config(both, "ADV004", **{**NPU, "world_size": 2}) == []
    assert said(lint_config(zero(2, offload_param=pinned), "ADV004", **SMALL)) == []


def test_parts_of_the_optimizers_step() -> None:
    assert "takes 4.71 GiB" in message(zero(3), "ADV010", **NPU)
    assert lint_config(zero(3, sub_group_size=1e8), "ADV010", **NPU) == []
    assert lint_config(zero(3), "ADV010", **SMALL) == []


def test_bf16_where_it_is_there() -> None:
    fp16 = {"bf16": None, "fp16": {"enabled": True}}
    assert codes(fp16, device="ascend-910b3-64g") == ["ADV008"]
    assert codes(fp16, device="ascend-910a-32g") == []
    assert codes(fp16) == codes({}, device="ascend-910b3-64g") == []


def test_the_whole_gradient_in_figures() -> None:
    text = message({**zero(1), "data_types": {"grad_accum_dtype": "fp32"}}, "ADV011", model="llama-2-7b")
    assert "4 bytes per parameter (25.10 GiB)" in text
