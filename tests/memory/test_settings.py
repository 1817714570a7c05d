"""Settings of DeepSpeed's that change what is held: counted from its source, or said to be not counted."""

from __future__ import annotations

import pytest

from dsgen.memory.estimate import estimate
from dsgen.memory.uncounted import uncounted

from .conftest import GIB, Planner

SEVENTY = {
    "model": "llama-2-70b",
    "hardware": {"device": "ascend-910b3-64g", "per_node": 8, "nodes": 8},
    "activation_checkpointing": "full",
    "precision": {"type": "bf16", "accumulate": "bf16"},
}
PARAMETERS = 68_976_648_192


def offloaded(ratio: float) -> dict[str, object]:
    return {**SEVENTY, "zero": {"stage": 3, "offload": {"optimizer": {"device": "cpu", "ratio": ratio}}}}


def test_a_ratio_leaves_states_on_the_device(plan: Planner) -> None:
    """Sub-groups of 1e9 are few here: 64 ranks have one each. With small ones half is half."""
    whole, half = (
        estimate(plan(**{**offloaded(ratio), "zero": {**offloaded(ratio)["zero"], "sub_group_size": 10_000_000}}))  # type: ignore[dict-item]
        for ratio in (1.0, 0.5)
    )
    more = half.phase("all-gather").device.device_bytes - whole.phase("all-gather").device.device_bytes
    # Master weights, two states and an fp32 gradient.
    assert more == pytest.approx(16 * PARAMETERS / 64 / 2, rel=0.02)
    assert half.host.peak_bytes < whole.host.peak_bytes


def test_hpz_keeps_a_second_copy(plan: Planner) -> None:
    plain, second = (
        estimate(plan(**SEVENTY, zero={"stage": 3, "zero_hpz_partition_size": ranks})).phase("all-gather")
        for ranks in (1, 8)
    )
    more = second.device.device["weights"] - plain.device.device["weights"]
    assert more == pytest.approx(2 * PARAMETERS / 8, rel=1e-3)


def test_gradients_may_travel_in_another_type(plan: Planner) -> None:
    usual, wide = (
        estimate(plan(**SEVENTY, zero={"stage": 3, "reduce_bucket_size": 500_000_000}, deepspeed=more)).device
        for more in ({}, {"communication_data_type": "fp32"})
    )
    assert wide.parts["communication buckets"] == 2 * usual.parts["communication buckets"] == 4 * 500_000_000


def test_at_stage_0_one_rank_writes(plan: Planner) -> None:
    job = {
        "model": "llama-2-7b",
        "precision": "fp32",
        "zero": {"stage": 0},
        "hardware": {"device": "ascend-910b3-64g", "per_node": 8},
        "checkpoint": {"every_steps": 10},
    }
    node = estimate(plan(**job)).host
    # 2 GiB of a process each, and one parameter of the vocabulary.
    assert node.peak_bytes / GIB == pytest.approx(16 + 4 * 32000 * 4096 / GIB, abs=0.01)


def test_what_is_not_counted_is_said(plan: Planner) -> None:
    job = {**SEVENTY, "zero": {"stage": 3}}
    assert not any("torch_autocast" in each for each in estimate(plan(**job)).unmeasured)
    said = estimate(plan(**job, deepspeed={"torch_autocast": {"enabled": True}})).unmeasured
    assert any("(torch_autocast.enabled)" in each for each in said), said


def test_what_is_off_is_not_said() -> None:
    on = {"zero_optimization": {"mics_shard_size": 4}, "compile": {"deepcompile": True}}
    off = {"zero_optimization": {"mics_shard_size": -1}, "compile": {"deepcompile": False}}
    assert [text.rpartition(" ")[2] for text in uncounted(on)] == [
        "(zero_optimization.mics_shard_size)",
        "(compile.deepcompile)",
    ]
    assert list(uncounted(off)) == []
