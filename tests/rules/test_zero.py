from __future__ import annotations

import pytest

from dsgen.catalog.deepspeed_keys import load_keys
from dsgen.rules.zero import BF16_OPTIMIZER_KEYS, STAGE_OF_KEY

from .conftest import Case, Findings

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
