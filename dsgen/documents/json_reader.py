"""JSON and hjson with the span of every key and value, and a note of everything that strict JSON refuses.

One tolerant parser reads both: a text without notes is strict JSON. Python's json gives no positions, and hjson names
the end of the file for most faults.
"""

from __future__ import annotations

import math
from pathlib import Path as FilePath
from typing import Any

from dsgen.documents import json_mistakes as mistakes
from dsgen.documents import json_scanner as scanner
from dsgen.documents.document import Document
from dsgen.documents.errors import DocumentError
from dsgen.documents.json_faults import cause, no_colon, no_key, no_value, not_closed, shown, starts_line
from dsgen.documents.json_scanner import Fault
from dsgen.documents.lines import Lines, Positions
from dsgen.documents.notes import Note
from dsgen.documents.positions import Path, Position, Span
from dsgen.documents.yaml_reader import decode, read_bytes

MAX_DEPTH = 64
MAX_NODES = 100_000
MAX_DIGITS = 400

_BYTE_ORDER_MARKS = ("\ufeff", "\xef\xbb\xbf")
"""The second is the first, read in Latin-1 and saved again: hjson skips both (HjsonDecoder.raw_decode)."""
_IN_JSON = {"duplicate-key", "not-finite", "bom", "empty"}
"""Kinds of notes that a text can have which json.loads takes."""


def read_json_file(path: FilePath) -> Document:
    """Read a JSON or hjson file. Raises DocumentError for anything that cannot be read, the file itself included."""
    return read_json_bytes(read_bytes(path), str(path))


def read_json_bytes(data: bytes, file: str) -> Document:
    """Read JSON or hjson from bytes (UTF-8, with or without a byte order mark). Raises DocumentError."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DocumentError("is UTF-16, which no JSON reader takes", Position(file), help="save the file as UTF-8")
    return read_json_text(decode(data, file), file)


def read_json_text(text: str, file: str) -> Document:
    """Read one JSON or hjson document from text; `sources` and spans are without the byte order mark.

    The value is that of json.loads where it takes the text, else that of hjson.loads, but for numbers, which stay as
    they are written (hjson makes 2.0 an int), and for an empty text, which DeepSpeed reads as {}. Of equal keys the
    last one counts. Raises DocumentError.
    """
    mark = next((mark for mark in _BYTE_ORDER_MARKS if text.startswith(mark)), "")
    text = text.removeprefix(mark)
    lines = Lines(text, file)
    try:
        if "\0" in text:
            raise Fault(text.index("\0"), "a NUL character", "save the file as UTF-8 text", final=True)
        builder = _built(lines)
        if mark and ("empty" in (note[1] for note in builder.notes)):
            raise Fault(0, "holds nothing behind its byte order mark, which hjson refuses", "write a config, or {}")
    except Fault as fault:
        raise DocumentError(fault.message, lines.position(fault.offset), help=fault.help) from None
    notes = [Note("bom", Position(file), ())] if mark else []
    notes += [
        Note(kind, lines.position(at), path, detail)
        for at, kind, path, detail in sorted(builder.notes, key=lambda note: note[0])
    ]
    return Document(
        file=file,
        value=builder.value,
        values=Positions(builder.spans, lines),
        keys=Positions(builder.key_spans, lines),
        sources={file: text},
        notes=tuple(notes),
        spans=builder.spans,
        key_spans=builder.key_spans,
    )


def _built(lines: Lines) -> _Builder:
    """Read as json.loads does, where NaN is a number; where that is not the language of the text, as hjson does."""
    builder = _Builder(lines, constants=True)
    try:
        builder = _root(builder)
        if not builder.met_constant or all(kind in _IN_JSON for _, kind, _, _ in builder.notes):
            return builder
    except Fault:
        if not builder.met_constant:
            raise
    return _root(_Builder(lines, constants=False))


def _root(builder: _Builder) -> _Builder:
    """Read the whole text. Without a bracket at its start it is an object without braces, or else a single value."""
    text = builder.text
    at = builder.blank(0, ())
    try:
        if at == len(text):
            builder.note("empty", 0, ())
            builder.spans[()] = (0, 0)
            builder.value = {}
        elif text[at] in "{[":
            builder.finish(*builder.item(at, (), 0))
        else:
            builder.note("no-root-braces", at, ())
            builder.finish(*builder.bare_object(at))
        return builder
    except Fault as fault:
        likely = cause(fault, builder.lines, builder.notes, builder.spans, at)
        if fault.final or text[at] in "{[":
            raise likely from None
    single = _Builder(builder.lines, constants=builder.constants)
    try:
        single.finish(*single.item(0, (), 0))
        return single
    except Fault:
        raise likely from None
    finally:
        builder.met_constant = single.met_constant = builder.met_constant or single.met_constant


class _Builder:
    """Builds the value, the spans and the notes of one text."""

    def __init__(self, lines: Lines, *, constants: bool) -> None:
        self.text = lines.text
        self.lines = lines
        self.constants = constants
        """Whether NaN and Infinity are numbers, as for json.loads, or text, as for hjson."""
        self.met_constant = False
        self.value: Any = None
        self.spans: dict[Path, Span] = {}
        self.key_spans: dict[Path, Span] = {}
        self.notes: list[tuple[int, str, Path, str]] = []
        self._open: list[int] = []

    def note(self, kind: str, at: int, path: Path, detail: str = "") -> None:
        if len(self.notes) == MAX_NODES:
            raise Fault(at, f"has more than {MAX_NODES} comments and other departures from JSON", final=True)
        self.notes.append((at, kind, path, detail))

    def blank(self, at: int, path: Path) -> int:
        """Skip blanks and comments."""
        at = scanner.space(self.text, at)
        while (end := scanner.comment(self.text, at)) != at:
            self.note("comment", at, path)
            at = scanner.space(self.text, end)
        return at

    def finish(self, value: Any, end: int) -> None:
        """Take the value of the root, which must be the end of the text."""
        self.value = value
        at = self.blank(end, ())
        if at < len(self.text):
            last = self.lines.position(end - 1)
            raise Fault(
                at,
                f"text after the end, which is the {self.text[end - 1]} at line {last.line}, column {last.column}: "
                f"{shown(self.text, at)}",
                "remove it, or the bracket that ends the config too early",
            )

    def item(self, at: int, path: Path, depth: int) -> tuple[Any, int]:
        """Read the value behind `at`, whatever it is: the value, and the offset behind it."""
        text = self.text
        at = self.blank(at, path[:-1])
        mark = text[at : at + 1]
        value: Any
        if mark == "{" or mark == "[":
            if depth == MAX_DEPTH:
                raise Fault(at, f"is nested deeper than {MAX_DEPTH} levels", final=True)
            self._open.append(at)
            value, end = self._object(at, path, depth) if mark == "{" else self._array(at, path, depth)
            self._open.pop()
        elif mark == '"' or mark == "'":
            value, end = self._string(at, path)
        elif not mark or mark in ",:]}":
            raise no_value(self.lines, self._open, at, first=path[-1:] == (1,))
        else:
            return self._unquoted(at, path)
        self.spans[path] = (at, end)
        return value, end

    def bare_object(self, at: int) -> tuple[dict[str, Any], int]:
        """Read the members of a root without braces from `at` on."""
        value, end = self._object(at, (), 0, braces=False)
        self.spans[()] = (at, end)
        return value, end

    def _object(self, start: int, path: Path, depth: int, *, braces: bool = True) -> tuple[dict[str, Any], int]:
        text, spans, key_spans = self.text, self.spans, self.key_spans
        match_key, match_scalar = scanner.KEY.match, scanner.SCALAR.match
        closer = "}" if braces else ""
        at = start + len(closer)
        inner = path
        comma = None
        value: dict[str, Any] = {}
        while True:
            found = match_key(text, at)
            if found is not None:
                key, span, at = found[2], found.span(1), found.end()
            else:
                at = self.blank(at, path)
                if text[at : at + 1] == closer:
                    if comma is not None:
                        self.note("trailing-comma", comma, inner)
                    break
                key, span, at = self._key(at, path)
            inner = (*path, key)
            if key in value:
                line = self.lines.position(key_spans[inner][0]).line
                self.note("duplicate-key", span[0], inner, f"line {line}")
                self._forget(value[key], inner)
            key_spans[inner] = span
            found = match_scalar(text, at)
            if found is not None:
                spans[inner] = found.span(1)
                value[key] = self._plain(found[1], inner)
                at = found.end()
            else:
                value[key], at = self.item(at, inner, depth + 1)
            if len(spans) > MAX_NODES:
                raise Fault(at, f"holds more than {MAX_NODES} values", final=True)
            mark: str | None = text[at : at + 1]
            if mark != "," and mark != closer:
                at, mark = self._separator(at, closer, inner)
            if mark == ",":
                comma = at
                at += 1
            elif mark == closer:
                break
            else:
                comma = None
        return value, at + len(closer)

    def _array(self, start: int, path: Path, depth: int) -> tuple[list[Any], int]:
        text, spans = self.text, self.spans
        match_scalar = scanner.SCALAR.match
        at = start + 1
        inner = path
        comma = None
        value: list[Any] = []
        while True:
            found = match_scalar(text, at)
            if found is not None:
                inner = (*path, len(value))
                spans[inner] = found.span(1)
                value.append(self._plain(found[1], inner))
                at = found.end()
            else:
                at = self.blank(at, path)
                if text[at : at + 1] == "]":
                    if comma is not None:
                        self.note("trailing-comma", comma, inner)
                    break
                inner = (*path, len(value))
                item, at = self.item(at, inner, depth + 1)
                value.append(item)
            if len(spans) > MAX_NODES:
                raise Fault(at, f"holds more than {MAX_NODES} values", final=True)
            mark: str | None = text[at : at + 1]
            if mark != "," and mark != "]":
                at, mark = self._separator(at, "]", inner)
            if mark == ",":
                comma = at
                at += 1
            elif mark == "]":
                break
            else:
                comma = None
        return value, at + 1

    def _separator(self, at: int, closer: str, inner: Path) -> tuple[int, str | None]:
        """The comma or `closer` behind a value, and where it stands; None for neither, which hjson takes too."""
        at = self.blank(at, inner[:-1])
        mark = self.text[at : at + 1]
        if mark == "," or mark == closer:
            return at, mark
        if mark in "]}":
            raise not_closed(self.lines, self._open, at)
        self.note("missing-comma", self.spans[inner][1], inner)
        return at, None

    def _key(self, at: int, path: Path) -> tuple[str, Span, int]:
        """The key at `at`, its span, and the offset behind its colon."""
        text = self.text
        mark = text[at : at + 1]
        if mark == '"' or mark == "'":
            key, end, strict = scanner.string(text, at)
            self._note_quotes(mark, strict, at, (*path, key))
            colon = self.blank(end, path)
            if text[colon : colon + 1] != ":":
                raise no_colon(text, (at, end), colon)
            return key, (at, end), colon + 1
        found = scanner.BARE_KEY.match(text, at)
        if found is None:
            raise no_key(self.lines, self._open, at)
        if not found[3]:
            raise no_colon(text, found.span(1), found.end())
        key = found[1].rstrip() if found[2] else found[1]
        self.note("unquoted-key", at, (*path, key), key)
        self._note_mistake(mistakes.in_key(key, starts_line=starts_line(text, at)), at, (*path, key))
        return key, found.span(1), found.end()

    def _string(self, at: int, path: Path) -> tuple[str, int]:
        text = self.text
        if text.startswith("'''", at):
            self.note("multiline-text", at, path)
            return scanner.multiline(text, at, self._indent(at))
        value, end, strict = scanner.string(text, at)
        self._note_quotes(text[at], strict, at, path)
        return value, end

    def _note_quotes(self, quote: str, strict: bool, at: int, path: Path) -> None:
        if quote == "'":
            self.note("single-quotes", at, path)
        elif not strict:
            self.note("escape", at, path)

    def _indent(self, at: int) -> int | None:
        """How far into its line hjson takes `at` to be (mlscanstring): in the first line it goes on from the end."""
        place = self.lines.position(at)
        if place.line > 1:
            return place.column - 1
        last = self.lines.last_break
        return None if last < 0 else at - 1 - last + len(self.text)

    def _unquoted(self, at: int, path: Path) -> tuple[Any, int]:
        """A word or number, or text up to the end of the line."""
        text = self.text
        value: Any
        found = scanner.LITERAL.match(text, at)
        if found is not None:
            raw = found[1] or found[2]
            self.spans[path] = (at, at + len(raw))
            if not raw.isascii() or found[0][len(raw) :].strip(" \t"):
                self.note("unquoted-text", at, path, found[0])
            return self._plain(raw, path), found.end()
        found = scanner.CONSTANT.match(text, at) if self.constants else None
        if found is not None:
            self.met_constant = True
            self.spans[path] = found.span(1)
            self.note("not-finite", at, path, found[1])
            return float(found[1]), found.end()
        end = scanner.LINE.match(text, at).end()  # type: ignore[union-attr]
        raw = text[at:end]
        self.spans[path] = (at, at + len(raw.rstrip()))
        value = raw.strip()
        self.note("unquoted-text", at, path, value)
        self._note_mistake(mistakes.in_text(raw, starts_line=starts_line(text, at)), at, path)
        return value, end

    def _note_mistake(self, found: tuple[str, int, str] | None, at: int, path: Path) -> None:
        if found is not None:
            kind, offset, detail = found
            self.note(kind, at + offset, path, detail)

    def _plain(self, raw: str, path: Path) -> Any:
        """The value of a text in quotes without escapes, of a word or of a number, at `path`."""
        if raw[0] == '"':
            return raw[1:-1]
        if raw in scanner.WORDS:
            return scanner.WORDS[raw]
        if "." in raw or "e" in raw or "E" in raw:
            number = float(raw)
            if math.isinf(number):
                self.note("not-finite", self.spans[path][0], path, raw)
            return number
        if len(raw) > MAX_DIGITS:
            message = f"a number of {len(raw)} digits is beyond anything that a config can mean"
            raise Fault(self.spans[path][0], message, final=True)
        return int(raw)

    def _forget(self, value: Any, path: Path) -> None:
        """Take away the spans below a value that a later equal key replaces."""
        if isinstance(value, dict):
            items: Any = value.items()
        else:
            items = enumerate(value) if isinstance(value, list) else ()
        for part, inner in items:
            below = (*path, part)
            self._forget(inner, below)
            del self.spans[below]
            self.key_spans.pop(below, None)
