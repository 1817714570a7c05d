"""Repairing in files what is safe to repair."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsgen.catalog.deepspeed_keys import load_keys
from dsgen.documents.atomic import replace_file
from dsgen.documents.document import Document
from dsgen.documents.errors import DocumentError
from dsgen.documents.json_reader import read_json_text
from dsgen.documents.yaml_reader import read_yaml_text
from dsgen.dsconfig.kinds import is_yaml
from dsgen.findings import DsgenError, Edit
from dsgen.lint.edits import changed, edited
from dsgen.lint.lint import Linted, lint_bytes
from dsgen.lint.run import Request, options_of

_PASSES = 5
"""A repair may bring a setting to light that is to be repaired in turn."""
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class Mended:
    """A file with its repairs."""

    before: Linted
    after: Linted
    """The same object as `before` when nothing was repaired."""
    repairs: int
    old: str
    new: str

    def diff(self) -> str:
        """The repairs as a unified diff."""
        name = self.before.file
        lines = difflib.unified_diff(
            self.old.splitlines(keepends=True), self.new.splitlines(keepends=True), name, f"{name} (repaired)"
        )
        return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def mend(linted: Iterable[Linted], request: Request, *, write: bool) -> list[Mended]:
    """Repair the files that were linted, and lint what comes out; with `write` the files are changed."""
    mended = []
    for each in linted:
        result = _mended(each, request)
        if write and result.repairs:
            path = Path(each.file)
            if not os.access(path, os.W_OK):
                raise DsgenError(f"{path} may not be written", help="--diff shows the repairs")
            data = path.read_bytes()
            bom = _BOM if data.startswith(_BOM) else b""
            if data != bom + result.old.encode():
                raise DsgenError(f"{path} changed while it was looked at", help="run the same command again")
            replace_file(path, bom + result.new.encode())
        mended.append(result)
    return mended


def _mended(linted: Linted, request: Request) -> Mended:
    text = old = linted.sources.get(linted.file, "")
    current, repairs = linted, 0
    if linted.document is None or linted.document.file != linted.file:
        return Mended(before=linted, after=linted, repairs=0, old=old, new=old)
    for _ in range(_PASSES):
        edits = [edit for f in current.findings if f.position.file == linted.file for edit in f.fix]
        done, text = _apply(text, linted.file, _undisputed(dict.fromkeys(edits)))
        if not done:
            break
        repairs += done
        again = lint_bytes(text.encode(), linted.file, options_of(Path(linted.file), request))
        if again is None or again.document is None:
            break
        current = again
    if not repairs:
        return Mended(before=linted, after=linted, repairs=0, old=old, new=old)
    return Mended(before=linted, after=current, repairs=repairs, old=old, new=text)


def _undisputed(edits: Iterable[Edit]) -> list[Edit]:
    """The edits whose new place no other edit wants: which of two keys is meant, a person has to say."""
    edits = list(edits)
    keys = load_keys()
    places = Counter(keys.canonical(".".join(map(str, edit.to))) for edit in edits if edit.to)
    return [edit for edit in edits if not edit.to or places[keys.canonical(".".join(map(str, edit.to)))] == 1]


def _apply(text: str, file: str, edits: Iterable[Edit]) -> tuple[int, str]:
    """Make each change whose text reads as it should; the others are left to people."""
    done = 0
    yaml = is_yaml(file)
    document = _read(text, file, yaml=yaml)
    for edit in edits:
        if not document.has(edit.path):
            continue
        new = edited(document, text, edit, yaml=yaml)
        if new is None or new == text or _taken(document.value, edit):
            continue
        try:
            after = _read(new, file, yaml=yaml)
        except DocumentError:
            continue
        if after.value == changed(document.value, edit):
            text, document, done = new, after, done + 1
    return done, text


def _taken(value: Any, edit: Edit) -> bool:
    """Whether the place that an edit gives a key has a key already, under that name or another of it."""
    if edit.action not in ("rename", "move"):
        return False
    section = value
    for part in edit.to[:-1]:
        section = section.get(part) if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping):
        return section is not None
    keys = load_keys()
    around = ".".join(map(str, edit.to[:-1]))

    def canonical(name: Any) -> str:
        return keys.canonical(f"{around}.{name}" if around else str(name))

    wanted = canonical(edit.to[-1])
    return any(canonical(name) == wanted for name in section if (*edit.to[:-1], name) != edit.path)


def _read(text: str, file: str, *, yaml: bool) -> Document:
    return read_yaml_text(text, file) if yaml else read_json_text(text, file)
