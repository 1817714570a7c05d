"""Where a rank's output goes: its log file, and a console that stays clean."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

CONSOLE_VARIABLE = "DSGEN_CONSOLE"


class Console:
    """The terminal that started the run, kept apart from the ranks' own output.

    `DSGEN_CONSOLE=lines` (the default) shows one line per logged step; `quiet` shows nothing, for a parent process
    that draws the progress from the run's files.
    """

    def __init__(self) -> None:
        self.quiet = os.environ.get(CONSOLE_VARIABLE, "lines") == "quiet"
        self.redirected = False
        self._out: TextIO = sys.stdout
        self._err: TextIO = sys.stderr

    def redirect(self, log: Path) -> None:
        """Send everything that this process and its libraries write to stdout and stderr to `log`, appended.

        The file descriptors themselves are redirected, so that output of C code goes there too.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        self._out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8", errors="replace")
        self._err = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="replace")
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(line_buffering=True, encoding="utf-8", errors="replace")
        self.redirected = True
        print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} process {os.getpid()} on {os.uname().nodename}")

    def line(self, text: str) -> None:
        """One line for the person who watches."""
        if not self.quiet:
            self._write(self._out, text)

    def error(self, text: str) -> None:
        """What went wrong, also into the log."""
        if self.redirected:
            # A full disk must not keep the message from the console.
            with suppress(OSError):
                print(text, file=sys.stderr, flush=True)
        if not self.quiet or not self.redirected:
            self._write(self._err, text)

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        try:
            stream.write(text + "\n")
            stream.flush()
        except (OSError, ValueError):
            # A closed terminal must not end a training run.
            pass
