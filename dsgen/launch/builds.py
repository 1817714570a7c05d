"""Operator builds: DeepSpeed compiles C++ the first time it runs on a machine, for minutes, and says nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def extensions_root(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder in which torch builds extensions."""
    said = environ.get("TORCH_EXTENSIONS_DIR")
    if said:
        return Path(said)
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".cache"
    return Path(cache) / "torch_extensions"


def operators_in_build(root: Path) -> list[str]:
    """Names of the operators that are being built under `root` now: torch holds a lock file for each."""
    return sorted({lock.parent.name for pattern in ("*/lock", "*/*/lock") for lock in root.glob(pattern)})
