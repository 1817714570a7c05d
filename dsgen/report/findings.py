"""Findings as text: code, message, place, the line with a mark under it, and help."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from dsgen.documents.errors import DocumentError
from dsgen.documents.positions import Position, dotted
from dsgen.findings import DsgenError, Edit, ExitCode, Finding, FindingsError, Severity
from dsgen.report.console import cells, printable, say

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
_WIDTH = 160
_SECRETS = "SEC"
"""Family of the rules that find secrets."""


def show_findings(findings: Iterable[Finding], *, sources: Mapping[str, str]) -> None:
    """Print findings to standard error, errors first, and a last line that counts them."""
    findings = sorted(findings, key=lambda finding: list(Severity).index(finding.severity))
    lines = Lines(sources)
    for finding in findings:
        show_finding(finding, lines, err=True)
    if findings:
        say(counted(findings), err=True)


def show_finding(finding: Finding, lines: Lines, *, err: bool = False) -> None:
    """Print one finding: what, where, the line with a mark under the value, and help."""
    head = f"{finding.severity.value}[{finding.code}]: {printable(finding.message)}"
    say(head, style=_STYLE[finding.severity], err=err)
    say(f"  --> {printable(place(finding.position))}", style="cyan", err=err)
    for line in _excerpt(finding, lines):
        say(line, err=err)
    if finding.help:
        say(f"  help: {printable(finding.help)}", style="green", err=err)


def counted(findings: Iterable[Finding]) -> str:
    """`2 errors, 1 warning`."""
    numbers = Counter(finding.severity for finding in findings)
    return ", ".join(
        f"{numbers[severity]} {severity.value}{'s' if numbers[severity] != 1 else ''}"
        for severity in Severity
        if numbers[severity]
    )


class Lines:
    """The lines of the files that findings point into, split once."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._split: dict[str, list[str]] = {}

    def of(self, file: str) -> list[str]:
        if file not in self._split:
            self._split[file] = self._sources.get(file, "").splitlines()
        return self._split[file]


def _excerpt(finding: Finding, sources: Lines) -> list[str]:
    lines = sources.of(finding.position.file)
    number, column = finding.position.line, finding.position.column
    if finding.code.startswith(_SECRETS):
        return []  # the line would carry the secret into logs
    if finding.position.file.startswith("--set") or not 1 <= number <= len(lines):
        return []
    text = lines[number - 1].expandtabs(1)
    start = max(0, column - 1 - _WIDTH // 2) if len(text) > _WIDTH else 0
    text, column = text[start : start + _WIDTH], column - start
    marked = _value(text[column - 1 :])
    gutter = " " * len(str(number))
    mark = " " * cells(printable(text[: column - 1])) + "^" * min(max(1, cells(marked)), 60)
    return [f"  {gutter} |", f"  {number} | {printable(text)}", f"  {gutter} | {mark}"]


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
