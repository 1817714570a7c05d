"""How long to train."""

from __future__ import annotations

from collections.abc import Iterator

from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View


@rule("LEN001")
def one_length(view: View) -> Iterator[Problem]:
    """Not exactly one of steps, epochs and tokens is given.

    The end of training is not decided then.

    Example (recipe):
        length: {steps: 100, epochs: 2}

    Instead:
        length: {epochs: 2}

    Since: dsgen 0.1
    """
    if not view.has_length:
        return
    given = [
        name
        for name, value in (("steps", view.steps), ("epochs", view.epochs), ("tokens", view.tokens))
        if value is not None
    ]
    if len(given) == 1:
        return
    said = f"{' and '.join(given)} are given" if given else "none of steps, epochs, tokens is given"
    yield Problem(path="length", message=f"{said}: the end of training is not decided", help="give exactly one")


@rule("LEN002")
def tokens_make_a_step(view: View) -> Iterator[Problem]:
    """The tokens to train on are fewer than one optimizer step takes.

    The first step would already be too much. A step takes global batch x sequence length tokens.

    Example (recipe):
        batch: {sequence_length: 2048, micro: 1, global: 64}
        length: {tokens: 100000}

    Instead:
        batch: {sequence_length: 2048, micro: 1, global: 64}
        length: {tokens: 100M}

    Since: dsgen 0.1
    """
    per_step = view.tokens_per_step
    if view.tokens is not None and per_step is not None and view.tokens < per_step:
        yield Problem(
            path="length.tokens",
            message=f"{view.tokens} tokens are less than one step takes ({per_step}): nothing would be trained",
            help=f"write at least {per_step}",
        )


@rule("LEN003", Severity.INFO)
def interval_is_reached(view: View) -> Iterator[Problem]:
    """Something that is done at a step, or every so many, in a training of fewer steps.

    It never happens: nothing is evaluated, saved or reported at that interval.

    Example (recipe):
        length: {steps: 100}
        checkpoint: {every_steps: 500}

    Instead:
        length: {steps: 100}
        checkpoint: {every_steps: 50}

    Since: dsgen 0.1
    """
    for path, every in view.intervals.items():
        if view.training_steps is not None and every > view.training_steps:
            yield Problem(
                path=path,
                message=f"step {every} never comes in {view.training_steps} steps of training",
                help=f"write at most {view.training_steps}, or remove it",
            )
