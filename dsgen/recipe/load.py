"""From a recipe file to one document: `extends` followed, `--set` applied, positions kept."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

from dsgen.documents.document import Document
from dsgen.documents.errors import DocumentError
from dsgen.documents.positions import Path, Position, dotted, undotted
from dsgen.documents.yaml_reader import read_bytes, read_yaml_bytes, read_yaml_text

MAX_CHAIN = 16
"""Files of a recipe and all that it extends."""

_FOLDER_RELATIVE: tuple[Path, ...] = (
    ("model",),
    ("weights",),
    ("tokenizer",),
    ("data", "files"),
    ("entrypoint",),
    ("entrypoint", "script"),
)
"""Fields that may hold a path relative to the folder of the file that says them."""

_SHORT_FORMS: dict[Path, str] = {
    ("precision",): "type",
    ("zero", "offload", "optimizer"): "device",
    ("zero", "offload", "parameters"): "device",
    ("entrypoint",): "script",
    ("container",): "image",
}
"""Fields whose plain text is short for a mapping with this key, so that another key can be laid beside it."""

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


def load_recipe(path: FilePath, overrides: Iterable[str] = (), *, data: bytes | None = None) -> LoadedRecipe:
    """Read a recipe and everything that it extends; apply `PATH=VALUE` overrides in order.

    Mappings are merged key by key, anything else is replaced; the file that extends wins. `data` is the content of the
    recipe where that is known already.
    Raises DocumentError with a position for whatever cannot be read or followed.
    """
    inputs: list[Input] = []
    document = _load_chain(path, path.parent, (), inputs, data=data)
    loaded = LoadedRecipe(path=path, folder=path.parent, document=document, inputs=tuple(inputs), overrides=())
    return overridden(loaded, overrides)


def overridden(loaded: LoadedRecipe, overrides: Iterable[str]) -> LoadedRecipe:
    """The recipe with more `PATH=VALUE` overrides, applied in order.

    Raises DocumentError for one that cannot be read or applied.
    """
    overrides = tuple(overrides)
    document = loaded.document
    for text in overrides:
        document = _apply_override(document, text)
    return replace(loaded, document=document, overrides=(*loaded.overrides, *overrides))


def _load_chain(
    path: FilePath,
    folder: FilePath,
    chain: tuple[FilePath, ...],
    inputs: list[Input],
    origin: Position | None = None,
    data: bytes | None = None,
) -> Document:
    """The recipe at `path` laid over the one that it extends, and so on; `chain` are the files that led here.

    `origin` is the place of the `extends` that names `path`.
    """
    place = origin or Position(str(path))
    try:
        real = path.resolve()
    except (OSError, RuntimeError, ValueError):
        raise DocumentError("cannot be read: its symbolic links form a cycle", place) from None
    if real in chain:
        names = " -> ".join(each.name for each in (*chain[chain.index(real) :], real))
        raise DocumentError(f"extends a recipe that extends it in turn: {names}", place, help="break the cycle")
    if len(chain) >= MAX_CHAIN:
        raise DocumentError(f"extends more than {MAX_CHAIN - 1} recipes in a row", place)
    try:
        data = read_bytes(path) if data is None else data
    except DocumentError as error:
        if origin is None:
            raise
        raise DocumentError(
            f"extends {str(path)!r}, which {error.message}", origin, help="give the path relative to this file's folder"
        ) from None
    document = read_yaml_bytes(data, str(path))
    inputs.append(Input(name=_relative(path, folder), sha256=hashlib.sha256(data).hexdigest()))
    value = document.value
    if not isinstance(value, dict):
        what = "is empty" if value is None else "holds no mapping at its top"
        raise DocumentError(f"{what}: a recipe is a mapping of fields", document.at(()), help="start with `schema: 1`")
    if "extends" not in value:
        return document
    base_name, base_place = value["extends"], document.at(("extends",))
    if not isinstance(base_name, str) or not base_name:
        raise DocumentError("extends must be the path of one recipe", base_place)
    base_path = path.parent / base_name
    base = _load_chain(base_path, folder, (*chain, real), inputs, base_place)
    own = replace(document, value={key: inner for key, inner in value.items() if key != "extends"})
    return _merged(rebased(base, base_path.parent, path.parent), own)


def _relative(path: FilePath, folder: FilePath) -> str:
    """`path` as seen from `folder`, with forward slashes, without touching the file system."""
    return os.path.relpath(path, folder).replace(os.sep, "/")


def rebased(document: Document, base: FilePath, target: FilePath) -> Document:
    """A recipe of the folder `base` whose relative paths are rewritten to count from the folder `target`."""
    if base.resolve() == target.resolve():
        return document
    value = document.value
    for field in _FOLDER_RELATIVE:
        value = _changed(value, field, functools.partial(_rebase, field, base, target))
    return replace(document, value=value)


def _changed(value: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """The value with what stands at `path`, if anything does, changed."""
    if not path:
        return change(value)
    if not isinstance(value, dict) or path[0] not in value:
        return value
    return {**value, path[0]: _changed(value[path[0]], path[1:], change)}


def _rebase(field: Path, base: FilePath, target: FilePath, said: Any) -> Any:
    if isinstance(said, list):
        return [_rebase(field, base, target, each) for each in said]
    if not isinstance(said, str) or not said.strip() or said.startswith("~") or FilePath(said).is_absolute():
        return said
    if field[0] in ("data", "entrypoint"):
        return _relative(base / said, target)
    return "./" + _relative(base / said, target) if is_path(said) else said


def is_path(text: str) -> bool:
    """Whether a model, weights or tokenizer is a path: it starts with `.`, `/` or `~`, or ends in `.json`."""
    return text.startswith((".", "/", "~")) or text.endswith(".json")


def _merged(base: Document, over: Document) -> Document:
    """`over` laid over `base`; every position is that of the document that says the value."""
    replaced: set[Path] = set()
    lengthened: dict[Path, Path] = {}
    value = _merged_value(base.value, over.value, (), replaced, lengthened)

    def kept(positions: Mapping[Path, Position]) -> dict[Path, Position]:
        old = {
            path: at
            for path, at in positions.items()
            if not any(path[:end] in replaced for end in range(len(path) + 1))
        }
        return old | {long: positions[short] for long, short in lengthened.items()}

    return Document(
        file=over.file,
        value=value,
        values={**kept(base.values), **over.values},
        keys={**kept(base.keys), **over.keys},
        sources={**base.sources, **over.sources},
    )


def _merged_value(base: Any, over: Any, path: Path, replaced: set[Path], lengthened: dict[Path, Path]) -> Any:
    """Notes in `replaced` where a value of `over` stands instead of one of `base`, and in `lengthened` the key that a
    short form of `base` now stands at."""
    if isinstance(base, str) and isinstance(over, dict) and path in _SHORT_FORMS:
        long = (*path, _SHORT_FORMS[path])
        base = {_SHORT_FORMS[path]: base}
        lengthened[long] = path
    if not isinstance(base, dict) or not isinstance(over, dict):
        replaced.add(path)
        return over
    merged = dict(base)
    for key, value in over.items():
        merged[key] = _merged_value(base.get(key), value, (*path, key), replaced, lengthened)
    return merged


def _apply_override(document: Document, text: str) -> Document:
    shown = f"--set {text if len(text) <= 80 else text[:77] + '...'}"
    place = Position(shown)
    match = _SET.match(text)
    if match is None:
        raise DocumentError("is not PATH=VALUE", place, help="write for example --set zero.stage=3")
    path = undotted(match[1])
    if path == ("extends",):
        raise DocumentError("extends is followed before --set is read", place, help="write it into the recipe")
    try:
        given = read_yaml_text(match[2], shown)
    except DocumentError as error:
        raise DocumentError(error.message, place, help="the value is read as YAML") from None
    value = _replaced(document.value, path, 0, given.value, place)

    def moved(old: Mapping[Path, Position], new: Mapping[Path, Position]) -> dict[Path, Position]:
        """Everything in the new value stands in the override, as do the sections that it makes."""
        table = {known: at for known, at in old.items() if known[: len(path)] != path}
        for end in range(1, len(path)):
            table.setdefault(path[:end], place)
        return table | {path + inner: place for inner in new} | {path: place}

    return replace(
        document,
        value=value,
        values=moved(document.values, given.values),
        keys=moved(document.keys, given.keys),
        sources={**document.sources, shown: shown},
    )


def _replaced(value: Any, path: Path, at: int, new: Any, place: Position) -> Any:
    if at == len(path):
        return new
    part = path[at]
    if isinstance(part, int):
        if not isinstance(value, list) or part >= len(value):
            raise DocumentError(f"there is no item {dotted(path[: at + 1])} to replace", place)
        return [_replaced(x, path, at + 1, new, place) if i == part else x for i, x in enumerate(value)]
    if isinstance(value, str) and path[:at] in _SHORT_FORMS:
        value = {_SHORT_FORMS[path[:at]]: value}
    base = value if isinstance(value, dict) else {}
    return {**base, part: _replaced(base.get(part), path, at + 1, new, place)}
