"""Rendered files on disk: writing them as a set, and comparing them with what a recipe renders to now."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from dsgen.documents.atomic import write_set
from dsgen.findings import DsgenError
from dsgen.render.files import Rendered
from dsgen.render.lock import LOCK_NAME, digest, read_lock, without_version


@dataclass(frozen=True, kw_only=True)
class Written:
    """What writing did: state by file name (`new`, `changed`, `same`, `removed`), and the hand edits kept aside."""

    states: dict[str, str]
    kept_edits: tuple[str, ...]


def write(rendered: Rendered, folder: Path, *, force: bool = False) -> Written:
    """Write the files into `folder` as a set; a failure leaves the folder as it was.

    A file of the same name that no lock of this folder lists is somebody else's: it is refused unless `force`.
    A rendered file that was edited by hand since is kept beside as NAME.orig.
    Raises DsgenError.
    """
    if folder.exists() and not folder.is_dir():
        raise DsgenError(f"{folder} is a file, not a folder")
    lock = read_lock(folder) if folder.is_dir() else None
    listed = dict(lock.files) if lock else {}
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
    files |= {f"{name}.orig": (data, False) for name, data in edits.items()}
    try:
        write_set(folder, files, remove=gone)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DsgenError(f"{folder} cannot be written: {reason}; it is as it was") from None
    return Written(states=states, kept_edits=tuple(sorted(edits)))


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
