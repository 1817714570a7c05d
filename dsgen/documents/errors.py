"""The one error of reading documents."""

from __future__ import annotations

from dsgen.documents.positions import Position


class DocumentError(Exception):
    """A document cannot be read: what is wrong, where, and what to write instead."""

    def __init__(self, message: str, position: Position, *, help: str = "") -> None:
        super().__init__(f"{position}: {message}")
        self.message = message
        self.position = position
        self.help = help
