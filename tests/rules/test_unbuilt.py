from __future__ import annotations

import pytest

from .conftest import Case, Findings

CASES = [
    Case(
        code="NYB001",
        path=path,
        wrong=f"{fields} # here",
        right=right,
    )
    for path, fields, right in (
        ("parallel.tensor", "parallel:\n  tensor: 2", "parallel: {tensor: 1}"),
        ("parallel.sequence", "parallel:\n  sequence: 2", "parallel: {sequence: 1}"),
        ("restart", "restart: {attempts: 1}", "restart: {attempts: 0}"),
        ("launcher", "launcher: slurm", "launcher: torchrun"),
    )
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)
