"""Where a value stands: file, line and column."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a document. `line` and `column` count from 1."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


Span = tuple[int, int]
"""Start and end of a piece of a text, in characters from 0; the end is the first that is not part of it."""

Path = tuple[str | int, ...]
"""The way to a node from the root of a document: mapping keys and list indices."""


def dotted(path: Path) -> str:
    """`("zero", "stage")` as people write it: `zero.stage`; list indices in brackets."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            out += f".{part}" if out else part
    return out


_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def undotted(text: str) -> Path:
    """The reverse of `dotted`, for names that hold no dot or bracket themselves."""
    return tuple(int(index) if index else name for index, name in _PART.findall(text))
