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

    Example (recipe):
        model: llama-2-7b
        batch: {sequence_length: 8192, micro: 1, global: 64}

    Instead:
        model: llama-2-7b
        batch: {sequence_length: 4096, micro: 1, global: 64}

    Since: dsgen 0.1
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
    """An adapter target names no linear layer of the model.

    No adapter would be made for it, and the training would lack it without a word.

    Example (recipe):
        adapter: {rank: 8, targets: [q_proj, v_prj]}

    Instead:
        adapter: {rank: 8, targets: [q_proj, v_proj]}

    Since: dsgen 0.1
    """
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
    """Activation checkpointing in groups larger than the model.

    The whole model would be one group: all activations would be recomputed at once, and memory would not fall.

    Example (recipe):
        model: llama-2-7b
        activation_checkpointing: {every: 64}

    Instead:
        model: llama-2-7b
        activation_checkpointing: sqrt

    Since: dsgen 0.1
    """
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
    """The model family has no class in transformers.

    It runs only with the Python code that comes with its weights, and that code is run only when the recipe allows it.
    Read the code before.

    Example (recipe):
        model: baichuan2-13b

    Instead:
        model: baichuan2-13b
        weights: ./baichuan2-13b
        trust_remote_code: true

    Since: dsgen 0.1
    """
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
    """An adapter whose rank is that of the matrices beside it.

    It holds more than they do, and saves nothing.

    Example (recipe):
        model: llama-2-7b
        adapter: {rank: 4096}

    Instead:
        model: llama-2-7b
        adapter: {rank: 64}

    Since: dsgen 0.1
    """
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
    """A field of the model that looks like a misspelt one.

    Unknown fields are handed to transformers as they are, so a misspelt one leaves the right one at its default: here
    every attention head would get keys and values of its own.

    Example (recipe):
        batch: {sequence_length: 16, micro: 1, global: 64}
        model:
          model_type: llama
          hidden_size: 64
          intermediate_size: 96
          num_hidden_layers: 2
          num_attention_heads: 4
          num_key_value_head: 2
          vocab_size: 300

    Instead:
        batch: {sequence_length: 16, micro: 1, global: 64}
        model:
          model_type: llama
          hidden_size: 64
          intermediate_size: 96
          num_hidden_layers: 2
          num_attention_heads: 4
          num_key_value_heads: 2
          vocab_size: 300

    Since: dsgen 0.1
    """
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
