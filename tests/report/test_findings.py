from __future__ import annotations

import pytest

from dsgen.documents.positions import Position
from dsgen.findings import Finding, Severity
from dsgen.report.console import cells, in_bytes, printable, table
from dsgen.report.findings import show_findings


def finding(severity: Severity = Severity.ERROR, line: int = 1, column: int = 4, message: str = "wrong") -> Finding:
    return Finding(
        code="ABC001",
        severity=severity,
        message=message,
        position=Position("r.yaml", line, column),
        path="a",
        help="do",
    )


def test_layout(capsys: pytest.CaptureFixture[str]) -> None:
    show_findings([finding(Severity.WARNING, 2, 4), finding()], sources={"r.yaml": "a: two words  # comment\nb: 1\n"})
    assert capsys.readouterr().err == (
        "error[ABC001]: wrong\n"
        "  --> r.yaml:1:4\n"
        "    |\n"
        "  1 | a: two words  # comment\n"
        "    |    ^^^^^^^^^\n"
        "  help: do\n"
        "warning[ABC001]: wrong\n"
        "  --> r.yaml:2:4\n"
        "    |\n"
        "  2 | b: 1\n"
        "    |    ^\n"
        "  help: do\n"
        "1 error, 1 warning\n"
    )


def test_mark_stands_under_wide_characters_and_long_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show_findings([finding(column=7)], sources={"r.yaml": "漢字: x"[:4] + "  value"})
    _, line, mark = capsys.readouterr().err.splitlines()[2:5]
    assert cells(mark[: mark.index("^")]) == cells(line[: line.index("value")])
    show_findings([finding(column=5000)], sources={"r.yaml": "x" * 4999 + "Y" + "z" * 5000})
    _, line, mark = capsys.readouterr().err.splitlines()[2:5]
    assert len(line) < 200 and line[mark.index("^")] == "Y"


def test_no_control_characters_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_findings([finding(message="\x1b[31mred\x1b[0m\r\n")], sources={"r.yaml": "a: \x1b]0;title\x07"})
    err = capsys.readouterr().err
    assert "\x1b" not in err and "\x07" not in err and "\r" not in err
    assert "\\x1b[31mred" in err


def test_places_without_a_line_are_shown_alone(capsys: pytest.CaptureFixture[str]) -> None:
    show_findings([finding(line=99)], sources={"r.yaml": "a: 1"})
    assert " | " not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "column", "marked"),
    [
        ("zero: {stage: 5, offload: {optimizer: cpu}}", 15, "5"),
        ("zero: {stage: 5, offload: {optimizer: cpu}}", 27, "{optimizer: cpu}"),
        ("hosts: [a, [b, c], d]", 12, "[b, c]"),
        ("name: 'a, b'", 7, "'a, b'"),
        ('x: {n: "a, }", m: 1}', 8, '"a, }"'),
        ("name: it's a # comment", 7, "it's a"),
    ],
)
def test_the_mark_ends_with_the_value(line: str, column: int, marked: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_findings([finding(column=column)], sources={"r.yaml": line})
    _, shown, mark = capsys.readouterr().err.splitlines()[2:5]
    assert shown[mark.index("^") : len(mark)] == marked


def test_an_argument_has_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    at = Position("--set zero.stage=9", 1, 1)
    show_findings([Finding(code="A", severity=Severity.ERROR, message="m", position=at)], sources={})
    assert "  --> --set zero.stage=9\n" in capsys.readouterr().err


def test_small_pieces() -> None:
    assert printable("a\tb é漢") == "a\\tb é漢"
    assert in_bytes(2**30) == "1.0 GiB" and in_bytes(300 * 2**20) == "300 MiB" and in_bytes(None) == "-"
    assert table([("a", "long"), ("bbb", "c")]) == "a    long\nbbb  c"
