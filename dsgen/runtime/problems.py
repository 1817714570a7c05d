"""What goes wrong in a training run and can be mended by its user."""

from __future__ import annotations

import errno
from pathlib import Path


class RuntimeProblem(Exception):
    """A failure with a known cause: the console shows `message` and `help`, and no traceback.

    `help` says what to do; it may be empty. A rank that ends with one exits with `exit_code`.
    """

    exit_code = 2

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help


def as_problem(error: BaseException, run_dir: Path) -> BaseException:
    """`error`, or the problem that it stands for: an OSError of a full disk can be mended by the user."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or run_dir
        return RuntimeProblem(
            f"no room is left on the disk of {where}: {error.strerror}",
            "the checkpoints of this run are whole: make room and start again with --resume auto",
        )
    return error
