"""From a recipe file to one document: `extends` followed, `--set` applied, positions kept."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from dsgen.documents.document import Document
from dsgen.documents.errors import DocumentError
from dsgen.documents.positions import Path, Position
from dsgen.documents.yaml_reader import read_yaml_file, read_yaml_text

MAX_CHAIN = 16

_FOLDER_RELATIVE: tuple[Path, ...] = (("model",), ("weights",), ("tokenizer",), ("data", "files"), ("entrypoint",))
"""Fields that may hold a path relative to the folder of the file that says them."""

_SHORT_FORMS: dict[Path, str] = {
    ("precision",): "type",
    ("zero", "offload", "optimizer"): "device",
    ("zero", "offload", "parameters"): "device",
}
"""Fields whose plain text is short for a mapping with this key, so that an override can add a key beside it."""

_SET = re.compile(r"([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\[\d+\])*)=(.*)\Z", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Input:
    """A file that took part: its name relative to the recipe's folder, and the SHA-256 of its content."""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class LoadedRecipe:
    """A recipe as one document; `folder` is where its relative paths count from."""

    path: FilePath
    folder: FilePath
    document: Document
    inputs: tuple[Input, ...]
    overrides: tuple[str, ...]


def load_recipe(path: FilePath, overrides: Iterable[str] = ()) -> LoadedRecipe:
    """Read a recipe and everything that it extends; apply `PATH=VALUE` overrides in order.

    Mappings are merged key by key, anything else is replaced; the file that extends wins.
    Raises DocumentError with a position for whatever cannot be read or followed.
    """
    chain: list[FilePath] = []
    inputs: list[Input] = []
    folder = path.parent
    document = _load_chain(path, str(path), folder, chain, inputs)
    overrides = tuple(overrides)
    for text in overrides:
        document = _apply_override(document, text)
    return LoadedRecipe(path=path, folder=folder, document=document, inputs=tuple(inputs), overrides=overrides)


def _load_chain(
    path: FilePath, shown: str, folder: FilePath, chain: list[FilePath], inputs: list[Input], origin: Position | None = None
) -> Document:
    try:
        real = path.resolve()
    except (OSError, RuntimeError):
        raise DocumentError("cannot be read: its symbolic links form a cycle", origin or Position(shown)) from None
    if origin is not None and not path.is_file():
        raise DocumentError(
            f"extends {shown!r}, which is not there", origin, help="give the path relative to this file's folder"
        )
    if real in chain:
        raise DocumentError(
            "extends a recipe that extends it in turn: "
            + " -> ".join(p.name for p in [*chain[chain.index(real) :], real]),
            origin or Position(shown),
            help="break the cycle",
        )
    if len(chain) >= MAX_CHAIN:
        raise DocumentError(f"extends more than {MAX_CHAIN} recipes in a row", origin or Position(shown))
    document = read_yaml_file(path, shown)
    inputs.append(Input(name=_relative(path, folder), sha256=hashlib.sha256(path.read_bytes()).hexdigest()))
    value = document.value
    if not isinstance(value, dict):
        what = "is empty" if value is None else "holds no mapping at its top"
        raise DocumentError(f"{what}: a recipe is a mapping of fields", document.at(()), help="start with `schema: 1`")
    if "extends" not in value:
        return document
    base_name = value["extends"]
    place = document.at(("extends",))
    if not isinstance(base_name, str) or not base_name or "\0" in base_name:
        raise DocumentError("extends must be the path of one recipe", place)
    base_path = path.parent / base_name
    base = _load_chain(base_path, str(base_path), folder, [*chain, real], inputs, place)
    return _merge(_rebased(base, base_path.parent, path.parent), _without(document, "extends"))


def _relative(path: FilePath, folder: FilePath) -> str:
    """`path` as seen from `folder`, with forward slashes, without touching the file system."""
    return os.path.relpath(path, folder).replace(os.sep, "/")


def _rebased(document: Document, base: FilePath, target: FilePath) -> Document:
    """Relative paths of a base recipe, rewritten to count from the folder of the recipe that extends it."""
    if base.resolve() == target.resolve():
        return document
    value = dict(document.value)
    for field in _FOLDER_RELATIVE:
        holder = value
        for part in field[:-1]:
            inner = holder.get(part)
            if not isinstance(inner, dict):
                break
            holder[part] = holder = dict(inner)
        else:
            name = field[-1]
            said = holder.get(name)
            if isinstance(said, str):
                holder[name] = _rebase_one(field, said, base, target)
            elif isinstance(said, list):
                holder[name] = [_rebase_one(field, x, base, target) if isinstance(x, str) else x for x in said]
    return Document(
        file=document.file, value=value, values=document.values, keys=document.keys, sources=document.sources
    )


def _rebase_one(field: Path, said: str, base: FilePath, target: FilePath) -> str:
    if field != ("data", "files") and not is_path(said):
        return said
    if FilePath(said).is_absolute():
        return said
    return _relative(base / said, target) if field == ("data", "files") else "./" + _relative(base / said, target)


def is_path(text: str) -> bool:
    """Whether a model, weights or tokenizer is a path: it starts with `.`, `/` or `~`, or ends in `.json`."""
    return text.startswith((".", "/", "~")) or text.endswith(".json")


def _without(document: Document, key: str) -> Document:
    value = {k: v for k, v in document.value.items() if k != key}
    return Document(
        file=document.file, value=value, values=document.values, keys=document.keys, sources=document.sources
    )


def _merge(base: Document, over: Document) -> Document:
    values = dict(base.values)
    keys = dict(base.keys)
    merged = _merge_value(base.value, over.value, (), values, keys, over)
    values[()] = over.at(())
    return Document(
        file=over.file, value=merged, values=values, keys=keys, sources={**base.sources, **over.sources}
    )


def _merge_value(
    base: Any, over: Any, path: Path, values: dict[Path, Position], keys: dict[Path, Position], document: Document
) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        merged = dict(base)
        values[path] = document.at(path)
        for key, value in over.items():
            inner = (*path, key)
            keys[inner] = document.at_key(inner)
            merged[key] = _merge_value(base.get(key), value, inner, values, keys, document)
        return merged
    for table in (values, keys):
        for known in [p for p in table if p[: len(path)] == path and (len(p) > len(path) or table is values)]:
            del table[known]
    values.update({p: at for p, at in document.values.items() if p[: len(path)] == path})
    keys.update({p: at for p, at in document.keys.items() if p[: len(path)] == path})
    return over


def _apply_override(document: Document, text: str) -> Document:
    shown = f"--set {text if len(text) <= 80 else text[:77] + '...'}"
    match = _SET.match(text)
    if match is None:
        raise DocumentError("is not PATH=VALUE", Position(shown), help="write for example --set zero.stage=3")
    path: Path = tuple(
        int(index) if index else name for name, index in re.findall(r"([A-Za-z_][\w-]*)|\[(\d+)\]", match[1])
    )
    try:
        given = read_yaml_text(match[2], shown)
    except DocumentError as error:
        raise DocumentError(error.message, Position(shown), help="the value is read as YAML") from None
    values = dict(document.values)
    keys = dict(document.keys)
    place = Position(shown)
    value = _replaced(document.value, path, 0, given.value, place)
    for end in range(1, len(path) + 1):
        values.setdefault(path[:end], place)
        keys.setdefault(path[:end], place)
    for table in (values, keys):
        for known in [p for p in table if len(p) > len(path) and p[: len(path)] == path]:
            del table[known]
    values[path] = keys[path] = place
    for inner in given.values:
        values[path + inner] = place
    for inner in given.keys:
        keys[path + inner] = place
    return Document(
        file=document.file,
        value=value,
        values=values,
        keys=keys,
        sources={**document.sources, shown: shown},
    )


def _replaced(value: Any, path: Path, at: int, new: Any, place: Position) -> Any:
    if at == len(path):
        return new
    part = path[at]
    if isinstance(part, int):
        if not isinstance(value, list) or part >= len(value):
            raise DocumentError(f"there is no item [{part}] to replace", place)
        return [_replaced(x, path, at + 1, new, place) if i == part else x for i, x in enumerate(value)]
    base = value if isinstance(value, dict) else {}
    if isinstance(value, str) and path[:at] in _SHORT_FORMS:
        base = {_SHORT_FORMS[path[:at]]: value}
    return {**base, part: _replaced(base.get(part), path, at + 1, new, place)}
