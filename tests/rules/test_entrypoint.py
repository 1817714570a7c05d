from __future__ import annotations

import pytest

from .conftest import Case, Findings

CASES = [
    Case(code="ENT001", path="entrypoint", wrong="entrypoint: train.sh # here", right="entrypoint: train.py"),
    Case(
        code="ENT002",
        path="entrypoint.args[0]",
        wrong="entrypoint: {script: a.py, args: ['--out={rundir}']} # here",
        right="""entrypoint: {script: a.py, args: ['{run_dir}/x', '{ds_config}', '{"a": 1}', '{base_dir}{folder}']}""",
    ),
    Case(
        code="ENT003",
        path="entrypoint.local_rank",
        wrong="launcher: torchrun\nentrypoint: {script: a.py, local_rank: true} # here",
        right="entrypoint: {script: a.py, local_rank: true}",
    ),
    Case(
        code="ENT004",
        path="logging.memory_snapshot",
        wrong="entrypoint: a.py\nlogging: {memory_snapshot: 5} # here",
        right="logging: {memory_snapshot: 5}",
    ),
    Case(
        code="DAT001", path="data", wrong="data: {mode: packed} # here", right="data: {mode: packed}\nentrypoint: a.py"
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)


def test_text_may_be_left_out_with_an_entrypoint(findings: Findings) -> None:
    assert [each.code for each in findings("data: null")] == ["DAT001"]
    assert findings("data: null\nentrypoint: a.py") == []
