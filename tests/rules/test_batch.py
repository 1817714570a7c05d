from __future__ import annotations

import pytest

from .conftest import Case, Findings

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
