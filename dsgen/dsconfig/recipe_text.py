"""A recipe as the YAML that a person would write: sections in order, small ones on one line, remarks as comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dsgen.documents.positions import Path

WIDTH = 100
"""Columns that a section may take on one line; longer ones are written as a block."""
COMMENT_WIDTH = 116

_PLAIN = re.compile(r"(?:[A-Za-z]|~?/|\.\.?/)[A-Za-z0-9_./~*+-]*\Z")
_OTHER_MEANING = re.compile(r"(null|true|false|yes|no|on|off|y|n)\Z", re.IGNORECASE)
_LARGE = 10**6


def recipe_text(recipe: Mapping[str, Any], comments: Mapping[Path, str], head: Iterable[str] = ()) -> str:
    """YAML of a recipe. `comments` stand behind the field at their path, `head` above everything, wrapped.

    Whole numbers of a million and more that are a few digits and zeros are written as `5e8`, under `zero` only: there
    they are read back as whole numbers.
    """
    lines = [line for paragraph in head for line in _wrapped(paragraph)]
    for name, value in recipe.items():
        lines += _field((name,), value, comments, "")
    return "\n".join(lines) + "\n"


def _field(path: Path, value: Any, comments: Mapping[Path, str], indent: str) -> list[str]:
    comment = f"  # {_printable(comments[path])}" if path in comments else ""
    start = f"{indent}{_text(str(path[-1]))}:"
    if not isinstance(value, Mapping) or not value:
        return [f"{start} {_flow(value, path)}{comment}"]
    inside = any(known[: len(path)] == path and known != path for known in comments)
    line = f"{start} {_flow(value, path)}"
    if not inside and len(line) <= WIDTH:
        return [line + comment]
    lines = [start + comment]
    for name, inner in value.items():
        lines += _field((*path, name), inner, comments, indent + "  ")
    return lines


def _flow(value: Any, path: Path) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(str(k))}: {_flow(v, (*path, k))}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(item, path) for item in value) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return _whole(value) if path[0] == "zero" else str(value)
    if isinstance(value, float):
        # YAML 1.1 readers take 2e-5 for text
        digits, _, power = repr(value).partition("e")
        return f"{digits}{'' if '.' in digits else '.0'}e{int(power)}" if power else digits
    return _text(str(value))


def _whole(value: int) -> str:
    digits = str(value).rstrip("0")
    zeros = len(str(value)) - len(digits)
    return f"{digits}e{zeros}" if value >= _LARGE and len(digits) <= 3 else str(value)


def _text(value: str) -> str:
    if _PLAIN.match(value) and not _OTHER_MEANING.match(value):
        return value
    return "".join(c if c.isprintable() else _escaped(c) for c in json.dumps(value, ensure_ascii=False))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _wrapped(paragraph: str) -> list[str]:
    lines, line = [], "#"
    for word in _printable(paragraph).split(" "):
        if len(line) + len(word) + 1 > COMMENT_WIDTH and line != "#":
            lines.append(line)
            line = "#  "
        line += f" {word}"
    return [*lines, line]
