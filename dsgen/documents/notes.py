"""What reading a document met that a strict reader refuses, or reads otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from dsgen.documents.positions import Path, Position


@dataclass(frozen=True, slots=True)
class Note:
    """One departure from strict JSON, or something that JSON readers do not agree on."""

    kind: str
    """duplicate-key, not-finite, bom, empty, comment, trailing-comma, missing-comma, unquoted-key, unquoted-text,
    single-quotes, multiline-text, escape (one that only hjson takes), no-root-braces; look-alike, template or conflict
    (a text without quotes that hardly means what hjson reads: `json_mistakes.explained` says it in words)."""
    position: Position
    path: Path
    """Of the value or key concerned: for a comment the section around it, for a comma the value before it; empty for
    the document."""
    detail: str = ""
    """The text met, where it matters; for a duplicate the line of the key before it."""
