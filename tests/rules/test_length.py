from __future__ import annotations

import pytest

from dsgen.findings import Severity

from .conftest import Case, Findings

CASES = [
    Case(
        code="LEN001",
        path="length",
        wrong="length: {steps: 10, epochs: 2} # here",
        right="length: {epochs: 2}",
    ),
    Case(code="LEN001", path="length", wrong="length: {} # here", right="length: {steps: null, tokens: 2B}"),
    # 64 x 2048 tokens a step
    Case(
        code="LEN002",
        path="length.tokens",
        wrong="length: {tokens: 131071} # here",
        right="length: {tokens: 131072}",
    ),
    Case(
        code="LEN002",
        path="length.tokens",
        wrong="batch: {sequence_length: 2048, micro: 1, accumulation: 8}\nlength: {tokens: 131071} # here",
        right="batch: {sequence_length: 2048, micro: 1, accumulation: 8}\nlength: {tokens: 131072}",
    ),
    Case(
        code="LEN003",
        path="evaluation.every",
        wrong="length: {tokens: 1310721}\nevaluation: {every: 12, steps: 1} # here",
        right="length: {tokens: 1310721}\nevaluation: {every: 11, steps: 1}",
    ),
    Case(
        code="LEN003",
        path="checkpoint.every_steps",
        wrong="checkpoint: {every_steps: 101, keep: 2} # here",
        right="checkpoint: {every_steps: 100, keep: 2}",
    ),
    Case(
        code="LEN003",
        path="memory.reclaim_every",
        wrong="memory: {reclaim_every: 101} # here",
        right="memory: {reclaim_every: 0}",
    ),
    Case(code="LEN003", path="logging.every", wrong="logging: {every: 200} # here", right="logging: {every: 20}"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)


def test_a_length_of_a_wrong_type_is_not_a_missing_one(findings: Findings) -> None:
    assert [each.code for each in findings("length: {steps: x}")] == ["REC002"]
    assert [each.code for each in findings("length: {step: 3}")] == ["REC001"]


def test_a_short_training_only_informs(findings: Findings) -> None:
    assert [each.severity for each in findings("checkpoint: {every_steps: 500}")] == [Severity.INFO]
