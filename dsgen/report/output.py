"""What a command prints, into a file instead."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

from dsgen.documents.atomic import replace_file, write_set
from dsgen.findings import DsgenError
from dsgen.report.console import printable, say


@contextlib.contextmanager
def printed_to(target: Path | None, *, inputs: tuple[Path | None, ...] = ()) -> Iterator[None]:
    """What is printed inside goes into `target`, all of it or nothing; to standard output where that is None or `-`.

    An existing file is overwritten, but none of `inputs`. Raises DsgenError when the file cannot be written.
    """
    if target is None or str(target) == "-":
        yield
        return
    shown = printable(str(target))
    text = io.StringIO()
    with _told(shown):
        _check(target, shown, inputs)
    with contextlib.redirect_stdout(text):
        yield
    content = text.getvalue().encode("utf-8", "backslashreplace")
    with _told(shown):
        if target.exists():
            replace_file(target, content)
        else:
            write_set(target.parent, {target.name: (content, False)})
    say(f"written to {shown}", err=True)


@contextlib.contextmanager
def _told(shown: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DsgenError(f"--output {shown} cannot be written: {error.strerror or error}") from None


def _check(target: Path, shown: str, inputs: tuple[Path | None, ...]) -> None:
    folder = target.parent
    if not folder.is_dir():
        kind = "is no folder" if folder.exists() else "does not exist"
        raise DsgenError(
            f"--output {shown}: the folder {printable(str(folder))} {kind}; nothing was written",
            help="make the folder first, or name a file in one that exists",
        )
    if target.is_symlink() and not target.exists():
        raise DsgenError(f"--output {shown} is a link that leads nowhere; nothing was written")
    if target.exists() and not target.is_file():
        raise DsgenError(
            f"--output {shown} is no plain file; nothing was written", help="leave --output out, and redirect with >"
        )
    for each in inputs:
        if each is not None and target.exists() and each.exists() and target.samefile(each):
            raise DsgenError(
                f"--output {shown} is the file that is estimated; nothing was written", help="name another file"
            )
