"""Findings as text: code, message, place, the line with a mark under it, and help."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from dsgen.documents.errors import DocumentError
from dsgen.documents.positions import Position
from dsgen.findings import DsgenError, ExitCode, Finding, FindingsError, Severity
from dsgen.report.console import cells, printable, say

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
_WIDTH = 160


def show_findings(findings: Iterable[Finding], *, sources: Mapping[str, str]) -> None:
    """Print findings to standard error, errors first, and a last line that counts them."""
    findings = sorted(findings, key=lambda finding: list(Severity).index(finding.severity))
    for finding in findings:
        say(
            f"{finding.severity.value}[{finding.code}]: {printable(finding.message)}",
            style=_STYLE[finding.severity],
            err=True,
        )
        say(f"  --> {printable(place(finding.position))}", style="cyan", err=True)
        for line in _excerpt(finding, sources):
            say(line, err=True)
        if finding.help:
            say(f"  help: {printable(finding.help)}", style="green", err=True)
    counts = [
        f"{number} {severity.value}{'s' if number != 1 else ''}"
        for severity in Severity
        if (number := sum(f.severity is severity for f in findings))
    ]
    if counts:
        say(", ".join(counts), err=True)


def _excerpt(finding: Finding, sources: Mapping[str, str]) -> list[str]:
    lines = sources.get(finding.position.file, "").splitlines()
    number, column = finding.position.line, finding.position.column
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
    }
