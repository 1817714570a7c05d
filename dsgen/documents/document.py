"""A document that was read: plain values, and the position of every node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsgen.documents.notes import Note
from dsgen.documents.positions import Path, Position, Span


@dataclass(frozen=True, kw_only=True)
class Document:
    """Values as plain dicts, lists and scalars.

    `values` and `keys` give the position of the value and of the key at a path; the root is at `()`.
    `sources` holds the text of every file that positions name, for showing the line in a message.
    """

    file: str
    value: Any
    values: Mapping[Path, Position] = field(default_factory=dict)
    keys: Mapping[Path, Position] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    """What a strict JSON reader would refuse or read otherwise."""
    spans: Mapping[Path, Span] = field(default_factory=dict)
    """Where values stand in the text of `file`."""
    key_spans: Mapping[Path, Span] = field(default_factory=dict)
    """Where keys stand in the text of `file`, with their quotes."""

    def at(self, path: Path) -> Position:
        """Position of the value at `path`, or of its nearest ancestor that stands in the document."""
        return _nearest(self.values, path) or Position(self.file)

    def at_key(self, path: Path) -> Position:
        """Position of the key at `path`, or of the nearest thing that stands in the document."""
        return self.keys.get(path) or self.at(path)

    def has(self, path: Path) -> bool:
        """Whether the document itself says something at `path`."""
        return path in self.values


def _nearest(positions: Mapping[Path, Position], path: Path) -> Position | None:
    for end in range(len(path), -1, -1):
        found = positions.get(path[:end])
        if found is not None:
            return found
    return None
