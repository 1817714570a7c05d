"""What a check says: findings, errors that carry them, and exit codes. Nothing here prints."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dsgen.documents.positions import Path, Position


class ExitCode(enum.IntEnum):
    """Exit codes of every command."""

    OK = 0
    FINDINGS = 1
    """Something is wrong with what was checked, or it does not fit, or files differ."""
    USAGE = 2
    """Wrong use, or an input that cannot be read."""
    FAULT = 3
    """A fault of dsgen itself."""
    INTERRUPTED = 130


class Severity(str, enum.Enum):
    """How bad a finding is; only errors make a command refuse."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One change of a document that mends what a finding is about, by the paths of the document."""

    action: Literal["rename", "set", "move", "remove"]
    path: Path
    """Of the key that is renamed, moved or removed, or of the value that is set."""
    to: Path = ()
    """The new path: rename changes its last part only."""
    value: Any = None
    """What `set` writes."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found.

    `path` is dotted and in the words of the document (`zero.stage`, `zero_optimization.stage`);
    `message` says what is wrong and what would happen, `help` what to write instead.
    """

    code: str
    severity: Severity
    message: str
    position: Position
    path: str = ""
    help: str = ""
    fix: tuple[Edit, ...] = ()
    """Changes that are safe to make without asking; empty when a person has to decide."""


class DsgenError(Exception):
    """A failure that the user can mend; carries what to tell them and the exit code."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, *, help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help


class FindingsError(DsgenError):
    """A document holds errors; `findings` are all of them, warnings and infos included.

    `sources` is the text of the files that the findings point into, for showing the line.
    """

    exit_code = ExitCode.FINDINGS

    def __init__(self, findings: Iterable[Finding], *, sources: Mapping[str, str]) -> None:
        self.findings = tuple(findings)
        self.sources = sources
        errors = [f for f in self.findings if f.severity is Severity.ERROR]
        super().__init__("\n".join(f"{f.position}: {f.code} {f.message}" for f in errors))


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(f.severity is Severity.ERROR for f in findings)
