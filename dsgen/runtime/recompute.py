"""Activation checkpointing on the model's side: layers are computed again in the backward pass instead of kept.

DeepSpeed's `activation_checkpointing` section acts only on models that call DeepSpeed's own checkpoint function,
which transformers models do not.
"""

from __future__ import annotations

import functools
from typing import Any

from dsgen.runtime.problems import RuntimeProblem


def checkpoint_activations(model: Any, every: int) -> None:
    """Keep the activations at every `every`-th layer only; groups of `every` layers are recomputed together.

    With L layers, hidden size h and T tokens in 2-byte activations, 2*T*h*L/every bytes are kept, plus all
    activations of one group while it is recomputed (least near every = sqrt(L); Chen et al. 2016).

    Raises RuntimeProblem for models that transformers cannot checkpoint, and for groups of layers that do not get the
    same arguments (sliding and full attention mixed).
    """
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise RuntimeProblem(
            f"{type(model).__name__} does not support activation checkpointing", "set activation_checkpointing: none"
        )
    if every == 1:
        model.activation_checkpointing_enable({"use_reentrant": False})
        return
    layers = _layers(model)
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or []
    if len(set(kinds)) > 1:
        raise RuntimeProblem(
            f"groups of {every} layers cannot be recomputed together: this model mixes {', '.join(sorted(set(kinds)))}",
            "set activation_checkpointing: full",
        )
    for first in range(0, len(layers), every):
        group = list(layers[first : first + every])
        # The first layer of a group runs the whole group, the others hand their input on: the model's own loop and
        # the names of its parameters stay as they are.
        group[0].forward = functools.partial(_run_group, [layer.forward for layer in group])
        for layer in group[1:]:
            layer.forward = _hand_on


def _layers(model: Any) -> Any:
    from transformers.modeling_layers import GradientCheckpointingLayer

    base = model.base_model
    layers = getattr(base, "layers", None)
    if layers is None or not all(isinstance(layer, GradientCheckpointingLayer) for layer in layers):
        raise RuntimeProblem(
            f"groups of layers cannot be recomputed in {type(model).__name__}", "set activation_checkpointing: full"
        )
    return layers


def _run_group(forwards: list[Any], hidden: Any, *args: Any, **kwargs: Any) -> Any:
    import torch
    from torch.utils.checkpoint import checkpoint

    def run(hidden: Any) -> Any:
        for forward in forwards:
            hidden = forward(hidden, *args, **kwargs)
            if not torch.is_tensor(hidden):
                raise RuntimeProblem(
                    "groups of layers cannot be recomputed together: this model's layers return more than a tensor",
                    "set activation_checkpointing: full",
                )
        return hidden

    if not torch.is_grad_enabled():
        return run(hidden)
    return checkpoint(run, hidden, use_reentrant=False)


def _hand_on(hidden: Any, *args: Any, **kwargs: Any) -> Any:
    return hidden
