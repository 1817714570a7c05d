"""One change of a document as a change of its text; order, comments and formatting stay as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from dsgen.documents.document import Document
from dsgen.documents.json_reader import read_json_text
from dsgen.documents.positions import Path, Span
from dsgen.findings import Edit

_PLAIN = {"bom", "comment", "trailing-comma"}
"""Notes of a JSON document whose members can be moved about: it has commas and quotes where JSON has them."""
_COMMENT = re.compile(r"//|#|/\*")


def edited(document: Document, text: str, edit: Edit, *, yaml: bool) -> str | None:
    """The text with one change made; None where the document does not allow it."""
    if edit.action == "rename":
        span = document.key_spans.get(edit.path)
        return None if span is None else _spliced(text, span, _key(text, span, str(edit.to[-1])))
    if edit.action == "set":
        span = document.spans.get(edit.path)
        return None if span is None else _spliced(text, span, json.dumps(edit.value))
    if yaml or any(note.kind not in _PLAIN for note in document.notes):
        return None
    if edit.action == "remove":
        return _without(document, text, edit.path)
    return _moved(document, text, edit)


def changed(value: Any, edit: Edit) -> Any:
    """What a document says after a change: the value that the changed text has to read as."""
    if edit.action == "set":
        return _with(value, edit.path, edit.value)
    if edit.action == "rename":
        return _renamed(value, edit.path, str(edit.to[-1]))
    moved = _at(value, edit.path)
    rest = _dropped(value, edit.path)
    return rest if edit.action == "remove" else _with(rest, edit.to, moved)


def _spliced(text: str, span: Span, new: str) -> str:
    return text[: span[0]] + new + text[span[1] :]


def _key(text: str, span: Span, name: str) -> str:
    """A key in the quotes, if any, that the old one has."""
    quote = text[span[0]] if text[span[0]] in "\"'" else ""
    return f"{quote}{name}{quote}"


def _without(document: Document, text: str, path: Path) -> str | None:
    """The text without a member: with the comma behind it, or, for the last of a section, the one before it."""
    key, value = document.key_spans.get(path), document.spans.get(path)
    if key is None or value is None:
        return None
    start, end = key[0], value[1]
    behind = re.compile(r"\s*,").match(text, end)
    if behind is not None:
        end = behind.end()
        blank = re.compile(r"[ \t]*(\r?\n)?").match(text, end)
        line = text.rfind("\n", 0, start) + 1
        if blank is not None and blank[1] and not text[line:start].strip():
            return text[:line] + text[blank.end() :]  # it had its lines to itself
        return text[:start] + text[end:].lstrip(" \t")
    before = re.compile(r",\s*\Z").search(text, max(0, start - 2000), start)
    return text[: before.start() if before is not None else start] + text[end:]


def _moved(document: Document, text: str, edit: Edit) -> str | None:
    key, value = document.key_spans.get(edit.path), document.spans.get(edit.path)
    if key is None or value is None:
        return None
    name, content = json.dumps(edit.to[-1]), text[value[0] : value[1]]
    section = edit.to[:-1]
    if section and section not in document.spans:
        if len(section) != 1:
            return None
        if len(edit.path) > 1:
            return _moved_out(text, edit, f"{json.dumps(section[0])}: {{{name}: {content}}}")
        # The section is made where the member stands.
        return _spliced(text, (key[0], value[1]), f"{json.dumps(section[0])}: {{{name}: {content}}}")
    members = [path for path in document.key_spans if path[:-1] == section and path != edit.path]
    if _beside_a_comment(document, text, edit.path) or any(_beside_a_comment(document, text, each) for each in members):
        return None
    if not members:
        return _moved_into_nothing(document, text, edit, f"{name}: {content}")
    last = max(members, key=lambda path: document.key_spans[path])
    if last[: len(edit.path)] == edit.path:
        return None
    at = document.spans[last][1]
    inserted = f"{_separator(text, document.key_spans[last][0])}{name}: {content}"
    if at <= key[0]:
        rest = _without(document, text, edit.path)
        # What is cut away lies behind the place of the insertion, unless the comma before it does not.
        if rest is None or rest[:at] != text[:at]:
            return None
        return rest[:at] + inserted + rest[at:]
    longer = text[:at] + inserted + text[at:]
    return _without(document, longer, edit.path)


def _beside_a_comment(document: Document, text: str, path: Path) -> bool:
    """Whether a comment stands in the line where a member ends, so that it would be torn from it."""
    if not any(note.kind == "comment" for note in document.notes):
        return False
    end = document.spans[path][1]
    return (
        _COMMENT.search(text[document.key_spans[path][0] : text.find("\n", end) if "\n" in text[end:] else None])
        is not None
    )


def _moved_into_nothing(document: Document, text: str, edit: Edit, member: str) -> str | None:
    """A member moved into a section that is empty so far."""
    start, end = document.spans[edit.to[:-1]]
    if text[start + 1 : end - 1].strip() or text[start] != "{":
        return None
    filled = f"{{{member}}}"
    if start < document.key_spans[edit.path][0]:
        rest = _without(document, text, edit.path)
        return None if rest is None or rest[:end] != text[:end] else rest[:start] + filled + rest[end:]
    return _without(document, text[:start] + filled + text[end:], edit.path)


def _moved_out(text: str, edit: Edit, member: str) -> str | None:
    """A member taken out of its section, and a new one with it put behind the section at the top."""
    rest = _without(read_json_text(text, ""), text, edit.path)
    if rest is None:
        return None
    document = read_json_text(rest, "")
    around = edit.path[:1]
    at = document.spans[around][1]
    return f"{rest[:at]}{_separator(rest, document.key_spans[around][0])}{member}{rest[at:]}"


def _separator(text: str, key: int) -> str:
    """What stands between the member whose key starts at `key` and one that is put behind it."""
    indent = text[text.rfind("\n", 0, key) + 1 : key]
    if indent.strip() or "\n" not in text[:key]:
        return ", "
    return ("," + ("\r\n" if "\r\n" in text else "\n")) + indent


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _with(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    part = path[0]
    if isinstance(value, list):
        return [_with(each, path[1:], new) if index == part else each for index, each in enumerate(value)]
    section = value if isinstance(value, Mapping) else {}
    return {**section, part: _with(section.get(part), path[1:], new)}


def _dropped(value: Any, path: Path) -> Any:
    if len(path) == 1:
        return {key: each for key, each in value.items() if key != path[0]}
    return {key: _dropped(each, path[1:]) if key == path[0] else each for key, each in value.items()}


def _renamed(value: Any, path: Path, name: str) -> Any:
    if len(path) == 1:
        return {name if key == path[0] else key: each for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, path[1:], name) if index == path[0] else each for index, each in enumerate(value)]
    return {key: _renamed(each, path[1:], name) if key == path[0] else each for key, each in value.items()}
