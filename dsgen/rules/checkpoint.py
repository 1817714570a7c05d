"""Saving the training state."""

from __future__ import annotations

from collections.abc import Iterator

from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View


@rule("CKP001", Severity.WARNING)
def keeping_needs_saving(view: View) -> Iterator[Problem]:
    """A number of checkpoints to keep in a training that saves at its end at most.

    There is never more than one checkpoint then, and nothing to remove.

    Example (recipe):
        checkpoint: {at_end: true, keep: 3}

    Instead:
        checkpoint: {every: 30min, keep: 3}

    Since: dsgen 0.1
    """
    if view.checkpoints_kept is not None and not view.saves_every:
        yield Problem(
            path="checkpoint.keep",
            message="keep does nothing: no checkpoint is saved while training goes on",
            help="give every_steps or every, or remove it",
            on_key=True,
        )
