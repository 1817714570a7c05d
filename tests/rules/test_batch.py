from __future__ import annotations

from typing import Any

import pytest

from .conftest import Case, Findings
from .linted import lint_config, said

CASES = [
    Case(
        code="BAT001",
        path="parallel.tensor",
        wrong="parallel: {tensor: 3} # here",
        right="parallel: {tensor: 2, sequence: 4}",
        beside=("NYB001",),
    ),
    Case(
        code="BAT001",
        path="parallel.sequence",
        wrong="parallel: {sequence: 16} # here",
        right="parallel: {sequence: 8}",
        beside=("NYB001",),
    ),
    Case(
        code="BAT002",
        path="batch",
        wrong="batch: {sequence_length: 2048, micro: 1} # here",
        right="batch: {sequence_length: 2048, micro: 1, accumulation: 2}",
    ),
    Case(
        code="BAT003",
        path="batch.global",
        wrong="batch: {sequence_length: 2048, micro: 1, accumulation: 4, global: 64} # here",
        right="batch: {sequence_length: 2048, micro: 1, accumulation: 8, global: 64}",
    ),
    Case(
        code="BAT003",
        path="batch.global",
        wrong="batch: {sequence_length: 2048, micro: 3, global: 64} # here",
        right="batch: {sequence_length: 2048, micro: 4, global: 64}",
    ),
    Case(
        code="BAT003",
        path="batch.global",
        wrong="batch: {sequence_length: 2048, accumulation: 3, global: 64} # here",
        right="batch: {sequence_length: 2048, accumulation: 4, global: 64}",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)


def test_nearest_batches_are_named(findings: Findings) -> None:
    """256 sequences on 7 devices in micro batches of 2."""
    (found,) = findings(
        "hardware: {device: cuda-a100-80g, per_node: 7}\nbatch: {sequence_length: 2048, micro: 2, global: 256}"
    )
    assert found.help == "nearest: 252 (accumulation 18) or 266 (accumulation 19)"
    assert "not a multiple of 14" in found.message
    (found,) = findings("batch: {sequence_length: 2048, accumulation: 2, global: 5}")
    assert found.help == "nearest: 16 (micro 1)"


def test_a_batch_size_of_a_wrong_type_is_not_a_missing_one(findings: Findings) -> None:
    assert [each.code for each in findings("batch: {sequence_length: 2048, micro: 1, global: many}")] == ["REC002"]
    assert [each.code for each in findings("batch: {sequence_length: 2048, micro: 1, globl: 64}")] == ["REC001"]


def test_the_nearest_divisors_are_named(findings: Findings) -> None:
    (found,) = (each for each in findings("parallel: {tensor: 3}") if each.code == "BAT001")
    assert found.help == "make tensor x sequence one of 1, 2, 4, 8"


GLOBAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
TWO, EIGHT = {"world_size": 2}, {"world_size": 8}
TENSOR = {"tensor_parallel": {"autotp_size": 4}}

CONFIGS: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, str, str]]]] = [
    ({"tensor_parallel": {"autotp_size": 3}}, TWO, [("BAT001", "error", "tensor_parallel.autotp_size")]),
    (
        {"sequence_parallel_size": 3, "data_parallel_size": 1},
        TWO,
        [("BAT001", "error", "sequence_parallel_size"), ("BAT006", "error", "data_parallel_size")],
    ),
    ({MICRO: 2, STEPS: 2, GLOBAL: 32}, EIGHT, []),
    ({MICRO: 2, STEPS: 2, GLOBAL: 30}, EIGHT, [("BAT003", "error", GLOBAL)]),
    ({MICRO: None, STEPS: None, GLOBAL: 7}, TWO, [("BAT003", "error", GLOBAL)]),
    ({MICRO: None, STEPS: None, GLOBAL: 1}, TWO, [("BAT003", "error", GLOBAL)]),
    ({MICRO: None, STEPS: None, GLOBAL: 8}, TWO, []),
    ({MICRO: None, STEPS: 8, GLOBAL: 4}, {}, [("BAT003", "error", GLOBAL)]),
    ({MICRO: 3, STEPS: None, GLOBAL: 16}, {}, [("BAT003", "error", GLOBAL)]),
    ({MICRO: 2, STEPS: 4, GLOBAL: 12}, {}, [("BAT003", "error", GLOBAL)]),
    ({MICRO: 2, STEPS: 4, GLOBAL: 16}, {}, [("BAT005", "info", GLOBAL)]),
    ({MICRO: "auto", STEPS: "auto", GLOBAL: 16}, {}, [("BAT005", "info", GLOBAL)]),
    ({MICRO: 2, GLOBAL: 16} | TENSOR, {"world_size": 8}, []),
    (TENSOR, {}, [("BAT005", "info", "tensor_parallel.autotp_size")]),
    ({MICRO: None}, {}, [("BAT004", "error", MICRO)]),
    ({MICRO: None}, {"framework": "transformers"}, [("BAT004", "error", MICRO)]),
    # KEY001 says what is meant
    ({MICRO: None, "micro_batch_size": 2}, {}, []),
    ({MICRO: None, "train_batch": 2}, {}, []),
    ({MICRO: None, "seed": 2}, {}, [("BAT004", "error", MICRO)]),
    ({MICRO: "auto"}, {}, []),
    ({"sequence_parallel_size": 2}, TWO, [("BAT006", "warning", "sequence_parallel_size")]),
    (
        {"sequence_parallel_size": 2},
        TWO | {"framework": "transformers"},
        [("BAT006", "info", "sequence_parallel_size")],
    ),
    ({"sequence_parallel_size": 2, "data_parallel_size": 1}, TWO, []),
    ({"sequence_parallel_size": 2, "data_parallel_size": 2}, TWO, [("BAT006", "error", "data_parallel_size")]),
    ({"sequence_parallel_size": 1}, TWO, []),
    (
        {"managed_gradient_accumulation": False, "zero_optimization": {"stage": 1, "overlap_comm": True}},
        TWO,
        [("BAT007", "error", "zero_optimization.overlap_comm")],
    ),
    ({"managed_gradient_accumulation": False, "zero_optimization": {"stage": 2, "overlap_comm": True}}, TWO, []),
    (
        {"managed_gradient_accumulation": False, "compile": {"deepcompile": True}},
        TWO,
        [("BAT007", "error", "compile.deepcompile")],
    ),
]


@pytest.mark.parametrize(("changes", "job", "expected"), CONFIGS)
def test_in_a_ds_config(changes: dict[str, Any], job: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    assert said(lint_config(changes, "BAT", **job)) == expected


def test_how_many_ranks_a_batch_binds() -> None:
    exact, divided = (lint_config({GLOBAL: 16, STEPS: steps}, "BAT005")[0].message for steps in (4, None))
    assert exact == "train_batch_size 16 is right on exactly 4 data-parallel ranks"
    assert divided == "train_batch_size 16 is right where the number of data-parallel ranks divides 16"
