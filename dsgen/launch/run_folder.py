"""Run folders: `runs/NAME/NNN`, numbered from 001, never overwritten."""

from __future__ import annotations

import re
from pathlib import Path

from dsgen.findings import DsgenError

_NUMBER = re.compile(r"[0-9]+")

STARTED = ".started"
"""The rendered launch.sh leaves this file in the folder of a run that was started. It holds the run's base folder."""

_CHECKPOINT = re.compile(r"step-[0-9]+")


def next_run_folder(root: Path, name: str) -> Path:
    """The folder that a new run of `name` would get now; nothing is made."""
    number = max(_numbers(root / name), default=0) + 1
    return root / name / f"{number:03d}"


def new_run_folder(root: Path, name: str) -> Path:
    """Make and return the next free folder; runs that start at the same moment get different ones.

    Raises DsgenError when it cannot be made.
    """
    try:
        (root / name).mkdir(parents=True, exist_ok=True)
        while True:
            folder = next_run_folder(root, name)
            try:
                folder.mkdir()
            except FileExistsError:
                # Another run took the number, unless something that is no folder stands there for good.
                if not folder.is_dir():
                    raise
                continue
            return folder
    except OSError as error:
        raise DsgenError(
            f"no run folder can be made under {root / name}: {error.strerror}",
            help="start from a folder that you can write to, or give --run-dir",
        ) from error


def newest_saved_run(root: Path, name: str) -> Path | None:
    """The run of `name` with the highest number that has a checkpoint, or None."""
    folders = [folder for folder in (root / name).glob("[0-9]*") if _NUMBER.fullmatch(folder.name)]
    return next((f for f in sorted(folders, key=lambda f: int(f.name), reverse=True) if has_checkpoint(f)), None)


def has_checkpoint(folder: Path) -> bool:
    """Whether the run in `folder` has saved a complete checkpoint, or a Trainer in it has."""
    own = any(_CHECKPOINT.fullmatch(path.name) for path in (folder / "checkpoints").glob("step-*"))
    return own or next((folder / "trainer").glob("checkpoint-*"), None) is not None


def was_started(folder: Path) -> bool:
    """Whether a run was started in `folder`."""
    return (folder / STARTED).exists()


def base_of_run(folder: Path) -> Path | None:
    """Where relative paths counted from in the run of `folder`; None when no run was started there."""
    try:
        said = (folder / STARTED).read_text(encoding="utf-8", errors="surrogateescape").removesuffix("\n")
    except OSError:
        return None
    return Path(said) if said else None


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return [int(entry.name) for entry in folder.iterdir() if _NUMBER.fullmatch(entry.name)]
