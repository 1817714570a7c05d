"""Numbers in words that people read."""

from __future__ import annotations

from collections.abc import Iterable

GIB = 2**30
MIB = 2**20


def size(number: float) -> str:
    """A number of bytes: GiB from 1 GiB on, MiB below."""
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / MIB:.0f} MiB"


def listed(values: Iterable[object]) -> str:
    """Values with commas between them."""
    return ", ".join(map(str, values))
