"""Hostfiles and DeepSpeed's environment files to their findings."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Literal

from dsgen.documents.document import Document
from dsgen.documents.positions import Path, Position, dotted, undotted
from dsgen.documents.yaml_reader import decode
from dsgen.findings import Finding
from dsgen.rules.registry import run_rules
from dsgen.rules.view import Neutral, View

_FAMILIES = {"hostfile": ("hostfile",), "environment": ("environment", "secrets")}


def lint_launch_file(
    data: bytes, file: str, kind: Literal["hostfile", "environment"]
) -> tuple[Document, Iterator[Finding]]:
    """A file of the launcher as a document (a list of lines), and what the rules find in it.

    Raises DocumentError when it is not UTF-8 text.
    """
    text = decode(data, file)
    document = _document(text, file)
    return document, run_rules(_view(document, kind), _FAMILIES[kind])


def _document(text: str, file: str) -> Document:
    lines = [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]
    values: dict[Path, Position] = {(): Position(file)}
    for index, line in enumerate(lines):
        values[(index,)] = Position(file, index + 1, len(line) - len(line.lstrip()) + 1)
    return Document(file=file, value=lines, values=values, sources={file: text})


def _view(document: Document, kind: Literal["hostfile", "environment"]) -> View:
    lines: tuple[str, ...] = tuple(document.value)
    said = dict(_assignments(lines)) if kind == "environment" else {}

    def words(path: Neutral) -> Path:
        """`("environment", NAME)` as the line that gives NAME its value."""
        neutral = undotted(path) if isinstance(path, str) else path
        if neutral[:1] == ("environment",) and len(neutral) == 2 and neutral[1] in said:
            return (said[str(neutral[1])][0],)
        return neutral

    def locate(path: Neutral, *, key: bool = False) -> Position:
        return document.at(words(path))

    def spell(path: Neutral) -> str:
        if not isinstance(path, str) and path[:1] == ("environment",):
            return str(path[-1])
        return " ".join(f"line {part + 1}" if isinstance(part, int) else dotted((part,)) for part in words(path))

    return View(
        locate=locate,
        spell=spell,
        kind=kind,
        file=document.file,
        lines=lines,
        environment={name: value for name, (_, value) in said.items()},
    )


def _assignments(lines: tuple[str, ...]) -> Iterator[tuple[str, tuple[int, str]]]:
    """Names with the index of their line and their value, as launcher/runner.py reads them; of two the last counts."""
    for index, line in enumerate(lines):
        name, equals, value = line.partition("=")
        if equals and not name.lstrip().startswith("#"):
            yield name.strip(), (index, value.strip())
