"""The rendered launch.sh as a process: started, asked to stop, ended."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import dsgen
from dsgen.findings import DsgenError

LAUNCHER_LOG = Path("logs") / "launcher.log"
"""Output of launch.sh and of the launcher that it starts, relative to the run folder."""

_PR_SET_PDEATHSIG = 1


def launch_environment(run_dir: Path, base_dir: Path) -> dict[str, str]:
    """What dsgen adds to the environment of launch.sh: folders, the Python to use, a console that stays quiet."""
    added = {
        "DSGEN_RUN_DIR": str(run_dir),
        "DSGEN_BASE_DIR": str(base_dir),
        "DSGEN_CONSOLE": "quiet",
        "PYTHON": sys.executable,
    }
    package = Path(dsgen.__file__).resolve().parent.parent
    if package.name not in ("site-packages", "dist-packages"):
        # A plain checkout: ranks must find dsgen where this process found it.
        others = os.environ.get("PYTHONPATH")
        added["PYTHONPATH"] = f"{package}{os.pathsep}{others}" if others else str(package)
    return added


class Launcher:
    """A running launch.sh.

    It has a session of its own, so that Ctrl-C reaches only this process, which then decides. If this process is
    killed, launch.sh gets a TERM from the kernel: the ranks save and stop, and hold no device without a parent.
    """

    def __init__(self, run_dir: Path, added: Mapping[str, str], arguments: Sequence[str]) -> None:
        """Start `launch.sh` of `run_dir`. Raises DsgenError when there is no bash."""
        log = run_dir / LAUNCHER_LOG
        log.parent.mkdir(parents=True, exist_ok=True)
        libc = ctypes.CDLL(None)

        def die_with_parent() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

        with log.open("ab") as output:
            self.log_start = output.tell()
            try:
                self._process = subprocess.Popen(
                    ["bash", str(run_dir / "launch.sh"), *arguments],
                    env={**os.environ, **added},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            except FileNotFoundError as error:
                raise DsgenError("bash is not installed, which starts the rendered launch.sh") from error
        self.log = log

    def poll(self) -> int | None:
        """Exit code of launch.sh, or None while it runs; a signal N that ended it reads as 128 + N."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def ask_to_stop(self) -> None:
        """Let the ranks save and stop; a second call ends them at once."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int | None:
        """Wait at most `seconds` for the end; returns as `poll` does."""
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        return self.poll()
