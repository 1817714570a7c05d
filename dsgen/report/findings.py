"""Findings as text: code, message, place, the line with a mark under it, and help."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

from dsgen.findings import Finding, Severity
from dsgen.report.console import console

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
_WIDTH = 160


def show_findings(findings: Iterable[Finding], *, sources: Mapping[str, str]) -> None:
    """Print findings to standard error, errors first, and a last line that counts them."""
    from rich.text import Text

    out = console(stderr=True)
    findings = list(findings)
    for finding in findings:
        head = Text()
        head.append(f"{finding.severity.value}[{finding.code}]", style=_STYLE[finding.severity])
        head.append(f": {printable(finding.message)}")
        out.print(head)
        out.print(Text(f"  --> {printable(str(finding.position))}", style="cyan"))
        for line in _excerpt(finding, sources):
            out.print(Text(line))
        if finding.help:
            out.print(Text(f"  help: {printable(finding.help)}", style="green"))
    counts = [
        f"{number} {severity.value}{'s' if number != 1 else ''}"
        for severity in Severity
        if (number := sum(f.severity is severity for f in findings))
    ]
    if counts:
        out.print(Text(", ".join(counts)))


def _excerpt(finding: Finding, sources: Mapping[str, str]) -> list[str]:
    lines = sources.get(finding.position.file, "").splitlines()
    number = finding.position.line
    if finding.position.file.startswith("--set") or not 1 <= number <= len(lines):
        return []
    column = finding.position.column
    text = printable(lines[number - 1].expandtabs(1))
    if len(text) > _WIDTH:
        start = max(0, column - 1 - _WIDTH // 2)
        text, column = text[start : start + _WIDTH], column - start
    gutter = " " * len(str(number))
    # wide characters take two cells, so the mark is placed by cells
    pad = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text[: column - 1])
    length = max(1, len(text[column - 1 :].split(" #")[0].rstrip()))
    return [f"  {gutter} |", f"  {number} | {text}", f"  {gutter} | {' ' * pad}{'^' * min(length, 60)}"]


def printable(text: str) -> str:
    """Text without characters that would move a terminal's cursor or change its colours."""
    return "".join(c if c.isprintable() or c == " " else c.encode("unicode_escape").decode() for c in text)
