from __future__ import annotations

import pytest

from .conftest import Case, Findings

CASES = [
    Case(
        code="CKP001",
        path="checkpoint.keep",
        wrong="checkpoint:\n  at_end: true\n  keep: 3 # here",
        right="checkpoint:\n  every: 30min\n  keep: 3",
    ),
    Case(
        code="CKP001",
        path="checkpoint.keep",
        wrong="checkpoint: {every_steps: 0, keep: 3} # here",
        right="checkpoint: {every_steps: 50, keep: 3}",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)
