"""What a lint is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsgen.dsconfig.job import Job
from dsgen.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Options:
    """The job that configs are judged for, and which rules are listened to."""

    job: Job = field(default_factory=Job)
    select: tuple[str, ...] = ()
    """Codes, or beginnings of codes; empty for every rule."""
    ignore: tuple[str, ...] = ()
    """Codes, or beginnings of codes, that are left out."""

    def wants(self, finding: Finding) -> bool:
        """Whether a finding is asked for; what cannot be read always is."""
        return finding.code == UNREADABLE or self.wants_code(finding.code)

    def wants_code(self, code: str) -> bool:
        """Whether the findings of a code are asked for."""
        return code.startswith(self.select or ("",)) and not code.startswith(self.ignore or ("\0",))


UNREADABLE = "DOC001"
"""Code of the finding that a file cannot be read."""
