"""DeepSpeed's CPU buffers in /dev/shm: what other runs left there."""

from __future__ import annotations

import contextlib
from pathlib import Path

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
