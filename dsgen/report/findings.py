"""Findings as text: code, message, place, the line with a mark under it, and help."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from dsgen.documents.errors import DocumentError
from dsgen.documents.positions import Position, dotted
from dsgen.dsconfig.kinds import is_yaml
from dsgen.findings import DsgenError, Edit, ExitCode, Finding, FindingsError, Severity
from dsgen.report.console import cells, printable, say

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
_WIDTH = 100
"""Columns of a line that is shown."""
_LONGEST = 200
"""Characters of the longest word of a message: a key of a stranger's config can have thousands."""
_SECRETS = "SEC"
"""Family of the rules that find secrets."""
_SECRET = re.compile(
    r"(?i)((?<![a-z0-9])(?:api_?key|access_?key|secret(?:_?key)?|password|passwd|(?:auth|access|api|hf|hub)_?token)"
    r"[\"']?\s*[:=]\s*)(\"[^\"]*\"?|'[^']*'?|[^\s,}\]]+)"
)
_PASSWORD = re.compile(r"(://[^/\s:@]{0,200}:)([^/\s@]{1,200})(?=@)")
"""A secret in a line, behind what may be shown."""


def show_findings(findings: Iterable[Finding], *, sources: Mapping[str, str]) -> None:
    """Print findings to standard error, errors first, and a last line that counts them."""
    findings = sorted(findings, key=lambda finding: list(Severity).index(finding.severity))
    lines = Lines(sources)
    for finding in findings:
        show_finding(finding, lines, err=True)
    if findings:
        say(counted(findings), err=True)


def show_finding(finding: Finding, lines: Lines, *, err: bool = False) -> None:
    """Print one finding: what, where, the line with a mark under the value, and help.

    Message and help are one line each, for grep and for logs, but on a terminal, where they are wrapped.
    """
    width = _columns(err=err)
    head = f"{finding.severity.value}[{finding.code}]: {_words(finding.message)}"
    say(_wrapped(head, width, "    "), style=_STYLE[finding.severity], err=err)
    say(f"  --> {printable(place(finding.position))}", style="cyan", err=err)
    for line in _excerpt(finding, lines, min(width or _WIDTH, _WIDTH)):
        say(line, err=err)
    if finding.help:
        say(_wrapped(f"  help: {_words(finding.help)}", width, " " * 8), style="green", err=err)


def _columns(*, err: bool) -> int:
    """Columns of the terminal that is written to; 0 when it is none."""
    stream = sys.stderr if err else sys.stdout
    return max(40, shutil.get_terminal_size().columns) if stream.isatty() else 0


def _words(text: str) -> str:
    """Text of a message without control characters and without endless words."""
    return re.sub(rf"\S{{{_LONGEST},}}", lambda word: word[0][:60] + "..." + word[0][-20:], printable(text))


def _wrapped(text: str, width: int, indent: str) -> str:
    if not width:
        return text
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def counted(findings: Iterable[Finding]) -> str:
    """`2 errors, 1 warning`."""
    numbers = Counter(finding.severity for finding in findings)
    return ", ".join(
        f"{numbers[severity]} {severity.value}{'s' if numbers[severity] != 1 else ''}"
        for severity in Severity
        if numbers[severity]
    )


class Lines:
    """The lines of the files that findings point into, split once; what looks like a secret is stars."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._split: dict[str, list[str]] = {}
        self._masked: dict[tuple[str, int], str] = {}

    def line(self, file: str, number: int) -> str | None:
        """A line as the reader of the file counts them: more characters than the line feed end a line of YAML."""
        if file not in self._split:
            text = self._sources.get(file, "")
            self._split[file] = _YAML_BREAK.split(text) if is_yaml(file) else text.split("\n")
        lines = self._split[file]
        if not 1 <= number <= len(lines):
            return None
        if (file, number) not in self._masked:
            self._masked[file, number] = _masked(lines[number - 1].removesuffix("\r").expandtabs(1))
        return self._masked[file, number]


_YAML_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


def _excerpt(finding: Finding, sources: Lines, width: int) -> list[str]:
    """The line of a finding and a mark under the value: as much of the line as there is room for, around the mark."""
    number = finding.position.line
    line = sources.line(finding.position.file, number)
    if line is None or finding.position.file.startswith("--set"):
        return []
    if finding.code.startswith(_SECRETS):
        return []  # the line would carry the secret into logs
    gutter = " " * len(str(number))
    shown, at, marks = _clipped(line, finding.position.column - 1, width - len(gutter) - 5)
    if not shown:
        return []
    return [f"  {gutter} |", f"  {number} | {shown}", f"  {gutter} | {' ' * at}{'^' * marks}"]


def _masked(line: str) -> str:
    """The line with stars for what looks like a secret, whatever the finding is about."""
    for secret in (_SECRET, _PASSWORD):
        line = secret.sub(lambda found: found[1] + "*" * len(found[2]), line)
    return line


def _clipped(line: str, at: int, room: int) -> tuple[str, int, int]:
    """What is shown of a line in `room` columns, the column of the mark in it, and the columns that are marked.

    The text is empty when it is hardly one: bytes of another encoding, or of no text.
    """
    at = min(at, len(line))
    left, right = line[max(0, at - room) : at], line[at : at + room]
    odd = sum(not c.isprintable() or c == "\ufffd" for c in left + right)
    if "\0" in left + right or odd * 4 > len(left + right):
        return "", 0, 0
    marked = _value(right)
    before, behind = [printable(c) for c in left], [printable(c) for c in right]
    if len(line) > len(left + right) or cells("".join(before + behind)) > room:
        half = (room - 2 * len(_CUT)) // 2
        spare_left, spare_right = (max(0, half - cells("".join(pieces))) for pieces in (before, behind))
        before = _fitting(before[::-1], half + spare_right)[::-1]
        behind = _fitting(behind, half + spare_left)
    head = _CUT * (len(before) < at) + "".join(before)
    tail = "".join(behind) + _CUT * (at + len(behind) < len(line))
    marks = cells("".join(behind[: len(marked)]))
    return head + tail, cells(head), min(max(1, marks), 60)


_CUT = "..."


def _fitting(pieces: list[str], room: int) -> list[str]:
    """The first pieces that fit into as many columns."""
    for index, piece in enumerate(pieces):
        room -= cells(piece)
        if room < 0:
            return pieces[:index]
    return pieces


def _value(text: str) -> str:
    """The value that a line goes on with: to the end, a comment, or the end of the item of a flow mapping or list."""
    quoted = re.match(r'"(?:[^"\\]|\\.)*"', text)
    if quoted is not None:
        return quoted[0]
    depth, quote = 0, ""
    for index, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"" and (index == 0 or depth):
            quote = c
        elif c in "[{":
            depth += 1
        elif c in ",]}":
            if depth == 0:
                return text[:index].rstrip()
            depth -= c != ","
            if depth == 0 and c != ",":
                return text[: index + 1]
        elif c == "#" and text[index - 1 : index] == " ":
            return text[:index].rstrip()
    return text.rstrip()


def place(position: Position) -> str:
    """Where something stands, for people: an argument of the command line has no line and column."""
    return position.file if position.file.startswith("--set ") else str(position)


@contextmanager
def json_errors() -> Iterator[None]:
    """Errors of a command whose output is JSON, as JSON on standard output; the exit code stays what it is."""
    try:
        yield
    except FindingsError as error:
        print(json.dumps({"findings": [finding_json(finding) for finding in error.findings]}, indent=2))
        raise click.exceptions.Exit(int(error.exit_code)) from None
    except DocumentError as error:
        finding = Finding(
            code="DOC001", severity=Severity.ERROR, message=error.message, position=error.position, help=error.help
        )
        print(json.dumps({"findings": [finding_json(finding)]}, indent=2))
        raise click.exceptions.Exit(int(ExitCode.USAGE)) from None
    except DsgenError as error:
        print(json.dumps({"error": error.message, "help": error.help}, indent=2))
        raise click.exceptions.Exit(int(error.exit_code)) from None


def finding_json(finding: Finding) -> dict[str, Any]:
    """A finding as a JSON object."""
    return {
        "file": finding.position.file,
        "line": finding.position.line,
        "column": finding.position.column,
        "path": finding.path,
        "code": finding.code,
        "severity": finding.severity.value,
        "message": finding.message,
        "help": finding.help,
        "fix": [_edit_json(edit) for edit in finding.fix] or None,
    }


def _edit_json(edit: Edit) -> dict[str, Any]:
    found: dict[str, Any] = {"action": edit.action, "path": dotted(edit.path)}
    if edit.action in ("rename", "move"):
        found["to"] = dotted(edit.to)
    elif edit.action == "set":
        found["value"] = edit.value
    return found
