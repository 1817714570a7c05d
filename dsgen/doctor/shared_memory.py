"""DeepSpeed's CPU buffers in /dev/shm: what other runs left there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from dsgen.doctor.check import Check, Subject, ok, warning
from dsgen.doctor.words import size

_PATTERN = "deepspeed_allreduce_buffer_*"


def leaked_buffers(shm: Path = Path("/dev/shm"), proc: Path = Path("/proc")) -> list[Path]:
    """Buffers that no process has mapped: nobody will ever use or remove them.

    A buffer of a process that this user may not look into counts as used.
    """
    buffers = sorted(shm.glob(_PATTERN))
    if not buffers:
        return []
    mapped: set[str] = set()
    hidden_users: set[int] = set()
    for process in proc.glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            try:
                maps = (process / "maps").read_text(errors="replace")
            except PermissionError:
                hidden_users.add(process.stat().st_uid)
                continue
            mapped |= {line.rsplit("/", 1)[-1] for line in maps.splitlines() if "/deepspeed_allreduce_buffer_" in line}
    leaked = []
    for path in buffers:
        with contextlib.suppress(FileNotFoundError):
            if path.name not in mapped and path.stat().st_uid not in hidden_users:
                leaked.append(path)
    return leaked


def check_shared_memory(subject: Subject) -> Iterator[Check]:
    """What killed CPU runs left in /dev/shm: it is memory that nobody gets back."""
    name, leaked = "shared_memory", leaked_buffers()
    total = 0
    for path in leaked:
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    if leaked:
        yield warning(
            name,
            f"{len(leaked)} buffers of killed DeepSpeed runs hold {size(total)} of memory in /dev/shm",
            f"rm {leaked[0].parent}/{_PATTERN} when no other job runs here",
        )
    else:
        yield ok(name, "no buffer of a killed run in /dev/shm")
