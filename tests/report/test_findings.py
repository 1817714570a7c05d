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


def excerpt(text: str, column: int, capsys: pytest.CaptureFixture[str], file: str = "c.json") -> tuple[str, str]:
    """The line that is shown and the line with the mark, both behind the gutter; empty when there are none."""
    at = Position(file, 1, column)
    show_findings([Finding(code="A", severity=Severity.ERROR, message="m", position=at)], sources={file: text})
    lines = capsys.readouterr().err.splitlines()
    assert max(cells(line) for line in lines) <= 100
    shown = [line[6:] for line in lines if " | " in line or line == "    |"]
    return (shown[1], shown[2]) if shown else ("", "")


@pytest.mark.parametrize(
    ("text", "at", "starts", "ends"),
    [
        ("x" * 93 + "Y", 93, "xxx", "xxY"),  # fits
        ("Y" + "x" * 93, 0, "Yxx", "xxx"),
        ("Y" + "x" * 94, 0, "Yxx", "x..."),  # too long by one
        ("x" * 94 + "Y", 94, "...x", "xxY"),
        ("x" * 500 + "Y" + "z" * 500, 500, "...x", "z..."),
        ("漢" * 500 + "Y" + "漢" * 500, 500, "...漢", "漢..."),
        ("\x01\x02" + "x" * 500 + "Y" + "\x03z" * 5, 502, "...x", "\\x03z"),
        ("a" * 45 + "\u2028" * 20 + "Y" + "z" * 40, 65, "...\\u2028", "zzz"),  # short, but escapes take room
        ('{"k": 1, ' * 5000 + "Y", 45_000, "...", "Y"),
        ("xxx\rY", 4, "xxx\\rY", "Y"),  # a line feed alone ends a line
        ("xxx\u2028Y", 4, "xxx\\u2028Y", "Y"),
        ("x\tY", 2, "x Y", "Y"),
        ("xY\r\nz", 1, "xY", "xY"),
    ],
)
def test_a_line_is_clipped_around_the_mark(
    text: str, at: int, starts: str, ends: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line, mark = excerpt(text, at + 1, capsys)
    assert line.startswith(starts) and line.endswith(ends)
    column = cells(mark[: mark.index("^")])
    assert cells(line[: line.index("Y")]) == column


def test_the_mark_of_a_place_behind_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert excerpt("{", 5000, capsys) == ("{", " ^")
    assert excerpt("a: b\x0bc", 4, capsys, "r.yaml") == ("a: b\\x0bc", "   ^^^^^^")
    assert excerpt("a: b\u2028c", 4, capsys, "r.yaml") == ("a: b", "   ^")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{}".encode("utf-16").decode("utf-8", "replace"), False),
        ("\x00" * 3000, False),
        ("\ufffd\x02}q(X\x05\ufffd" * 40, False),
        ('"name": "caf\ufffd"', True),  # a byte of Latin-1
    ],
)
def test_bytes_that_are_no_text_are_not_shown(text: str, shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert (excerpt(text, 1, capsys)[0] != "") is shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('{"api_key":"s3 cr3t","Y":1}', '{"api_key":*********,"Y":1}'),
        ("{comet_api_key: s3cr3t, Y: 1}", "{comet_api_key: ******, Y: 1}"),
        ("HF_TOKEN=s3cr3t  # Y", "HF_TOKEN=******  # Y"),
        ('{"url": "https://me:s3cr3t@host/x", "Y": 1}', '{"url": "https://me:******@host/x", "Y": 1}'),
        ('{"password": \'s3cr3t', '{"password": *******'),
        ('{"tokenizer": "Y", "secretary": "Y"}', '{"tokenizer": "Y", "secretary": "Y"}'),
    ],
)
def test_secrets_in_the_line_of_another_finding(line: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert excerpt(line, 1, capsys)[0] == shown


LONG = "there is no optimizer in the config: unless the script passes one, DeepSpeed fails in the first training step"


def test_messages_are_wrapped_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Finding(
        code="ABC001", severity=Severity.ERROR, message=LONG, position=Position("c.json", 9, 1), help="x " * 50 + "y"
    )
    show_findings([found], sources={})
    assert capsys.readouterr().err.splitlines()[:3:2] == [f"error[ABC001]: {LONG}", "  help: " + "x " * 50 + "y"]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    show_findings([found], sources={})
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "error[ABC001]: there is no optimizer in the config: unless"
    assert said[1] == "    the script passes one, DeepSpeed fails in the first"
    assert [line[:10] for line in said[4:6]] == ["  help: x ", "        x "]
    assert max(map(len, said)) <= 60


def test_an_endless_word_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    show_findings([finding(message=f"no key '{'k' * 5000}' here")], sources={})
    assert capsys.readouterr().err.splitlines()[0] == f"error[ABC001]: no key '{'k' * 59}...{'k' * 19}' here"


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
