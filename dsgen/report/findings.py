"""Findings as text: code, message, place, the line with a mark under it, and help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dsgen.findings import Finding, Severity
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
        say(f"  --> {printable(str(finding.position))}", style="cyan", err=True)
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
    marked = text[column - 1 :].split(" #")[0].rstrip()
    gutter = " " * len(str(number))
    mark = " " * cells(printable(text[: column - 1])) + "^" * min(max(1, cells(marked)), 60)
    return [f"  {gutter} |", f"  {number} | {printable(text)}", f"  {gutter} | {mark}"]


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
