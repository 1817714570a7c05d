"""Settings of a project: `.dsgen.yaml`, or `[tool.dsgen]` of pyproject.toml, in the folder of a file or above it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from dsgen.catalog.lookup import nearest
from dsgen.documents.document import Document
from dsgen.documents.errors import DocumentError
from dsgen.documents.positions import Position
from dsgen.documents.yaml_reader import read_bytes, read_yaml_file


@dataclass(frozen=True, kw_only=True)
class Project:
    """What a project says for every lint in it; an option of the command line comes before it."""

    file: str = ""
    folder: Path = Path()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """Glob patterns of files that are left out of folders; they count from the project's folder."""
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Glob pattern -> codes that are left out there as well."""
    deepspeed: str | None = None
    framework: str | None = None
    world_size: int | None = None
    device: str | None = None
    model: str | None = None
    client_optimizer: str | None = None

    def ignored_in(self, path: Path) -> tuple[str, ...]:
        """The codes that are left out in one file."""
        return self.ignore + tuple(
            code for pattern, codes in self.per_file_ignores.items() if self._matches(path, pattern) for code in codes
        )

    def excludes(self, path: Path) -> bool:
        """Whether a file that was found in a folder is left out."""
        return any(self._matches(path, pattern) for pattern in self.exclude)

    def _matches(self, path: Path, pattern: str) -> bool:
        try:
            name = path.resolve().relative_to(self.folder).as_posix()
        except ValueError:
            return False
        return fnmatch(name, pattern) or fnmatch(path.name, pattern) or name.startswith(pattern.rstrip("/") + "/")


@functools.cache
def project_of(folder: Path) -> Project:
    """The settings that hold in a folder (absolute): those of the nearest file above, else none.

    Raises DocumentError when they cannot be read or say something unknown.
    """
    for each in (folder, *folder.parents):
        own = each / ".dsgen.yaml"
        if _is_file(own):
            document = read_yaml_file(own)
            return _project(document, document.value if document.value is not None else {}, each)
        toml = each / "pyproject.toml"
        if _is_file(toml) and b"[tool.dsgen" in (data := read_bytes(toml)):
            return _project(Document(file=str(toml), value=None), _tool_table(data, toml), each)
    return Project()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except PermissionError:
        return False


def _tool_table(data: bytes, path: Path) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(data.decode("utf-8"))["tool"]["dsgen"]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DocumentError(f"is not TOML: {error}", Position(str(path))) from None


_LISTS = ("select", "ignore", "exclude")
_TEXTS = ("deepspeed", "framework", "device", "model", "client_optimizer")
_KNOWN = (*_LISTS, *_TEXTS, "per_file_ignores", "world_size")


def _project(document: Document, value: Any, folder: Path) -> Project:
    def bad(name: str, expected: str) -> DocumentError:
        return DocumentError(f"{name}: expected {expected}", document.at((name,)))

    if not isinstance(value, Mapping):
        raise DocumentError("expected a mapping of settings", document.at(()))
    said: dict[str, Any] = {}
    for key, item in value.items():
        name = str(key).replace("-", "_")
        if name not in _KNOWN:
            near = nearest(name, _KNOWN, 1)
            raise DocumentError(
                f"unknown setting {key!r}",
                document.at_key((key,)),
                help=f"did you mean {near[0].replace('_', '-')}?"
                if near
                else f"known: {', '.join(_KNOWN).replace('_', '-')}",
            )
        if name in _LISTS:
            said[name] = _texts(item)
            if said[name] is None:
                raise bad(str(key), "a list of texts")
        elif name in _TEXTS:
            if not isinstance(item, (str, int, float)) or isinstance(item, bool):
                raise bad(str(key), "text")
            said[name] = str(item)
        elif name == "world_size":
            if not isinstance(item, int) or isinstance(item, bool) or item < 1:
                raise bad(str(key), "a whole number of at least 1")
            said[name] = item
        else:
            table = {pattern: _texts(codes) for pattern, codes in item.items()} if isinstance(item, Mapping) else None
            if table is None or None in table.values():
                raise bad(str(key), "a mapping from file patterns to lists of codes")
            said[name] = table
    if said.get("framework") not in (None, "native", "transformers"):
        raise bad("framework", "native or transformers")
    return Project(file=document.file, folder=folder, **said)


def _texts(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        value = [value]
    return tuple(value) if isinstance(value, list) and all(isinstance(each, str) for each in value) else None
