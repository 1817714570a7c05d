"""Writing a set of files so that either all of them are new or all of them are as before."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path


def write_set(folder: Path, files: Mapping[str, tuple[bytes, bool]], *, remove: Iterable[str] = ()) -> None:
    """Write `files` (name -> (content, executable)) into `folder` and delete the names in `remove`.

    Everything is written beside its target first; then each file is renamed into place, and if any
    rename fails the earlier ones are undone. `folder` is made when it is missing, and taken away
    again if nothing could be written. Names are relative and may hold sub-folders.

    Raises OSError.
    """
    made = _make(folder)
    staging = None
    done: list[tuple[Path, Path | None]] = []
    try:
        staging = Path(tempfile.mkdtemp(prefix=".dsgen-", dir=folder))
        fresh, old = staging / "new", staging / "old"
        for name, (content, executable) in files.items():
            target = fresh / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(target, content, executable)
        for name in (*files, *remove):
            target, kept = folder / name, old / name
            before = None
            if target.is_symlink() or target.exists():
                kept.parent.mkdir(parents=True, exist_ok=True)
                target.rename(kept)
                before = kept
            done.append((target, before))
            if name in files:
                target.parent.mkdir(parents=True, exist_ok=True)
                (fresh / name).rename(target)
        _sync(folder)
    except BaseException:
        for target, before in reversed(done):
            with contextlib.suppress(OSError):
                if before is not None:
                    before.replace(target)
                else:
                    target.unlink(missing_ok=True)
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        for path in reversed(made):
            with contextlib.suppress(OSError):
                path.rmdir()
        raise
    shutil.rmtree(staging, ignore_errors=True)


def _make(folder: Path) -> list[Path]:
    """Make `folder`; return the folders that had to be made, outermost first."""
    missing = []
    at = folder
    while not at.exists():
        missing.append(at)
        at = at.parent
    missing.reverse()
    for path in missing:
        path.mkdir(exist_ok=True)
    return missing


def _write(path: Path, content: bytes, executable: bool) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    mask = os.umask(0)
    os.umask(mask)
    path.chmod((0o777 if executable else 0o666) & ~mask)


def _sync(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every file system can sync a folder
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def replace_file(path: Path, content: bytes) -> None:
    """Give an existing file new content, all of it or nothing; its permissions stay, and a link stays a link.

    Raises OSError.
    """
    real = path.resolve()
    fd, name = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
    fresh = Path(name)
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        shutil.copymode(real, fresh)
        fresh.replace(real)
    except BaseException as error:
        fresh.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk names no file
        raise
