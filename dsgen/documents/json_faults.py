"""What to say of text that cannot be read, and where the fault really stands: a parser notices most of them late."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dsgen.documents import json_mistakes as mistakes
from dsgen.documents.json_scanner import Fault
from dsgen.documents.lines import Lines
from dsgen.documents.positions import Path, Span

_WIDEST = 200
"""Indentations beyond this say nothing."""

_WORDS = {"true": "true", "false": "false", "none": "null", "null": "null"}
_CLOSERS = {"{": "}", "[": "]"}
_OPENERS = {"}": "{", "]": "["}
_THEN_MORE = re.compile(r"(-?[0-9][0-9.eE+-]*|true|false|null)\s+[\"']")


def shown(text: str, at: int) -> str:
    """The rest of the line from `at`, cut where it is long."""
    line = text[at : at + 60].splitlines()[:1]
    return (line[0][:37] + "..." if len(line[0]) > 40 else line[0]) if line else ""


def not_closed(lines: Lines, open: Sequence[int], at: int) -> Fault:
    """A bracket at `at`, or the end of the text, where the innermost of the `open` brackets does not end."""
    text = lines.text
    mark = text[at : at + 1]
    if not open:
        return Fault(at, f"{mark} closes nothing: no {_OPENERS[mark]} stands before it", "remove it")
    opener = text[open[-1]]
    closer = _CLOSERS[opener]
    if not mark:
        message = f"the {opener} here is not closed: the text ends without its {closer}"
        return Fault(open[-1], message, f"close it with {closer}", ended=True)
    if any(_CLOSERS[text[outer]] == mark for outer in open):
        return _not_closed_before(lines, open[-1], at, f"a {mark}")
    place = lines.position(open[-1])
    message = f"{mark} where {closer} would close the {opener} of line {place.line}, column {place.column}"
    return Fault(at, message, f"write {closer}")


def _not_closed_before(lines: Lines, opener: int, at: int, what: str) -> Fault:
    mark = lines.text[opener]
    closer = _CLOSERS[mark]
    place = lines.position(at)
    message = f"the {mark} here is not closed: {what} at line {place.line}, column {place.column} stands before its"
    return Fault(opener, f"{message} {closer}", f"close it with {closer}")


def no_value(lines: Lines, open: Sequence[int], at: int, *, first: bool) -> Fault:
    """Something at `at` that is no value; `first` where it stands behind the first value of a list."""
    text = lines.text
    mark = text[at : at + 1]
    in_list = bool(open) and text[open[-1]] == "["
    if not mark:
        if open:
            return not_closed(lines, open, at)
        return Fault(at, "the text ends where a value is missing", "write a value behind the last colon")
    if in_list and mark == "}":
        return not_closed(lines, open, at)
    if in_list and mark == ":":
        if not first:
            return _not_closed_before(lines, open[-1], at, "a key with its colon")
        return Fault(at, "a list holds no keys", "write { } around the key and its value, or , instead of :")
    return Fault(at, f"a value is missing before the {mark}", "write a value, or null")


def no_key(lines: Lines, open: Sequence[int], at: int) -> Fault:
    """Something at `at` that is no key."""
    text = lines.text
    mark = text[at : at + 1]
    if not mark or mark in "]}":
        return not_closed(lines, open, at)
    if mark == ":":
        return Fault(at, "a colon without a key before it", "write a key in quotes before it")
    if mark == ",":
        return Fault(at, "a comma without a setting before it", "remove it")
    for start in (at - 1, at):
        if template := mistakes.placeholder(text, start):
            return _mistaken(start, "template", template)
    return Fault(at, f"{mark} where a key is expected", 'write "KEY": before it')


def no_colon(text: str, key: Span, at: int) -> Fault:
    """Something at `at` where the colon of a key is expected."""
    start, end = key
    name = shown(text[start:end], 0)
    quoted = text[start] in "\"'"
    if quoted:
        found = mistakes.closing_quote(text[start:end])
    else:
        found = mistakes.in_key(text[start:end], starts_line=starts_line(text, start))
        for brace in (start - 1, start):
            if template := mistakes.placeholder(text, brace):
                return _mistaken(brace, "template", template)
    if found is not None:
        kind, offset, detail = found
        return _mistaken(start + offset, kind, detail)
    if quoted and any(mark in text[start + 1 : end - 1] for mark in ":,"):
        return Fault(start, f"no colon stands behind the key {name}", "close its quotes before the colon")
    if at == len(text):
        return Fault(at, f"the text ends behind the key {name}", f"write {name}: VALUE")
    message = f"a colon is missing behind the key {name}, before {shown(text, at)}"
    return Fault(at, message, f"write {name}: VALUE")


def starts_line(text: str, at: int) -> bool:
    """Whether `at` is the start of a line."""
    return at == 0 or text[at - 1] == "\n"


def cause(
    fault: Fault, lines: Lines, notes: Sequence[tuple[int, str, Path, str]], spans: Mapping[Path, Span], root: int
) -> Fault:
    """The likely cause of a fault: the fault itself, or something before it that the text could be read with.

    `root` is where the first word of the text stands.
    """
    text = lines.text
    if fault.final:
        return fault
    if (mark := mistakes.conflict(text)) is not None:
        return _mistaken(mark, "conflict", text[mark : mark + 7])
    if (other := mistakes.no_config(text, root)) is not None:
        return Fault(root, *other)
    noted = {path: (at, kind, detail) for at, kind, path, detail in notes if kind in mistakes.KINDS}
    for at, kind, path, detail in notes:
        if kind == "unquoted-text" and _swallowed(detail):
            return _mistaken(*noted[path]) if path in noted else _swallow(at, detail)
    line = text.rfind("\n", 0, fault.offset) + 1
    for at, kind, detail in noted.values():
        if line <= at <= fault.offset:
            return _mistaken(at, kind, detail)
    if like := mistakes.like_json(text, fault.offset):
        return _mistaken(fault.offset, "look-alike", like)
    if fault.ended:
        return _by_indentation(lines, spans) or fault
    return fault


def _mistaken(at: int, kind: str, detail: str) -> Fault:
    return Fault(at, *mistakes.explained(kind, detail))


def _swallowed(detail: str) -> str:
    """The bracket that a text without quotes took from the structure, if it did."""
    for opener, closer in ("{}", "[]"):
        if detail.count(closer) > detail.count(opener):
            return closer
    return ""


def _swallow(at: int, detail: str) -> Fault:
    closer = _swallowed(detail)
    start = re.split(r"[\s,}\]]", detail, maxsplit=1)[0]
    more = _THEN_MORE.match(detail)
    if start.lower() in _WORDS:
        help = f"write {_WORDS[start.lower()]}"
    elif more is not None:
        help = f"write a comma behind {more[1]}"
    elif detail[0] in "+-.0123456789":
        help = "write a number as JSON does (10, 0.5, 1e-5), or text in quotes"
    else:
        help = "write the text in quotes"
    message = f"hjson reads the rest of the line as text, its {closer} too: {shown(detail, 0)}"
    return Fault(at, message, help)


def _by_indentation(lines: Lines, spans: Mapping[Path, Span]) -> Fault | None:
    """The first closed bracket whose closing line stands further left than its opening line, if there is one.

    Where a bracket is missing, the next one closes it, and so on outwards: only the first of them is at fault.
    """
    text = lines.text
    for start, end in sorted(spans.values(), key=lambda span: span[1]):
        if text[start] not in "{[":
            continue
        opened, closed = lines.position(start), lines.position(end - 1)
        if opened.line == closed.line or closed.column > _WIDEST:
            continue
        before = text[end - closed.column : end - 1]
        opening = text[start - opened.column + 1 : start][:_WIDEST]
        if not before.strip() and len(before) < len(opening) - len(opening.lstrip()):
            closer = text[end - 1]
            message = f"the {text[start]} here is closed by the {closer} at line {closed.line}, further left"
            return Fault(start, f"{message}: a {closer} is missing before it", f"close it with {closer}")
    return None
