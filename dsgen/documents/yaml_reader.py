"""YAML with the position of every node, YAML 1.2 numbers, and no surprises.

PyYAML's parser gives the events; the tree is built here, because its own constructor loses positions,
lets the last of two equal keys win, reads `1e-5` as text and `on` as true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import yaml

from dsgen.documents.document import Document
from dsgen.documents.errors import DocumentError
from dsgen.documents.positions import Path, Position, Span

MAX_BYTES = 4 * 2**20
MAX_DEPTH = 64
MAX_NODES = 100_000
"""Nodes after aliases are expanded: a few lines of nested aliases can otherwise stand for billions."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCT = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")
_MAX_DIGITS = 400

_TAG = "tag:yaml.org,2002:"


def read_yaml_file(path: FilePath) -> Document:
    """Read a YAML file. Raises DocumentError for anything that cannot be read, the file itself included."""
    return read_yaml_bytes(read_bytes(path), str(path))


def read_bytes(path: FilePath) -> bytes:
    """The content of a document's file, at most one byte more than a document may have. Raises DocumentError."""
    shown = Position(str(path))
    try:
        if path.is_dir():
            raise DocumentError("is a folder, not a file", shown)
        if not path.is_file() and path.exists():
            raise DocumentError("is not a regular file", shown)
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DocumentError(f"cannot be read: {reason}", shown) from None


def read_yaml_bytes(data: bytes, file: str) -> Document:
    """Read YAML from bytes (UTF-8, with or without a byte order mark). Raises DocumentError."""
    return read_yaml_text(decode(data, file).removeprefix("\ufeff"), file)


def decode(data: bytes, file: str) -> str:
    """The text of a document, with its byte order mark if it has one. Raises DocumentError when it is not UTF-8."""
    if len(data) > MAX_BYTES:
        raise DocumentError(f"is larger than {MAX_BYTES // 2**20} MiB", Position(file))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8")) + 1
        raise DocumentError(
            f"byte 0x{data[error.start]:02x} is not UTF-8", Position(file, line, column), help="save the file as UTF-8"
        ) from None


def read_yaml_text(text: str, file: str) -> Document:
    """Read one YAML document from text. An empty document has the value None. Raises DocumentError."""
    builder = _Builder(text, file)
    value = builder.build()
    return Document(
        file=file,
        value=value,
        values=builder.values,
        keys=builder.keys,
        sources={file: text},
        spans=builder.spans,
        key_spans=builder.key_spans,
    )


def scalar(text: str) -> Any:
    """The value of a plain YAML 1.2 scalar: None, bool, int, float or str. Raises ValueError for absurd numbers."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if len(text) > _MAX_DIGITS and (_INT.match(text) or _HEX.match(text) or _OCT.match(text) or _FLOAT.match(text)):
        raise ValueError(f"a number of {len(text)} characters")
    if _INT.match(text):
        return int(text)
    if _OCT.match(text):
        return int(text[2:], 8)
    if _HEX.match(text):
        return int(text, 16)
    if _FLOAT.match(text):
        return float(text)
    if _SPECIAL.match(text):
        return float(text.replace(".", "", 1))
    return text


def _span(event: Any) -> Span:
    return event.start_mark.index, event.end_mark.index


class _Builder:
    """Builds the value and the position maps from the parser's events."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.values: dict[Path, Position] = {}
        self.keys: dict[Path, Position] = {}
        self.spans: dict[Path, Span] = {}
        self.key_spans: dict[Path, Span] = {}
        self._nodes = 0
        self._anchors: dict[str, list[Any]] = {}
        self._recording: list[tuple[str, int, list[Any]]] = []

    def build(self) -> Any:
        events = self._events()
        kind = next(events)
        if isinstance(kind, yaml.StreamEndEvent):
            self.values[()] = Position(self.file)
            return None
        value = self._node(next(events), events, (), 0)
        next(events)  # end of the document
        after = next(events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise DocumentError(
                "a second document starts here", self._position(after), help="keep one document in a file"
            )
        return value

    def _events(self) -> Iterator[Any]:
        """Events without the stream start; parser faults become DocumentError."""
        loader = None
        try:
            loader = _Loader(self.text)
            loader.get_event()
            while True:
                event = loader.get_event()
                yield event
                if isinstance(event, yaml.StreamEndEvent):
                    return
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = Position(self.file, mark.line + 1, mark.column + 1) if mark else Position(self.file)
            what = " ".join(part for part in (error.context, error.problem) if part)
            raise DocumentError(f"is not YAML: {what or 'cannot be parsed'}", place) from None
        except yaml.YAMLError as error:
            place = Position(self.file)
            at = getattr(error, "position", None)
            if isinstance(at, int) and not isinstance(at, bool):
                before = self.text[:at]
                place = Position(self.file, before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1)
            reason = getattr(error, "reason", None) or str(error).splitlines()[0]
            raise DocumentError(f"is not YAML: {reason}", place) from None
        finally:
            if loader is not None:
                loader.dispose()

    def _position(self, event: Any) -> Position:
        return Position(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _node(self, event: Any, events: Iterator[Any], path: Path, depth: int) -> Any:
        place = self._position(event)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise DocumentError(f"holds more than {MAX_NODES} values once its aliases are expanded", place)
        if depth > MAX_DEPTH:
            raise DocumentError(f"is nested deeper than {MAX_DEPTH} levels", place)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path, depth, place)
        if event.anchor is not None:
            # The events of the node are kept, so that an alias can replay them at its own path.
            seen: list[Any] = [event]
            inner = self._recorded(events, seen)
            value = self._content(event, inner, path, depth, place)
            self._anchors[event.anchor] = seen
            return value
        return self._content(event, events, path, depth, place)

    @staticmethod
    def _recorded(events: Iterator[Any], into: list[Any]) -> Iterator[Any]:
        for event in events:
            into.append(event)
            yield event

    def _alias(self, event: Any, path: Path, depth: int, place: Position) -> Any:
        seen = self._anchors.get(event.anchor)
        if seen is None:
            raise DocumentError(f"alias *{event.anchor} has no anchor &{event.anchor} before it", place)
        replay = iter(seen)
        first = next(replay)
        value = self._content(first, replay, path, depth, place)
        self.values[path] = place
        return value

    def _content(self, event: Any, events: Iterator[Any], path: Path, depth: int, place: Position) -> Any:
        self.values[path] = place
        if isinstance(event, yaml.ScalarEvent):
            self.spans[path] = _span(event)
            return self._scalar(event, place)
        tag = event.tag
        if isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(tag, _TAG + "seq", place)
            items: list[Any] = []
            for inner in events:
                if isinstance(inner, yaml.SequenceEndEvent):
                    break
                items.append(self._node(inner, events, (*path, len(items)), depth + 1))
            return items
        self._check_tag(tag, _TAG + "map", place)
        mapping: dict[str, Any] = {}
        for inner in events:
            if isinstance(inner, yaml.MappingEndEvent):
                break
            key, key_place = self._key(inner)
            inner_path = (*path, key)
            if key in mapping:
                first = self.keys[inner_path]
                raise DocumentError(
                    f"key {key!r} stands twice in one mapping (first at line {first.line})",
                    key_place,
                    help="remove one of the two",
                )
            self.keys[inner_path] = key_place
            self.key_spans[inner_path] = _span(inner)
            mapping[key] = None  # a key that is its own descendant's alias must be seen as taken
            mapping[key] = self._node(next(events), events, inner_path, depth + 1)
        return mapping

    def _key(self, event: Any) -> tuple[str, Position]:
        place = self._position(event)
        if not isinstance(event, yaml.ScalarEvent) or "\0" in event.value:
            raise DocumentError("a key must be plain text", place)
        return event.value, place

    def _scalar(self, event: Any, place: Position) -> Any:
        tag, plain = event.tag, event.implicit[0]
        if "\0" in event.value:
            raise DocumentError("text with a NUL character, which no file or shell can hold", place)
        if tag in (None, "!") or plain:
            if plain and tag is None:
                try:
                    return scalar(event.value)
                except ValueError as error:
                    raise DocumentError(f"{error} is beyond anything that a recipe can mean", place) from None
            return event.value
        self._check_tag(tag, _TAG + "str", place)
        return event.value

    @staticmethod
    def _check_tag(tag: str | None, allowed: str, place: Position) -> None:
        if tag not in (None, "!", allowed):
            raise DocumentError(f"tag {tag!r} is not allowed: values are plain YAML", place)
