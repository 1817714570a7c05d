"""Findings as SARIF 2.1.0, the format that code hosts show beside the lines of a change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from dsgen import __version__
from dsgen.findings import Finding
from dsgen.lint.lint import Linted
from dsgen.rules.documentation import all_documentation

_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def sarif(linted: Sequence[Linted]) -> dict[str, Any]:
    """One run with the findings of all files, and the rules that they name."""
    findings = [finding for each in linted for finding in each.findings]
    found = sorted({finding.code for finding in findings})
    summaries = {each.code: each.summary for each in all_documentation()}
    rules = [{"id": code, "shortDescription": {"text": summaries.get(code, code)}} for code in found]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "dsgen", "version": __version__, "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, found.index(finding.code)) for finding in findings],
            }
        ],
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    text = f"{finding.message}{'. ' if finding.help else ''}{finding.help}"
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity.value],
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(finding.position.file)},
                    "region": {"startLine": finding.position.line, "startColumn": finding.position.column},
                }
            }
        ],
    }


def _uri(file: str) -> str:
    path = PurePath(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
