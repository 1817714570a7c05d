"""Reading the text to train on: files and the text that every CPython carries, row by row."""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dsgen.resources import local_path
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Data

SUFFIXES = (".txt", ".jsonl", ".parquet")
_PIECE = 1 << 20
_LISTED = 10_000


@dataclass(frozen=True)
class Row:
    """A piece of text. With `answer`, `text` is the prompt; without, it is part of a document."""

    text: str
    answer: str | None = None
    ends_document: bool = True


@dataclass
class BadRows:
    """Rows that could not be used: all counted, the first 10,000 kept as `FILE:LINE: reason`."""

    count: int = 0
    lines: list[str] = field(default_factory=list)

    def add(self, path: Path, line: int, reason: str) -> None:
        """Count one row; `line` counts from 1."""
        self.count += 1
        if len(self.lines) < _LISTED:
            self.lines.append(f"{path}:{line}: {reason}")


def builtin_documents(name: str) -> list[str]:
    """The documents called `name`, the same on every machine with the same Python version."""
    if name != "python-topics":
        raise RuntimeProblem(f"there is no builtin text {name!r}", "use builtin: python-topics, or files")
    from pydoc_data.topics import topics

    return [topics[key] for key in sorted(topics)]


def find_files(data: Data, base_dir: Path) -> list[Path]:
    """The files that the paths and globs name, each once, in a fixed order.

    Raises RuntimeProblem when a pattern matches nothing, something that may not be looked at, or something that is no
    .txt, .jsonl or .parquet file.
    """
    found: dict[Path, None] = {}
    for pattern in data.files:
        named = local_path(base_dir, pattern)
        try:
            found.update(dict.fromkeys(_matches(named, base_dir, pattern)))
        except OSError as error:
            raise RuntimeProblem(f"{error.filename or named} cannot be read: {error.strerror or error}") from error
    return list(found)


def _matches(named: Path, base_dir: Path, pattern: str) -> list[Path]:
    if named.exists() or not glob.has_magic(pattern):
        paths = [named] if named.exists() else []
    else:
        root = base_dir if named.is_relative_to(base_dir) else Path(named.anchor)
        paths = sorted(path for path in root.glob(str(named.relative_to(root))) if path.is_file())
    if not paths:
        broken = f": it is a link to {named.readlink()}, which does not exist" if named.is_symlink() else ""
        raise RuntimeProblem(f"no data file matches {named}{broken}")
    for path in paths:
        if path.is_dir():
            raise RuntimeProblem(f"{path} is a folder, not a data file", f"write {pattern}/*.jsonl, say")
        if path.suffix not in SUFFIXES:
            raise RuntimeProblem(f"{path} is of no known kind", f"data files end in {', '.join(SUFFIXES)}")
        if not path.is_file():
            # A pipe would be waited for without end.
            raise RuntimeProblem(f"{path} is no regular file", "write its content to a file first")
    return paths


def describe(data: Data, base_dir: Path) -> list[list[str | int]]:
    """What the text is, without reading it: changes whenever a file does."""
    if data.builtin is not None:
        digest = hashlib.sha256("\0".join(builtin_documents(data.builtin)).encode()).hexdigest()
        return [["builtin", data.builtin, digest]]
    described: list[list[str | int]] = []
    for path in find_files(data, base_dir):
        status = path.stat()
        described.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
    return described


def read_rows(data: Data, base_dir: Path, bad: BadRows) -> Iterator[Row]:
    """All rows in a fixed order. Unusable ones go to `bad`; an unreadable file raises RuntimeProblem."""
    if data.builtin is not None:
        if data.mode == "instruction":
            raise RuntimeProblem(
                f"builtin text {data.builtin} has no prompts and answers",
                "use mode: packed or truncated, or .jsonl files with prompt and answer",
            )
        yield from map(Row, builtin_documents(data.builtin))
        return
    for path in find_files(data, base_dir):
        try:
            if path.suffix == ".txt":
                yield from _read_txt(path, data, bad)
            elif path.suffix == ".jsonl":
                yield from _read_jsonl(path, data, bad)
            else:
                yield from _read_parquet(path, data, bad)
        except OSError as error:
            raise RuntimeProblem(f"{path} cannot be read: {error.strerror or error}") from error


def _read_txt(path: Path, data: Data, bad: BadRows) -> Iterator[Row]:
    """A file is one document when packed, a line is one when truncated."""
    if data.mode == "instruction":
        raise RuntimeProblem(f"{path}: a .txt file has no prompts and answers", "use .jsonl or .parquet files")
    piece: list[str] = []
    size = 0
    seen = False
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                bad.add(path, number, f"not UTF-8 (byte {error.start} of the line)")
                continue
            if data.mode == "truncated":
                if line.strip():
                    yield Row(line.rstrip("\r\n"))
                continue
            seen = seen or bool(line.strip())
            piece.append(line)
            size += len(line)
            if size >= _PIECE:
                yield Row("".join(piece), ends_document=False)
                piece, size = [], 0
    if seen:
        yield Row("".join(piece))


def _read_jsonl(path: Path, data: Data, bad: BadRows) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            try:
                values = json.loads(raw)
            except ValueError as error:
                bad.add(path, number, f"not JSON: {error}")
                continue
            if not isinstance(values, dict):
                bad.add(path, number, f"a {type(values).__name__}, not an object with fields")
                continue
            row = _row_of_fields(values, data, path, number, bad)
            if row is not None:
                yield row


def _read_parquet(path: Path, data: Data, bad: BadRows) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RuntimeProblem(f"{path}: reading parquet needs pyarrow", "pip install pyarrow") from error
    fields = _fields(data)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            missing = [name for name in fields if name not in columns]
            if missing:
                raise RuntimeProblem(
                    f"{path} has no column {', '.join(missing)}; it has {', '.join(columns)}",
                    "name the columns in the recipe: data.field, data.prompt_field, data.answer_field",
                )
            number = 0
            for batch in file.iter_batches(batch_size=1024, columns=fields):
                for values in batch.to_pylist():
                    number += 1
                    row = _row_of_fields(values, data, path, number, bad)
                    if row is not None:
                        yield row
    except pyarrow.ArrowException as error:
        raise RuntimeProblem(f"{path} is no readable parquet file: {error}") from error


def _fields(data: Data) -> list[str]:
    return [data.prompt_field, data.answer_field] if data.mode == "instruction" else [data.text_field]


def _row_of_fields(values: dict[str, object], data: Data, path: Path, number: int, bad: BadRows) -> Row | None:
    texts: list[str] = []
    for name in _fields(data):
        value = values.get(name)
        if name not in values:
            bad.add(path, number, f"no field {name!r}; it has {', '.join(map(repr, values)) or 'none'}")
            return None
        if not isinstance(value, str):
            bad.add(path, number, f"field {name!r} is a {type(value).__name__}, not text")
            return None
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            bad.add(path, number, f"field {name!r} holds half a character (a lone surrogate)")
            return None
        texts.append(value)
    # A prompt may be empty; what is learned may not.
    if not texts[-1].strip():
        bad.add(path, number, f"field {_fields(data)[-1]!r} is empty")
        return None
    return Row(texts[0], answer=texts[1]) if len(texts) == 2 else Row(texts[0])
