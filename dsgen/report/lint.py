"""What lint found, as text, JSON, annotations of GitHub and SARIF."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dsgen.findings import Finding
from dsgen.lint.fix import Mended
from dsgen.lint.lint import Linted
from dsgen.report.console import say
from dsgen.report.findings import Lines, counted, finding_json, show_finding


def show_lint(linted: Sequence[Linted], *, form: str) -> None:
    """Print the findings of all files to standard output."""
    if form == "sarif":
        from dsgen.report.sarif import sarif

        say(json.dumps(sarif(linted), indent=2))
    elif form == "json":
        findings = [finding_json(finding) for each in linted for finding in each.findings]
        say(json.dumps({"files": len(linted), "findings": findings}, indent=2))
    elif form == "github":
        for each in linted:
            for finding in each.findings:
                say(_annotation(finding))
    else:
        _show_text(linted)


def _show_text(linted: Sequence[Linted]) -> None:
    for each in linted:
        lines = Lines(each.sources)
        for finding in each.findings:
            show_finding(finding, lines)
            say()
    files = f"{len(linted)} file{'s' if len(linted) != 1 else ''}"
    found = counted(finding for each in linted for finding in each.findings)
    say(f"{found} in {files}" if found else f"nothing found in {files}")


_LEVELS = {"error": "error", "warning": "warning", "info": "notice"}


def _annotation(finding: Finding) -> str:
    """A workflow command of GitHub Actions."""
    place = {
        "file": finding.position.file,
        "line": finding.position.line,
        "col": finding.position.column,
        "title": finding.code,
    }
    properties = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in place.items())
    text = f"{finding.message}{'; ' if finding.help else ''}{finding.help}"
    return f"::{_LEVELS[finding.severity.value]} {properties}::{_escaped(text)}"


def _escaped(text: str, more: str = "") -> str:
    for char in "%\r\n" + more:
        text = text.replace(char, f"%{ord(char):02X}")
    return text


def show_mended(mended: Sequence[Mended], *, diff: bool, form: str) -> None:
    """Say what was repaired, or would be; to standard error where standard output is for programs."""
    for each in mended:
        if not each.repairs:
            continue
        if diff:
            say(each.diff().rstrip("\n"), err=form != "text")
        else:
            repairs = f"{each.repairs} repair{'s' if each.repairs != 1 else ''}"
            say(f"{each.before.file}: {repairs}", err=form != "text")
