"""What goes wrong in a training run and can be mended by its user."""

from __future__ import annotations


class RuntimeProblem(Exception):
    """A failure with a known cause: the console shows `message` and `help`, and no traceback.

    `help` says what to do; it may be empty. A rank that ends with one exits with `exit_code`.
    """

    exit_code = 2

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help
