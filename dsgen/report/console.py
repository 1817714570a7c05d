"""Consoles: colour and tables on a terminal, plain lines into a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """A rich console on standard output or error; NO_COLOR is respected, a pipe gets no colour and no markup."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    return Console(stderr=stderr, highlight=False, soft_wrap=True, width=width, markup=False)


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows as aligned columns, two spaces between them; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def in_bytes(number: float | None) -> str:
    """A number of bytes for people: GiB from 1 GiB on, MiB below; `-` when it is not known."""
    if number is None:
        return "-"
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"
