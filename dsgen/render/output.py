"""Rendered files on disk: writing them as a set, and comparing them with what a recipe renders to now."""

from __future__ import annotations

import difflib
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from dsgen.documents.atomic import write_set
from dsgen.documents.errors import DocumentError
from dsgen.findings import DsgenError
from dsgen.render.files import Rendered
from dsgen.render.lock import LOCK_NAME, digest, read_lock, without_version


@dataclass(frozen=True, kw_only=True)
class Written:
    """What writing did: state by file name (`new`, `changed`, `same`, `removed`), and where hand edits were kept."""

    states: dict[str, str]
    kept_edits: dict[str, str]
    """Rendered file that had been edited by hand -> the file that holds the edit now."""


def write(rendered: Rendered, folder: Path, *, force: bool = False) -> Written:
    """Write the files into `folder` as a set; a failure leaves the folder as it was.

    A file of the same name that no lock of this folder lists is somebody else's: it is refused unless `force`.
    A rendered file that was edited by hand since is kept beside as NAME.orig. A lock that cannot be read is refused
    unless `force`.
    Raises DsgenError.
    """
    try:
        if not folder.is_dir() and (folder.exists() or folder.is_symlink()):
            kind = "a link that leads nowhere" if folder.is_symlink() else "a file, not a folder"
            raise DsgenError(f"{folder} is {kind}")
    except OSError as error:
        raise DsgenError(f"{folder} cannot be a folder: {error.strerror}") from None
    listed = _listed(folder, force=force)
    states: dict[str, str] = {}
    edits: dict[str, bytes] = {}
    foreign: list[str] = []
    for name, data in rendered.files.items():
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            raise DsgenError(f"{path} is a folder; a file is to be written there")
        before = path.read_bytes() if path.is_file() else None
        if before is None:
            states[name] = "new"
        elif before == data:
            states[name] = "same"
        else:
            states[name] = "changed"
            if name == LOCK_NAME:
                continue
            if name not in listed:
                foreign.append(name)
            elif digest(before) != listed[name]:
                edits[name] = before
    if foreign and not force:
        raise DsgenError(
            f"{folder} holds {', '.join(sorted(foreign))}, which dsgen did not render: nothing was written",
            help="choose another folder with -o, or overwrite with --force",
        )
    stale = [name for name in listed if name not in rendered.files and (folder / name).is_file()]
    gone = [name for name in stale if digest((folder / name).read_bytes()) == listed[name]]
    states |= dict.fromkeys(gone, "removed")
    files = {name: (data, rendered.executable(name)) for name, data in rendered.files.items()}
    kept = {name: _free_name(folder, name) for name in edits}
    files |= {kept[name]: (data, False) for name, data in edits.items()}
    try:
        write_set(folder, files, remove=gone)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DsgenError(f"{folder} cannot be written: {reason}; it is as it was") from None
    return Written(states=states, kept_edits=kept)


def _listed(folder: Path, *, force: bool) -> dict[str, str]:
    """Files that the folder's lock lists, with their hashes; none where there is no lock."""
    if not folder.is_dir():
        return {}
    try:
        lock = read_lock(folder)
    except DocumentError as error:
        if force:
            return {}
        raise DsgenError(
            f"{error}: it cannot be told which files of {folder} dsgen rendered, so nothing was written",
            help="overwrite with --force, or choose another folder with -o",
        ) from None
    return dict(lock.files) if lock else {}


def _free_name(folder: Path, name: str) -> str:
    """A name beside `name` that nothing has: NAME.orig, NAME.orig.2, ..."""
    candidates = itertools.chain([f"{name}.orig"], (f"{name}.orig.{number}" for number in itertools.count(2)))
    return next(candidate for candidate in candidates if not (folder / candidate).exists())


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A file that is not what the recipe renders to; `diff` is unified text, from the folder to the recipe."""

    name: str
    what: str
    diff: str


def differences(rendered: Rendered, folder: Path) -> list[Difference]:
    """Files of `folder` that differ from what the recipe renders to now; dsgen's version alone is no difference."""
    found: list[Difference] = []
    for name, data in rendered.files.items():
        path = folder / name
        if not path.is_file():
            found.append(Difference(name=name, what="is missing", diff=""))
            continue
        before = path.read_bytes()
        if name == LOCK_NAME:
            before, data = without_version(before), without_version(data)
        if before != data:
            found.append(Difference(name=name, what="differs", diff=_diff(name, before, data)))
        elif rendered.executable(name) and not os.access(path, os.X_OK):
            found.append(Difference(name=name, what="is not executable", diff=""))
    lock = read_lock(folder)
    for name in sorted(lock.files if lock else ()):
        if name not in rendered.files and (folder / name).is_file():
            found.append(Difference(name=name, what="is left from an earlier rendering", diff=""))
    return found


def _diff(name: str, before: bytes, after: bytes) -> str:
    old = before.decode("utf-8", "replace").splitlines(keepends=True)
    new = after.decode("utf-8", "replace").splitlines(keepends=True)
    lines = difflib.unified_diff(old, new, f"{name} (in the folder)", f"{name} (from the recipe)")
    return "".join(line if line.endswith("\n") else line + "\n\\ no newline at the end\n" for line in lines)
