"""What doctor's quick checks say of this machine, as findings about the recipe that is to be launched."""

from __future__ import annotations

from pathlib import Path

from dsgen.doctor.check import State, Subject
from dsgen.doctor.examine import examine
from dsgen.doctor.probe import Machine
from dsgen.documents.document import Document
from dsgen.findings import Finding, Severity
from dsgen.recipe.plan import Plan

# What dsgen.launch.checks says at the place of the recipe that decides it.
_SAID_ALREADY = ("python", "mask", "disk", "shared_memory", "builds.locks", "builds.tools", "accelerator")
_OF_THIS_NODE = ("devices", "container")

_SEVERITIES = {State.ERROR: Severity.ERROR, State.WARNING: Severity.WARNING}


def examined(plan: Plan, document: Document, folder: Path) -> tuple[Finding, ...]:
    """Errors and warnings of the quick checks; `folder` is where the recipe's relative paths count from.

    Of a job of several nodes this machine may be no part: its devices are then left to doctor itself.
    """
    left_out = _SAID_ALREADY + (_OF_THIS_NODE if plan.nodes > 1 else ())
    checks = examine(Subject(probe=Machine(), plan=plan, folder=folder, quick=True))
    return tuple(
        Finding(
            code=check.name,
            severity=_SEVERITIES[check.state],
            message=check.found,
            position=document.at(()),
            path="",
            help=check.remedy,
        )
        for check in checks
        if check.state in _SEVERITIES and not {check.name, check.name.split(".")[0]} & set(left_out)
    )
