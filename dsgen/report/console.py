"""Text for people: colour on a terminal, plain lines into a pipe."""

from __future__ import annotations

import os
import unicodedata

import click


def say(text: str = "", *, style: str = "", err: bool = False) -> None:
    """Print a line to standard output or error. `style` is a colour, with `bold ` before it or not.

    Colour appears on terminals only, and never when NO_COLOR is set.
    """
    if style:
        text = click.style(text, fg=style.removeprefix("bold "), bold=style.startswith("bold "))
    click.echo(text, err=err, color=False if os.environ.get("NO_COLOR") else None)


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows as aligned columns, two spaces between them; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def in_bytes(number: float | None) -> str:
    """A number of bytes for people: GiB from 1 GiB on, MiB below; `-` when it is not known."""
    if number is None:
        return "-"
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def printable(text: str) -> str:
    """Text without characters that would move a terminal's cursor or change its colours."""
    return "".join(c if c.isprintable() or c == " " else c.encode("unicode_escape").decode() for c in text)


def cells(text: str) -> int:
    """Columns that a text takes on a terminal: wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
