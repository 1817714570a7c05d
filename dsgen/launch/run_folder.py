"""Run folders: `runs/NAME/NNN`, numbered from 001, never overwritten."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from dsgen.findings import DsgenError
from dsgen.memory.measured import ESTIMATE

_NUMBER = re.compile(r"[0-9]+")

STARTED = ".started"
"""The rendered launch.sh leaves this file in the folder of a run that was started. It holds the run's base folder."""

EVENTS = "events.jsonl"
"""Written by every run of dsgen.runtime."""

_CHECKPOINT = re.compile(r"step-[0-9]+")
_NEVER_A_CHECKPOINT = {
    *("ds_config.json", "settings.json", "launch.sh", "container.sh", "hostfile", "dsgen.lock.yaml", "__pycache__"),
    *("logs", "errors", "memory", "tokens", "trainer", EVENTS, "metrics.jsonl", "report.json", "stop", ESTIMATE),
}
"""What rendering, launching, dsgen.runtime and a Trainer put into a run folder."""


def next_run_folder(root: Path, name: str) -> Path:
    """The folder that a new run of `name` would get now; nothing is made."""
    number = max(_numbers(root / name), default=0) + 1
    return root / name / f"{number:03d}"


def new_run_folder(root: Path, name: str, *, help: str) -> Path:
    """Make and return the next free folder; runs that start at the same moment get different ones.

    Raises DsgenError, with `help`, when it cannot be made.
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
        raise DsgenError(f"no run folder can be made under {root / name}: {error.strerror}", help=help) from error


def newest_saved_run(root: Path, name: str) -> Path | None:
    """The run of `name` with the highest number that has a checkpoint, or None."""
    return _newest(root / name, has_checkpoint)


def newest_run_of_script(root: Path, name: str) -> Path | None:
    """The run of `name` that the user's own script may go on from, or None.

    That is the newest with a checkpoint that dsgen knows; else the newest in which the script left anything; else the
    newest whose script does not use dsgen.runtime, and may have saved elsewhere.
    """
    return (
        newest_saved_run(root, name)
        or _newest(root / name, lambda folder: bool(left_by_script(folder)))
        or _newest(root / name, lambda folder: was_started(folder) and not (folder / EVENTS).exists())
    )


def _newest(runs: Path, fits: Callable[[Path], bool]) -> Path | None:
    folders = [folder for folder in runs.glob("[0-9]*") if _NUMBER.fullmatch(folder.name)]
    return next((f for f in sorted(folders, key=lambda f: int(f.name), reverse=True) if fits(f)), None)


def has_checkpoint(folder: Path) -> bool:
    """Whether the run in `folder` has saved a complete checkpoint, or a Trainer in it has."""
    own = any(_CHECKPOINT.fullmatch(path.name) for path in (folder / "checkpoints").glob("step-*"))
    return own or next((folder / "trainer").glob("checkpoint-*"), None) is not None


def left_by_script(folder: Path) -> list[str]:
    """Names in a run folder that only the user's own script can have put there: among them may be its checkpoints."""
    if not was_started(folder):
        return []
    names = sorted(
        entry.name + "/" * entry.is_dir()
        for entry in folder.iterdir()
        if entry.name not in _NEVER_A_CHECKPOINT and not entry.name.startswith(".") and entry.suffix != ".py"
    )
    # dsgen.runtime leaves half a checkpoint behind when it is killed.
    if not any(entry.suffix != ".partial" and entry.name != "latest" for entry in (folder / "checkpoints").glob("*")):
        names = [name for name in names if name != "checkpoints/"]
    return names


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
