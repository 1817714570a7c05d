"""Room for checkpoints where runs stand."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from dsgen.doctor.check import Check, Subject, ok, warning
from dsgen.doctor.words import GIB, size

LEAST_BYTES = GIB
"""Logs and a first checkpoint of a small model; with less nothing is worth starting."""


def checkpoint_bytes(parameters: int, trainable_parameters: int) -> int:
    """One checkpoint: 16-bit weights of everything, fp32 weights and two moments of what is trained."""
    return 2 * parameters + 12 * trainable_parameters


def existing_parent(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def check_disk(subject: Subject) -> Iterator[Check]:
    """Free space where the run's folder is made."""
    name, plan = "disk", subject.plan
    folder = existing_parent(subject.run_dir or Path.cwd() / "runs")
    free = shutil.disk_usage(folder).free
    found = f"{size(free)} are free in {folder}"
    remedy = "make room, or start in another folder (--run-dir)"
    if free < LEAST_BYTES:
        yield subject.wrong(name, found, remedy)
        return
    if plan is None:
        yield ok(name, found)
        return
    one = checkpoint_bytes(plan.parameters.total, plan.trainable_parameters)
    # A new one is whole before the oldest is removed.
    kept = plan.save_keep + 1 if plan.save_keep else 1
    if free < one:
        found += f", and one checkpoint takes about {size(one)}: the run would train and could not save"
        yield subject.wrong(name, found, remedy)
    elif free < one * kept:
        found += f"; {kept} checkpoints of about {size(one)} each do not fit (keep: {plan.save_keep})"
        yield warning(name, found, f"{remedy}, or keep fewer (--set checkpoint.keep={max(1, int(free // one) - 1)})")
    else:
        each = "" if plan.save_keep else ", and all are kept"
        yield ok(name, f"{found}; a checkpoint takes about {size(one)}{each}")
