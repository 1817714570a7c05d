"""Where checks look: commands, files, variables and packages of this machine, or what was captured on another one.

A command that hangs is left behind after its time limit. Nothing here raises for what is missing.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

SECONDS = 10.0
"""How long a command may take."""

_MAX_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a command said on both streams."""

    text: str = ""
    problem: str = ""
    """Why the text may be nothing to rely on: an exit code, the time limit; empty when the command ended well."""
    missing: bool = False
    """Whether there is no such command here, or none was captured."""


class Probe(Protocol):
    """Where checks look."""

    live: bool
    """Whether it is the machine that this process runs on."""
    knows_environment: bool
    """Whether variables can be asked for at all."""
    knows_packages: bool

    def run(self, *words: str, seconds: float = SECONDS, text: str = "") -> Output:
        """A command's output; `text` is its standard input. The same command is run once."""

    def has_program(self, name: str) -> bool:
        """Whether a program of that name would be found, or something of it was captured."""

    def read(self, path: str) -> str | None:
        """At most the first MiB of a file as text; None when it cannot be read."""

    def may_use(self, path: str) -> bool:
        """Whether this user may read and write what stands there."""

    def glob(self, pattern: str) -> list[str]:
        """The paths that an absolute pattern matches, sorted."""

    def variable(self, name: str) -> str | None:
        """An environment variable."""

    def version(self, package: str) -> str | None:
        """The version of an installed Python package, without its local part (`2.13.0` of `2.13.0+cpu`)."""


class Machine:
    """This machine. Tests give it another root and another environment."""

    live = True
    knows_environment = True
    knows_packages = True

    def __init__(self, *, root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> None:
        self._root = root
        self._environ = environ
        self._lock = threading.Lock()
        self._running: dict[tuple[str, ...], threading.Lock] = {}
        self._outputs: dict[tuple[str, ...], Output] = {}

    def run(self, *words: str, seconds: float = SECONDS, text: str = "") -> Output:
        """See Probe."""
        key = (*words, text)
        with self._lock:
            own = self._running.setdefault(key, threading.Lock())
        with own:
            if key not in self._outputs:
                self._outputs[key] = _run(words, self._environ, seconds, text)
            return self._outputs[key]

    def has_program(self, name: str) -> bool:
        """See Probe."""
        return shutil.which(name, path=self._environ.get("PATH", os.defpath)) is not None

    def read(self, path: str) -> str | None:
        """See Probe."""
        return _read(self._root / path.lstrip("/"))

    def may_use(self, path: str) -> bool:
        """See Probe."""
        return os.access(self._root / path.lstrip("/"), os.R_OK | os.W_OK)

    def glob(self, pattern: str) -> list[str]:
        """See Probe."""
        with contextlib.suppress(OSError, ValueError):
            found = sorted(self._root.glob(pattern.lstrip("/")))
            return ["/" + str(path.relative_to(self._root)) for path in found]
        return []

    def variable(self, name: str) -> str | None:
        """See Probe."""
        return self._environ.get(name)

    def version(self, package: str) -> str | None:
        """See Probe."""
        with contextlib.suppress(Exception):  # a broken installation raises whatever its files provoke
            return str(importlib.metadata.version(package)).partition("+")[0] or None
        return None


class Captured:
    """Outputs and files that were captured on another machine, in one folder; the rules are in docs/doctor.md.

    The output of a command stands in a file that is named by its words joined with `-`, without the dashes that
    options begin with (`npu-smi-info-m.txt`), or below a line `# npu-smi info -m` of any .txt file. A file stands under
    its own name, or with its folder's name before it (`driver-version.info`). `environment.txt` holds NAME=VALUE
    lines, `packages.txt` NAME==VERSION lines.
    """

    live = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = sorted(path.name for path in folder.iterdir() if path.is_file())
        self._sections: dict[str, list[str]] = {}
        for name in self._names:
            if name.endswith(".txt"):
                self._take_sections(_read(folder / name) or "")
        environment, packages = _read(folder / "environment.txt"), _read(folder / "packages.txt")
        self._environ = dict(re.findall(r"^([A-Za-z_]\w*)=(.*)$", environment or "", re.MULTILINE))
        versions = re.findall(r"^([\w.-]+)==([^\s;+]+)", packages or "", re.MULTILINE)
        self._versions = {_package(name): version for name, version in versions}
        # An empty file tells that there is nothing; one of which no line has the form tells nothing.
        self.knows_environment = environment is not None and bool(self._environ or not environment.strip())
        self.knows_packages = packages is not None and bool(self._versions or not packages.strip())

    @property
    def holds_something(self) -> bool:
        """Whether any file has a name that checks ask for."""
        known = re.compile(
            r"(environment|packages|hccn_tool.*|npu-smi.*|nvidia-smi.*)\.txt|hccn\.conf|ascend_.*_install\.info|.*version\.info"
        )
        return any(known.fullmatch(name) for name in self._names)

    def _take_sections(self, text: str) -> None:
        command = None
        for line in text.splitlines():
            heading = re.match(r"# *([\w./-]+(?: +[^ ]+)*) *$", line)
            if heading:
                command = " ".join(heading[1].split())
                self._sections.setdefault(command, [])
            elif command is not None:
                self._sections[command].append(line)

    def run(self, *words: str, seconds: float = SECONDS, text: str = "") -> Output:
        """See Probe."""
        said = _read(self._folder / captured_name(*words))
        if said is None and " ".join(words) in self._sections:
            said = "\n".join(self._sections[" ".join(words)])
        return Output(problem="not captured", missing=True) if said is None else Output(text=said)

    def has_program(self, name: str) -> bool:
        """See Probe."""
        return any(file.startswith(name) for file in self._names) or any(
            command.split()[0] == name for command in self._sections
        )

    def read(self, path: str) -> str | None:
        """See Probe."""
        parts = Path(path).parts
        for name in (f"{parts[-2]}-{parts[-1]}" if len(parts) > 1 else "", parts[-1] if parts else ""):
            if name in self._names:
                return _read(self._folder / name)
        return None

    def may_use(self, path: str) -> bool:
        """See Probe. Nothing is known of rights there."""
        return True

    def glob(self, pattern: str) -> list[str]:
        """See Probe. Captured files have no folders: the last part of the pattern decides (.info, .conf)."""
        last = Path(pattern).name
        return [f"/{name}" for name in self._names if last.endswith((".info", ".conf")) and Path(name).match(last)]

    def variable(self, name: str) -> str | None:
        """See Probe."""
        return self._environ.get(name)

    def version(self, package: str) -> str | None:
        """See Probe."""
        return self._versions.get(_package(package))


def captured_name(*words: str) -> str:
    """The file that holds the captured output of a command."""
    return re.sub(r"[^\w.=,-]", "_", "-".join(word.lstrip("-") for word in words)) + ".txt"


def _package(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _read(path: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError), path.open("rb") as stream:
        return stream.read(_MAX_BYTES).decode("utf-8", "replace")
    return None


def _run(words: tuple[str, ...], environ: Mapping[str, str], seconds: float, text: str) -> Output:
    program = shutil.which(words[0], path=environ.get("PATH", os.defpath))
    if program is None:
        return Output(problem=f"{words[0]} is not on PATH", missing=True)
    try:
        process = subprocess.Popen(
            [program, *words[1:]],
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as problem:
        return Output(problem=f"{words[0]} cannot be started: {problem}", missing=True)
    try:
        said, _ = process.communicate(text.encode(), timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process that waits inside a driver does not end; waiting for it would hang this one too.
        said = b""
        with contextlib.suppress(subprocess.TimeoutExpired):
            said, _ = process.communicate(timeout=1)
        return Output(text=_decode(said), problem=f"no answer within {seconds:.0f} s")
    code = process.returncode
    return Output(text=_decode(said), problem="" if code == 0 else f"it ended with exit code {code}")


def _decode(said: bytes | None) -> str:
    return (said or b"")[:_MAX_BYTES].decode("utf-8", "replace")
