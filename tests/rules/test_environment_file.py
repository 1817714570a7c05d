"""Rules for environment variables, on the lines of `.deepspeed_env`."""

from __future__ import annotations

import pytest

from dsgen.findings import Finding

from .linted import lint_text


def lint(text: str) -> list[Finding]:
    return lint_text(text, ".deepspeed_env")


def found(text: str) -> list[tuple[str, str, int]]:
    return [(each.code, each.severity.value, each.position.line) for each in lint(text)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A=1\nB=2",
        "A = x y\n",
        "A=b=c\r\nB=\n",
        'A=say \\"hi\\"\n',
        "A=#1\nB=x#y\nC=it's\n",
        "HCCL_CONNECT_TIMEOUT=600\nPYTORCH_NPU_ALLOC_CONF=expandable_segments:True\n",
    ],
)
def test_nothing_is_found_in_a_good_file(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1\nA-B=2", [("ENV001", "error", 2)]),
        ("A=1\n=2", [("ENV001", "error", 2)]),
        ("A=1\nexport B=2", [("ENV001", "warning", 2)]),
        ("A=1\nexport B-C=2", [("ENV001", "error", 2)]),
        ("A=1\nHCCL_CONNECT_TIMEOUT=60", [("ENV003", "warning", 2)]),
        ("PYTORCH_ALLOC_CONF=expandable_segments:True,max_split_size_mb:64", [("ENV004", "error", 1)]),
        ("A=1\nHCCL_IF_IP=10.0.0.1", [("ENV006", "error", 2)]),
        ("A=1\nLOCAL_RANK=0", [("ENV007", "warning", 2)]),
        ("A=1\nCUDA_LAUNCH_BLOCKING=1", [("ENV008", "warning", 2)]),
        ("A=1\n\nB=2", [("ENV009", "error", 2)]),
        ("A=1\n   \n", [("ENV009", "error", 2)]),
        ("A=1\n\n\n", [("ENV009", "error", 2), ("ENV009", "error", 3)]),
        ("# timeouts\nA=1", [("ENV009", "error", 1)]),
        ("A=1\nexport B", [("ENV009", "error", 2)]),
        ("A=1\n # B=2\nC=3", [("ENV010", "error", 2)]),
        ("A=1\nB='x'", [("ENV011", "warning", 2)]),
        ('A=1\nB="x y"', [("ENV011", "warning", 2)]),
        ("A=1\nB=2 # two", [("ENV012", "warning", 2)]),
        ("A=1\nB=2\nA=3", [("ENV013", "warning", 1)]),
        ("A=1\nWANDB_API_KEY=0123456789", [("SEC001", "warning", 2)]),
    ],
)
def test_findings(text: str, expected: list[tuple[str, str, int]]) -> None:
    assert found(text) == expected


def test_of_two_values_the_last_is_looked_at() -> None:
    assert found("A='x'\nA=y") == [("ENV013", "warning", 1)]
    assert found("A=y\nA='x'") == [("ENV013", "warning", 1), ("ENV011", "warning", 2)]


def test_what_quotes_do_is_said() -> None:
    (double,), (single,) = lint('A="x y"'), lint("A='x y'")
    assert "cut at its first space" in double.message
    assert "may become part of it" in single.message


def test_paths_are_the_names() -> None:
    (finding,) = lint("HCCL_IF_IP=10.0.0.1")
    assert finding.path == "HCCL_IF_IP"
