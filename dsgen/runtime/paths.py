"""Paths as a recipe says them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def local_path(base_dir: Path, name: str) -> Path:
    """The path that `name` means: `~` is the home folder, a relative one counts from `base_dir`."""
    path = Path(name)
    # There may be no such user; then the path is missed under the name that was given.
    with suppress(RuntimeError):
        path = path.expanduser()
    return base_dir / path
