"""What doctor's quick checks say of this machine, as findings about the recipe that is to be launched."""

from __future__ import annotations

from pathlib import Path

from dsgen.doctor.check import State, Subject
from dsgen.doctor.examine import examine
from dsgen.doctor.probe import Machine, Probe
from dsgen.documents.document import Document
from dsgen.documents.positions import undotted
from dsgen.findings import Finding, Severity
from dsgen.recipe.plan import Plan

_PLACES = {
    "cann.environment": "hardware.device",
    "accelerator": "hardware.device",
    "devices.kind": "hardware.device",
    "devices.count": "hardware.per_node",
    "container.devices": "hardware.per_node",
    "mask": "hardware.per_node",
    "memory.host": "hardware.host_memory",
    "inputs.data": "data.files",
    "inputs.entrypoint": "entrypoint",
    "inputs.weights": "weights",
    "inputs.tokenizer": "tokenizer",
}
"""Check -> the field of the recipe that decides it."""

_MENDED = ("builds.locks",)
"""What launch.sh mends by itself."""

_OF_THIS_NODE = ("devices", "container")

_SEVERITIES = {State.ERROR: Severity.ERROR, State.WARNING: Severity.WARNING}


def check_machine(
    plan: Plan, document: Document, folder: Path, run_dir: Path, *, packages: bool = True, probe: Probe | None = None
) -> tuple[Finding, ...]:
    """Every reason why a job cannot run here, and what may hurt it; the code of a finding is the name of the check.

    `folder` is where the recipe's relative paths count from, `run_dir` where the run's folder is or will be.
    `packages=False` leaves out what is installed later. Packages are looked for, never imported. Of a job of several
    nodes this machine may be no part: its devices are then left to doctor itself.
    """
    left_out = {*_MENDED, *(_OF_THIS_NODE if plan.nodes > 1 else ())}
    subject = Subject(
        probe=probe or Machine(), plan=plan, folder=folder, run_dir=run_dir, quick=True, installs=not packages
    )
    return tuple(
        Finding(
            code=check.name,
            severity=_SEVERITIES[check.state],
            message=check.found,
            position=document.at(undotted(_PLACES.get(check.name, ""))),
            path=_PLACES.get(check.name, ""),
            help=check.remedy,
        )
        for check in examine(subject)
        if check.state in _SEVERITIES and not {check.name, check.name.split(".")[0]} & left_out
    )
