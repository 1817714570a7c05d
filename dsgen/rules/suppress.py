"""Comments that leave findings out: `# dsgen: ignore[CODE]`, or with `//` where that starts a comment."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace

from dsgen.documents.positions import Position
from dsgen.findings import Finding, Severity

_COMMENT = re.compile(
    r"(?P<before>.*?)(?:#|//|/\*)\s*dsgen:\s*(?P<what>ignore-file|ignore)\s*(?P<codes>\[[^\]]*\])?(?P<after>.*)"
)
UNUSED = "SUP001"
"""Code of the finding that a comment leaves nothing out."""

_CODE = re.compile(r"[A-Z]{3}[0-9]{0,3}\Z")


@dataclass(kw_only=True)
class _Comment:
    line: int
    column: int
    covers: int | None
    """The line whose findings are left out; None for the whole file."""
    codes: tuple[str, ...]
    used: set[str] = field(default_factory=set)


def suppressed(
    findings: Iterable[Finding],
    text: str,
    file: str,
    looked_for: Callable[[str], bool] = lambda code: True,
    comment_lines: Container[int] | None = None,
) -> Iterator[Finding]:
    """The findings that no comment of the file leaves out, and one for each comment that leaves nothing out.

    A comment behind a value covers its line, one on a line of its own the next line with content. It names codes or
    their beginnings: without any it would hide what nobody has thought of. `looked_for` says whether findings of a code
    were wanted at all, `comment_lines` where comments start, if the reader of the file knows that.
    """
    if "dsgen:" not in text:
        yield from findings
        return
    comments, wrong = _comments(text, file, comment_lines)
    for finding in findings:
        hits = [
            comment
            for comment in comments
            if finding.code.startswith(comment.codes)
            and finding.position.file == file
            and comment.covers in (None, finding.position.line)
        ]
        for comment in hits:
            comment.used |= {code for code in comment.codes if finding.code.startswith(code)}
        if not hits:
            yield finding
    yield from wrong
    for comment in comments:
        for code in comment.codes:
            if code not in comment.used and looked_for(code):
                place = Position(file, comment.line, comment.column)
                unused = _finding(f"nothing here is found by {code}", place, "remove the comment if that stays so")
                yield replace(unused, severity=Severity.INFO)


def _comments(text: str, file: str, lines_with: Container[int] | None) -> tuple[list[_Comment], list[Finding]]:
    lines = text.splitlines()
    comments: list[_Comment] = []
    wrong: list[Finding] = []
    for number, line in enumerate(lines, 1):
        match = _COMMENT.match(line) if "dsgen:" in line else None
        if match is None or (lines_with is not None and number not in lines_with):
            continue
        column = len(match["before"]) + 1
        codes = tuple(code.strip().upper() for code in (match["codes"] or "").strip("[]").split(",") if code.strip())
        if not codes or not all(map(_CODE.match, codes)):
            wrong.append(
                _finding(
                    "the comment leaves nothing out: it names no code",
                    Position(file, number, column),
                    "write the codes of the findings, for example `# dsgen: ignore[ZRO001]`",
                )
            )
            continue
        covers: int | None = number
        if match["what"] == "ignore-file":
            covers = None
        elif not match["before"].strip():
            covers = next((n for n in range(number + 1, len(lines) + 1) if _has_content(lines[n - 1])), number)
        comments.append(_Comment(line=number, column=column, covers=covers, codes=codes))
    return comments, wrong


def _has_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith(("#", "//", "/*"))


def _finding(message: str, position: Position, help: str) -> Finding:
    return Finding(code=UNUSED, severity=Severity.WARNING, message=message, position=position, help=help)
