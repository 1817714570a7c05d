from __future__ import annotations

from typing import Any

import pytest

from dsgen.catalog.deepspeed_keys import load_keys
from dsgen.rules.zero import BF16_OPTIMIZER_KEYS, STAGE_OF_KEY

from .conftest import Case, Findings
from .linted import lint_config, said

CASES = [
    Case(
        code="ZRO001",
        path="zero.stage3_max_live_parameters",
        wrong="zero:\n  stage: 2\n  stage3_max_live_parameters: 1000 # here",
        right="zero:\n  stage: 3\n  stage3_max_live_parameters: 1000",
    ),
    Case(
        code="ZRO001",
        path="zero.max_live_parameters",
        wrong="zero: {stage: 2, max_live_parameters: 1000} # here",
        right="zero: {stage: 3, max_live_parameters: 1000}",
    ),
    Case(
        code="ZRO001",
        path="zero.overlap_comm",
        wrong="zero: {stage: 0, overlap_comm: true} # here",
        right="zero: {stage: 1, overlap_comm: true}",
    ),
    Case(
        code="ZRO001",
        path="deepspeed.zero_optimization.round_robin_gradients",
        wrong="zero: {stage: 3}\ndeepspeed: {zero_optimization: {round_robin_gradients: true}} # here",
        right="zero: {stage: 2}\ndeepspeed: {zero_optimization: {round_robin_gradients: true}}",
    ),
    Case(
        code="ZRO001",
        path="zero.overlap_comm",
        wrong="precision: {type: bf16, accumulate: fp32}\nzero: {stage: 1, overlap_comm: true} # here",
        right="precision: {type: bf16, accumulate: fp32}\nzero: {stage: 1, overlap_comm: true, "
        "offload: {optimizer: cpu}}",
    ),
    Case(
        code="ZRO002",
        path="zero.reduce_bucket_size",
        wrong="adapter: {rank: 8}\nzero: {stage: 2, reduce_bucket_size: 19988481} # here",
        right="adapter: {rank: 8}\nzero: {stage: 2, reduce_bucket_size: 19988480}",
    ),
    Case(
        code="ZRO003",
        path="zero.zero_hpz_partition_size",
        wrong="zero: {stage: 3, zero_hpz_partition_size: 3} # here",
        right="zero: {stage: 3, zero_hpz_partition_size: 4}",
    ),
    Case(
        code="ZRO003",
        path="zero.zero_hpz_partition_size",
        wrong="zero: {stage: 3, zero_hpz_partition_size: 0} # here",
        right="zero: {stage: 3, zero_hpz_partition_size: 1}",
    ),
    Case(
        code="ZRO004",
        path="zero.compute_grad_norm",
        wrong="zero: {stage: 2, compute_grad_norm: false} # here",
        right="gradient_clipping: 0\nzero: {stage: 2, compute_grad_norm: false}",
    ),
    Case(
        code="ZRO004",
        path="zero.compute_grad_norm",
        wrong="gradient_clipping: 0\nzero: {stage: 2, compute_grad_norm: false, offload: {optimizer: cpu}} # here",
        right="gradient_clipping: 0\nzero: {stage: 2, compute_grad_norm: true, offload: {optimizer: cpu}}",
    ),
    Case(
        code="ZRO005",
        path="zero.allgather_bucket_size",
        wrong="zero: {stage: 2, allgather_bucket_size: 1001} # here",
        right="zero: {stage: 2, allgather_bucket_size: 1002}",
    ),
    Case(
        code="ZRO005",
        path="zero.legacy_stage1",
        wrong="zero: {stage: 1, legacy_stage1: true} # here",
        right="zero: {stage: 1, legacy_stage1: false}",
    ),
    Case(
        code="ZRO005",
        path="deepspeed.prescale_gradients",
        wrong="zero: {stage: 2}\ndeepspeed: {prescale_gradients: true} # here",
        right="zero: {stage: 1}\ndeepspeed: {prescale_gradients: true}",
    ),
    Case(
        code="ZRO005",
        path="deepspeed.gradient_predivide_factor",
        wrong="zero: {stage: 3}\ndeepspeed: {gradient_predivide_factor: 8.0} # here",
        right="zero: {stage: 3, reduce_scatter: false}\ndeepspeed: {gradient_predivide_factor: 8.0}",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)


def test_a_key_that_nothing_reads(findings: Findings) -> None:
    (found,) = findings("zero: {stage: 2, allgather_partitions: true}")
    assert (found.code, found.message) == ("ZRO001", "allgather_partitions does nothing in DeepSpeed 0.19.8")


def test_the_table_names_real_keys() -> None:
    keys = load_keys()
    for key in STAGE_OF_KEY:
        assert keys.canonical(f"zero_optimization.{key}") == f"zero_optimization.{key}"
        assert keys.get(f"zero_optimization.{key}") is not None
    assert set(BF16_OPTIMIZER_KEYS) <= set(STAGE_OF_KEY)
    untold = {key.name for key in keys.children("zero_optimization") if not key.deprecated} - set(STAGE_OF_KEY)
    assert untold == {"stage", "offload_optimizer", "offload_param", "legacy_stage1", "zenflow"}


def zero(stage: int, **keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **keys}}


def zenflow(stage: int = 2, **keys: Any) -> dict[str, Any]:
    return zero(stage, offload_optimizer={"device": "cpu"}, zenflow=keys)


def at(key: str) -> str:
    return f"zero_optimization.{key}"


SUM = {"gradient_allreduce_op": "sum"}

CONFIGS: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, str, str]]]] = [
    (zero(2, sub_group_size=1000), {}, [("ZRO001", "warning", at("sub_group_size"))]),
    (zero(2, param_persistence_threshold=10), {}, [("ZRO001", "warning", at("param_persistence_threshold"))]),
    (zero(2, allgather_partitions=True), {}, [("ZRO001", "info", at("allgather_partitions"))]),
    (zero(2, allgather_partitions=False), {}, [("ZRO001", "warning", at("allgather_partitions"))]),
    (zero(3, compute_grad_norm=False), {}, [("ZRO001", "error", at("compute_grad_norm"))]),
    (zero(3, compute_grad_norm=True), {}, [("ZRO001", "warning", at("compute_grad_norm"))]),
    (zero(2, reduce_bucket_size=10**11), {"model": "llama-2-7b"}, [("ZRO002", "warning", at("reduce_bucket_size"))]),
    (zero(3, zero_hpz_partition_size=3), {"world_size": 8}, [("ZRO003", "error", at("zero_hpz_partition_size"))]),
    (zero(2, compute_grad_norm=False), {}, [("ZRO004", "error", at("compute_grad_norm"))]),
    (zero(2) | {"gradient_predivide_factor": 2.0}, {}, [("ZRO005", "error", "gradient_predivide_factor")]),
    (zero(2) | {"gradient_predivide_factor": 2.0} | SUM, {}, []),
    ({"zero_optimization": True}, {}, [("ZRO006", "warning", "zero_optimization")]),
    (zero(3, sub_group_size=0), {}, [("ZRO007", "warning", at("sub_group_size"))]),
    (zero(3) | SUM, {}, [("ZRO008", "error", "gradient_allreduce_op")]),
    (zero(2) | SUM, {}, []),
    (SUM | {"compile": {"deepcompile": True}}, {}, [("ZRO008", "error", "gradient_allreduce_op")]),
    (zenflow(topk_ratio=0.1), {}, []),
    (zero(2, zenflow={"topk_ratio": 0.1}), {}, [("ZRO009", "error", at("zenflow"))]),
    (zero(0, zenflow={"topk_ratio": 0.1}), {}, [("ZRO009", "error", at("zenflow"))]),
    (zenflow(select_interval=2), {}, [("ZRO009", "error", at("zenflow.select_interval"))]),
    (zenflow(select_strategy="step"), {}, [("ZRO009", "error", at("zenflow.select_strategy"))]),
    (
        zenflow(select_strategy="step", select_interval=2, update_interval=4),
        {},
        [("ZRO009", "error", at("zenflow.select_interval"))],
    ),
    (zenflow(select_strategy="step", select_interval=4, update_interval=2), {}, []),
    (zenflow(offload=True), {}, [("ZRO009", "error", at("zenflow.offload"))]),
    (zenflow(3, offload=True), {}, []),
    (zero(3, zenflow={"topk_ratio": 0.1}), {}, []),
    (zero(3, zero_quantized_gradients=True), {}, [("ZRO010", "warning", at("zero_quantized_gradients"))]),
    (zero(3, zero_quantized_gradients=True), {"device": "cpu"}, [("ZRO010", "error", at("zero_quantized_gradients"))]),
    (zero(3, zero_quantized_gradients=False), {"device": "cpu"}, []),
    (zero(2, cpu_offload=False, offload_optimizer={"device": "cpu"}), {}, [("ZRO011", "error", at("cpu_offload"))]),
    (zero(2, cpu_offload_use_pin_memory=True, offload_optimizer={"device": "cpu"}), {}, []),
    (zero(2, cpu_offload=True), {}, []),
]


@pytest.mark.parametrize(("changes", "job", "expected"), CONFIGS)
def test_in_a_ds_config(changes: dict[str, Any], job: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    assert said(lint_config(changes, "ZRO", **job)) == expected


@pytest.mark.parametrize("key", ["gather_16bit_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"])
def test_split_weights_are_gathered_at_any_stage(key: str) -> None:
    config = {"zero_optimization": {"stage": 1, key: True}}
    (finding,) = lint_config(config | {"tensor_parallel": {"autotp_size": 4}}, "ZRO001")
    assert (finding.severity.value, finding.help) == ("info", "keep it where transformers or accelerate trains")
    (finding,) = lint_config(config, "ZRO001")
    assert (finding.severity.value, finding.help) == ("warning", "remove it, or take stage 3")
