"""The parameters of a model, exact to the element, from its architecture alone: names, shapes and counts."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dsgen.catalog.models import Architecture

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """How many parameters (elements) a model has, and where."""

    total: int
    """All parameters; tied embeddings count once."""
    embedding: int
    """The embedding of the vocabulary."""
    output_head: int
    """The matrix that makes logits; 0 when it is the embedding itself."""
    per_layer: int
    """One decoder layer; all of them are alike."""
    final_norm: int
    largest_tensor: int
    """The largest single parameter."""
    largest_layer: int
    """The most parameters that one module owns by itself (weight and bias of a projection, or an embedding): what
    DeepSpeed's ZeRO-3 estimator calls the largest layer."""


@dataclass(frozen=True, kw_only=True)
class _Module:
    """A leaf module: its name, its weight's shape and whether it has a bias."""

    name: str
    weight: Shape
    bias: bool = False

    def parameters(self) -> Iterator[tuple[str, Shape]]:
        yield f"{self.name}.weight", self.weight
        if self.bias:
            yield f"{self.name}.bias", self.weight[:1]

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for _, shape in self.parameters())


def parameter_shapes(architecture: Architecture) -> Iterator[tuple[str, Shape]]:
    """Every parameter's name and shape, in the order in which the model registers them.

    Names are those of the model's state dict in transformers (of the model's own code for Baichuan). A tied output head
    is no parameter of its own and does not appear.
    """
    for module in _modules(architecture):
        yield from module.parameters()


@functools.lru_cache(maxsize=256)
def count_parameters(architecture: Architecture) -> ParameterCount:
    """Count the parameters of a model."""
    embedding, head, norm = _embedding(architecture), _head(architecture), _final_norm(architecture)
    layer = list(_layer_modules(architecture))
    per_layer = sum(module.size for module in layer)
    output_head = 0 if architecture.tied_embeddings else head.size
    return ParameterCount(
        total=embedding.size + architecture.layers * per_layer + norm.size + output_head,
        embedding=embedding.size,
        output_head=output_head,
        per_layer=per_layer,
        final_norm=norm.size,
        largest_tensor=max(math.prod(module.weight) for module in (embedding, *layer)),
        largest_layer=max(module.size for module in (embedding, *layer)),
    )


def adapter_targets(architecture: Architecture) -> tuple[str, ...]:
    """The module names that a LoRA adapter can stand beside, as PEFT's `target_modules` names them."""
    return tuple(_targets(architecture))


def adapter_parameters(architecture: Architecture, rank: int, targets: Iterable[str]) -> int:
    """How many parameters LoRA adapters of that rank add: rank x (inputs + outputs) for every matrix they stand beside.

    `targets` are module names as in PEFT (`q_proj`, `down_proj`, `lm_head`, `embed_tokens`, ...; `W_pack` in
    Baichuan); each counts once, in every layer.

    Raises ValueError for a rank below 1 and for a target that the model does not have.
    """
    if rank < 1:
        raise ValueError(f"rank is {rank}: a LoRA adapter has a rank of at least 1")
    known = _targets(architecture)
    wanted = tuple(dict.fromkeys(targets))
    for target in wanted:
        if target not in known:
            raise ValueError(f"{architecture.name} has no module {target!r}; it has {', '.join(known)}")
    return sum(rank * known[target] for target in wanted)


def _targets(architecture: Architecture) -> dict[str, int]:
    """Inputs + outputs of all the matrices behind each target name."""
    sums = {
        module.name.rsplit(".", 1)[-1]: architecture.layers * sum(module.weight)
        for module in _layer_modules(architecture)
        if len(module.weight) == 2
    }
    sums["embed_tokens"] = sum(_embedding(architecture).weight)
    sums["lm_head"] = sum(_head(architecture).weight)
    return sums


def _modules(architecture: Architecture) -> Iterator[_Module]:
    yield _embedding(architecture)
    for index in range(architecture.layers):
        for module in _layer_modules(architecture):
            yield _Module(name=f"model.layers.{index}.{module.name}", weight=module.weight, bias=module.bias)
    yield _final_norm(architecture)
    if not architecture.tied_embeddings:
        yield _head(architecture)


def _embedding(architecture: Architecture) -> _Module:
    return _Module(name="model.embed_tokens", weight=(architecture.vocabulary_size, architecture.hidden_size))


def _head(architecture: Architecture) -> _Module:
    return _Module(name="lm_head", weight=(architecture.vocabulary_size, architecture.hidden_size))


def _final_norm(architecture: Architecture) -> _Module:
    return _Module(name="model.norm", weight=(architecture.hidden_size,))


def _layer_modules(architecture: Architecture) -> Iterator[_Module]:
    """The modules of one decoder layer."""
    hidden = architecture.hidden_size
    yield from _attention_modules(architecture)
    bias = architecture.feed_forward_bias
    yield _Module(name="mlp.gate_proj", weight=(architecture.intermediate_size, hidden), bias=bias)
    if architecture.family == "baichuan":
        # Its MLP registers the down projection before the up projection.
        yield _Module(name="mlp.down_proj", weight=(hidden, architecture.intermediate_size), bias=bias)
        yield _Module(name="mlp.up_proj", weight=(architecture.intermediate_size, hidden), bias=bias)
    else:
        yield _Module(name="mlp.up_proj", weight=(architecture.intermediate_size, hidden), bias=bias)
        yield _Module(name="mlp.down_proj", weight=(hidden, architecture.intermediate_size), bias=bias)
    yield _Module(name="input_layernorm", weight=(hidden,))
    yield _Module(name="post_attention_layernorm", weight=(hidden,))


def _attention_modules(architecture: Architecture) -> Iterator[_Module]:
    hidden, queries, keys = architecture.hidden_size, architecture.query_size, architecture.key_value_size
    bias = architecture.query_key_value_bias
    if architecture.family == "baichuan":
        yield _Module(name="self_attn.W_pack", weight=(queries + 2 * keys, hidden), bias=bias)
    else:
        yield _Module(name="self_attn.q_proj", weight=(queries, hidden), bias=bias)
        yield _Module(name="self_attn.k_proj", weight=(keys, hidden), bias=bias)
        yield _Module(name="self_attn.v_proj", weight=(keys, hidden), bias=bias)
    yield _Module(name="self_attn.o_proj", weight=(hidden, queries), bias=architecture.attention_output_bias)
    if architecture.query_key_norm:
        yield _Module(name="self_attn.q_norm", weight=(architecture.head_dim,))
        yield _Module(name="self_attn.k_norm", weight=(architecture.head_dim,))
