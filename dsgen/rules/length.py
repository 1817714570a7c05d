"""How long to train."""

from __future__ import annotations

from collections.abc import Iterator

from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View


@rule("LEN001")
def one_length(view: View) -> Iterator[Problem]:
    """Not exactly one of steps, epochs and tokens is given."""
    if not view.has_length:
        return
    given = [
        name
        for name, value in (("steps", view.steps), ("epochs", view.epochs), ("tokens", view.tokens))
        if value is not None
    ]
    if len(given) == 1:
        return
    said = f"{' and '.join(given)} are both given" if given else "none of steps, epochs, tokens is given"
    yield Problem(path="length", message=f"{said}: the end of training is not decided", help="give exactly one")


@rule("LEN002")
def tokens_make_a_step(view: View) -> Iterator[Problem]:
    """The tokens to train on are fewer than one optimizer step takes."""
    ranks, micro, accumulation = view.data_parallel, view.micro_batch, view.accumulation
    total = view.global_batch
    if total is None and None not in (ranks, micro, accumulation):
        total = (ranks or 0) * (micro or 0) * (accumulation or 0)
    if view.tokens is None or view.sequence_length is None or not total:
        return
    per_step = total * view.sequence_length
    if view.tokens < per_step:
        yield Problem(
            path="length.tokens",
            message=f"{view.tokens} tokens are less than one step takes ({per_step}): nothing would be trained",
            help=f"write at least {per_step}",
        )
