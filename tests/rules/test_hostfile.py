from __future__ import annotations

import pytest

from .linted import lint_text, said

TWO = "worker-0 slots=8\nworker-1 slots=8\n"


def found(text: str) -> list[tuple[str, str, int]]:
    return [(each.code, each.severity.value, each.position.line) for each in lint_text(text, "hostfile")]


@pytest.mark.parametrize(
    "text",
    [
        TWO,
        f"# a comment\n\n  {TWO}   \n# worker-2 slots=8",
        "worker-0 slots=8 # of 16\r\nworker-1\tslots=8",
        "localhost slots=4",
        "10.0.0.1 slots=08\n10.0.0.2 slots=8",
    ],
)
def test_nothing_is_found_in_a_good_hostfile(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("worker-2 slots = 8", "write worker-2 slots=8"),
        ("worker-2:8", "write worker-2 slots=8"),
        ("worker-2 8", "write worker-2 slots=8"),
        ("worker-2 gpus=4", "write worker-2 slots=4"),
        ("worker-2", "write NAME slots=NUMBER, with the number of devices of that host"),
        ("worker-2 slots=", "write NAME slots=NUMBER, with the number of devices of that host"),
        ("slots=8", None),
        ("worker-2 slots=-1", None),
    ],
)
def test_a_line_that_is_no_entry(line: str, help: str | None) -> None:
    (finding,) = lint_text(f"{TWO}  {line}\n", "hostfile")
    assert (finding.code, finding.severity.value) == ("HST001", "error")
    assert (finding.position.line, finding.position.column, finding.path) == (3, 3, "line 3")
    assert line in finding.message
    assert help is None or finding.help == help


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{TWO}worker-0 slots=8\n", [("HST002", "error", 3)]),
        ("", [("HST003", "error", 1)]),
        ("# worker-0 slots=8\n\n", [("HST003", "error", 1)]),
        ("worker-0 slots=8.5\nworker-1 slots=8", [("HST004", "warning", 1)]),
        ("worker-0 slots=8#x\nworker-1 slots=8", [("HST004", "warning", 1)]),
        (f"{TWO}worker-2 slots=0", [("HST005", "warning", 3)]),
        (f"{TWO}fe80::1 slots=8", [("HST006", "warning", 3)]),
        ("worker-[0-3] slots=8\nworker-4 slots=8", [("HST006", "warning", 1)]),
        ("worker-0 slots=8", [("HST007", "info", 1)]),
        (f"{TWO}worker-2 slots=80\n", [("HST008", "info", 3)]),
        (f"\ufeff{TWO}", [("HST009", "error", 1)]),
        (f"{TWO}worker-2 slots={'9' * 5000}", [("HST008", "info", 3)]),
    ],
)
def test_findings(text: str, expected: list[tuple[str, str, int]]) -> None:
    assert found(text) == expected


def test_brackets_and_users_are_told_apart() -> None:
    brackets, user = lint_text("worker-[0-1] slots=8\nme@worker-2 slots=8", "hostfile")
    assert "pdsh makes several of it" in brackets.message
    assert "--include" in user.message


def test_names_of_files() -> None:
    for name in ("hostfile", "hosts/hostfile", "my.hostfile"):
        assert said(lint_text("worker-0:8", name)) == [("HST001", "error", "line 1")]
