"""The model against the rest of the job."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from dsgen.catalog.lookup import nearest
from dsgen.catalog.models import SHAPE_FIELDS
from dsgen.catalog.parameters import adapter_targets
from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View


@rule("MOD001", Severity.WARNING)
def sequence_fits_positions(view: View) -> Iterator[Problem]:
    """Sequences are longer than the positions that the model was made for.

    Rotary embeddings run past the trained range without an error; quality falls.
    """
    if view.architecture is None or view.sequence_length is None:
        return
    limit = view.architecture.max_position_embeddings
    if limit is None or view.sequence_length <= limit:
        return
    yield Problem(
        path="batch.sequence_length",
        message=f"{view.sequence_length} tokens are more than the {limit} positions of {view.architecture.name}",
        help=f"write at most {limit}, or give the model a longer position range on purpose",
    )


@rule("MOD002")
def adapter_targets_exist(view: View) -> Iterator[Problem]:
    """An adapter target names no linear layer of the model, so no adapter would be made for it."""
    if view.architecture is None or not view.adapter_targets:
        return
    known = adapter_targets(view.architecture)
    for index, target in enumerate(view.adapter_targets):
        if target in known:
            continue
        near = nearest(target, known, 1)
        yield Problem(
            path=f"adapter.targets[{index}]",
            message=f"{target!r} is no linear layer of {view.architecture.name}",
            help=f"did you mean {near[0]}?" if near else f"choose among {', '.join(known)}",
        )


@rule("MOD003", Severity.WARNING)
def checkpoint_groups_fit(view: View) -> Iterator[Problem]:
    """Activation checkpointing in groups larger than the model: the whole model would be one group."""
    if view.architecture is None or view.checkpoint_every_layers is None:
        return
    if view.checkpoint_every_layers > view.architecture.layers:
        yield Problem(
            path="activation_checkpointing.every",
            message=f"groups of {view.checkpoint_every_layers} layers, but the model has {view.architecture.layers}: "
            "all activations would be recomputed at once, and memory would not fall",
            help="write a number near the square root of the layers, or `sqrt`",
        )


@rule("MOD004")
def remote_code_is_allowed(view: View) -> Iterator[Problem]:
    """The model family has no class in transformers: it runs only with the Python code that comes with its weights."""
    if view.architecture is None or view.architecture.family != "baichuan":
        return
    if view.trust_remote_code and view.weights:
        return
    yield Problem(
        path="model",
        message=f"{view.architecture.name} has no class in transformers: it can only be built by the code in its "
        "weights folder",
        help="give `weights:` (a local folder of the model) and `trust_remote_code: true`, after reading that code",
    )


@rule("MOD005", Severity.WARNING)
def adapter_is_low_rank(view: View) -> Iterator[Problem]:
    """An adapter whose rank is that of the matrices beside it: it holds more than they do, and saves nothing."""
    if view.architecture is None or view.adapter_rank is None or view.adapter_rank < view.architecture.hidden_size:
        return
    yield Problem(
        path="adapter.rank",
        message=f"rank {view.adapter_rank} is not low: the matrices of {view.architecture.name} have rank "
        f"{view.architecture.hidden_size} at most",
        help="write 8 to 256, or train all weights without an adapter",
    )


@rule("MOD006", Severity.WARNING)
def shape_fields_are_spelt_right(view: View) -> Iterator[Problem]:
    """A field of the model that looks like a misspelt one: unknown fields are handed to transformers as they are."""
    fields = view.architecture.config if view.architecture is not None else {}
    missing = [name for name in SHAPE_FIELDS if name not in fields]
    for name in fields:
        near = difflib.get_close_matches(name, missing, n=1, cutoff=0.85) if name not in SHAPE_FIELDS else ()
        if near:
            yield Problem(
                path=("model", name),
                message=f"{name} says nothing about the model's shape",
                help=f"did you mean {near[0]}?",
                on_key=True,
            )
