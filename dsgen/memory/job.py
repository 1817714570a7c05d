"""The numbers of a Plan that decide its memory, with DeepSpeed's own defaults where ds_config.json is silent."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsgen.catalog.models import Architecture
from dsgen.catalog.parameters import count_parameters, parameter_shapes
from dsgen.memory.parallel import Parallel, embedding_rows, head_rows, parallel_of, rank_architecture, zero_ranks
from dsgen.recipe.plan import Plan
from dsgen.rules.view import lookup, uses_bf16_optimizer

ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}

EMBEDDING = "embed_tokens"
HEAD = "lm_head"
FINAL_NORM = "norm"


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A parameter: the module that owns it, without the path to it, and its number of elements."""

    module: str
    elements: int


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Parameters in the order in which the model registers them; every layer is alike."""

    before: tuple[Weight, ...]
    layer: tuple[Weight, ...]
    after: tuple[Weight, ...]
    layers: int

    @functools.cached_property
    def elements(self) -> int:
        """All of them."""
        return self.per(self.before) + self.layers * self.per(self.layer) + self.per(self.after)

    @functools.cached_property
    def largest(self) -> int:
        """Elements of the largest one; 0 when there is none."""
        return max((weight.elements for weight in (*self.before, *self.layer, *self.after)), default=0)

    @staticmethod
    def per(weights: tuple[Weight, ...]) -> int:
        """Elements of some of them."""
        return sum(weight.elements for weight in weights)

    def in_order(self) -> itertools.chain[Weight]:
        """All of them, in order."""
        return itertools.chain(
            self.before, itertools.chain.from_iterable(itertools.repeat(self.layer, self.layers)), self.after
        )


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """What an optimizer keeps and needs, in bytes per element that it updates."""

    states: int
    temporaries: int
    fused: bool = True
    """DeepSpeed's FusedAdam, for which stage 0 keeps flat master weights (runtime/engine.py,
    _configure_fp16_optimizer)."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One rank's job in numbers. Sizes named `_elements` count parameters."""

    architecture: Architecture
    """As this rank has it."""
    parallel: Parallel = field(default_factory=Parallel)
    kind: str
    stage: int
    ranks: int
    """What ZeRO divides by."""
    per_node: int
    device_bytes: int | None
    """What torch reports as the device's memory: DeepSpeed decides by it where to flatten the weights."""

    element: int
    """Bytes of a weight, a gradient, an activation."""
    accumulate: int
    """Bytes of an accumulated gradient."""
    communicates: int = 0
    """Bytes of an element that is sent, where communication_data_type says it."""
    scaled: bool
    """fp16 with its loss scale and overflow check."""
    bf16_optimizer: bool
    optimizer: Optimizer

    trained: Weights
    frozen_elements: int
    parameters: Weights
    """Trained and frozen ones of the model itself, adapters aside."""
    adapter_modules: frozenset[str]
    adapter_rank: int
    adapter_dropout: bool = False

    accumulation: int
    tokens: int
    """Of one micro batch, on this rank."""
    sequence: int
    """Tokens of a whole one."""
    checkpoint_every: int
    chunk: int
    attention: str
    """fused or eager."""

    contiguous: bool
    overlap: bool
    bucket_elements: int
    sub_group_elements: int
    prefetch_elements: int
    live_elements: int
    reuse_elements: int
    persistence_elements: int

    offload_optimizer: str
    offload_ratio: float = 1.0
    """Stage 3: part of the sub-groups whose states are offloaded."""
    offload_parameters: str
    secondary_ranks: int = 1
    """Stage 3, hpZ: ranks that share a second copy of the weights; 1: there is none."""
    pinned_optimizer: bool
    pinned_parameters: bool
    optimizer_buffers: int
    """NVMe: buffers that optimizer states pass through."""
    parameter_buffers_elements: int
    """NVMe: elements of the buffers that parameters pass through."""
    saves: bool

    @property
    def sent(self) -> int:
        """Bytes of a gradient's element on its way to other ranks: as communication_data_type says, else as the
        gradient is. With sequence parallelism they are fp32 (runtime/zero/stage_1_and_2.py, allreduce_bucket;
        runtime/constants.py, SEQ_PARALLEL_COMMUNICATION_DATA_TYPE_DEFAULT)."""
        return 4 if self.parallel.sequence > 1 else self.communicates or self.element


def read_job(plan: Plan) -> Job:
    """The numbers of a plan.

    Defaults are those of DeepSpeed 0.19.8 (runtime/zero/config.py, runtime/zero/offload_config.py).
    """
    zero: Mapping[str, Any] = plan.ds_config.get("zero_optimization") or {}
    stage = plan.stage
    parallel = parallel_of(plan)
    architecture = rank_architecture(plan.architecture, parallel)

    def number(key: str, default: int) -> int:
        value = zero.get(key)
        return default if value is None else int(value)

    def flag(key: str, default: bool) -> bool:
        value = zero.get(key)
        return default if value is None else bool(value)

    offload = {name: zero.get(name) or {} for name in ("offload_optimizer", "offload_param")}
    every = model_weights(
        architecture, embedding_rows(plan.architecture, parallel), head_rows(plan.architecture, parallel)
    )
    trained = every if plan.adapter is None else adapter_weights(architecture, plan.adapter.rank, plan.adapter.targets)
    element = ELEMENT_BYTES[plan.precision]
    # AutoTP's linear layers keep a view of their gathered weight for the backward pass, and stage 3's release does not
    # reach it (module_inject/layers.py, LinearLayer.forward): where nothing is recomputed, all are held until then.
    held = every.elements if parallel.tensor > 1 and not plan.checkpoint_every_layers else 0
    return Job(
        architecture=architecture,
        parallel=parallel,
        kind=plan.kind,
        stage=stage,
        ranks=zero_ranks(plan),
        per_node=plan.per_node,
        device_bytes=plan.device.usable_bytes or plan.device.memory_bytes,
        element=element,
        accumulate=ELEMENT_BYTES[plan.accumulate],
        communicates=ELEMENT_BYTES.get(str(plan.ds_config.get("communication_data_type")), 0),
        scaled=plan.precision == "fp16",
        bf16_optimizer=uses_bf16_optimizer(stage, plan.precision, plan.accumulate, plan.offload_optimizer),
        optimizer=_optimizer(plan.ds_config),
        trained=trained,
        frozen_elements=0 if plan.adapter is None else every.elements,
        parameters=every,
        adapter_modules=frozenset(() if plan.adapter is None else (w.module for w in trained.in_order())),
        adapter_rank=0 if plan.adapter is None else plan.adapter.rank,
        adapter_dropout=plan.adapter is not None and plan.adapter.dropout > 0,
        accumulation=plan.accumulation,
        tokens=plan.micro_batch * -(-plan.sequence_length // plan.sequence_parallel),
        sequence=plan.sequence_length,
        checkpoint_every=plan.checkpoint_every_layers,
        chunk=plan.loss_chunk_tokens,
        attention="eager" if plan.attention == "eager" else "fused",
        # runtime/zero/stage_1_and_2.py, __init__
        contiguous=flag("contiguous_gradients", True) or (stage in (1, 2) and plan.offload_optimizer != "none"),
        overlap=flag("overlap_comm", stage == 3),
        bucket_elements=number("reduce_bucket_size", 500_000_000),
        sub_group_elements=number("sub_group_size", 1_000_000_000),
        prefetch_elements=number("stage3_prefetch_bucket_size", 50_000_000),
        live_elements=max(held, number("stage3_max_live_parameters", 1_000_000_000)),
        reuse_elements=max(held, number("stage3_max_reuse_distance", 1_000_000_000)),
        persistence_elements=number("stage3_param_persistence_threshold", 100_000),
        offload_optimizer=plan.offload_optimizer if stage > 0 else "none",
        offload_ratio=float(offload["offload_optimizer"].get("ratio", 1.0)) if stage == 3 else 1.0,
        secondary_ranks=number("zero_hpz_partition_size", 1) if stage == 3 else 1,
        offload_parameters=plan.offload_parameters if stage == 3 else "none",
        pinned_optimizer=bool(offload["offload_optimizer"].get("pin_memory", True)),
        pinned_parameters=bool(offload["offload_param"].get("pin_memory", True)),
        optimizer_buffers=int(offload["offload_optimizer"].get("buffer_count", 4)),
        parameter_buffers_elements=int(offload["offload_param"].get("buffer_count", 5))
        * int(offload["offload_param"].get("buffer_size", 100_000_000)),
        saves=bool(plan.save_every_steps or plan.save_every_seconds or plan.save_at_end),
    )


@functools.lru_cache(maxsize=64)
def model_weights(
    architecture: Architecture, embedding_rows: int | None = None, head_rows: int | None = None
) -> Weights:
    """The parameters of a model; a rank may have fewer rows of the embedding and of the output head."""
    before: list[Weight] = []
    layer: list[Weight] = []
    for name, shape in parameter_shapes(architecture):
        if name.startswith("model.layers.0."):
            layer.append(Weight(module=name.rsplit(".", 2)[-2], elements=math.prod(shape)))
        elif layer:
            break
        else:
            rows = embedding_rows or shape[0]
            before.append(Weight(module=name.rsplit(".", 2)[-2], elements=rows * math.prod(shape[1:])))
    count = count_parameters(architecture)
    after = [Weight(module=FINAL_NORM, elements=count.final_norm)]
    if count.output_head:
        rows = head_rows or architecture.vocabulary_size
        after.append(Weight(module=HEAD, elements=rows * architecture.hidden_size))
    return Weights(before=tuple(before), layer=tuple(layer), after=tuple(after), layers=architecture.layers)


@functools.lru_cache(maxsize=64)
def adapter_weights(architecture: Architecture, rank: int, targets: tuple[str, ...]) -> Weights:
    """LoRA's two matrices beside every target: rank x inputs, then outputs x rank (peft)."""
    before: list[Weight] = []
    layer: list[Weight] = []
    wanted = set(targets)
    for name, shape in parameter_shapes(architecture):
        module = name.rsplit(".", 2)[-2]
        inside = name.startswith("model.layers.0.")
        if layer and not inside:
            break
        if module in wanted and len(shape) == 2:
            outputs, inputs = shape
            pair = (Weight(module=module, elements=rank * inputs), Weight(module=module, elements=rank * outputs))
            (layer if inside else before).extend(pair)
    sides = rank * architecture.hidden_size, rank * architecture.vocabulary_size
    after = tuple(Weight(module=HEAD, elements=side) for side in sides) if HEAD in wanted else ()
    return Weights(before=tuple(before), layer=tuple(layer), after=after, layers=architecture.layers)


_STATES = {"adam": 8, "adamw": 8, "lion": 4, "adagrad": 4, "lamb": 8, "muon": 8, "sgd": 0, "rmsprop": 4}


def _optimizer(config: Mapping[str, Any]) -> Optimizer:
    """States are fp32 copies of what is updated: two for Adam, one for Lion and Adagrad.

    DeepSpeed's FusedAdam and CPUAdam and the kernels behind them need no temporaries; torch's AdamW (`torch_adam`) two
    fp32 tensors of what it updates (measured). Muon's matrices have one state; counted as Adam's, which its other
    parameters have. An optimizer that is not listed is counted as Adam.
    """
    name = str(lookup(config, "optimizer.type") or "AdamW").lower()
    params = lookup(config, "optimizer.params") or {}
    states = _STATES.get(name, 8)
    if name == "sgd" and params.get("momentum"):
        states = 4
    torch_adam = bool(params.get("torch_adam"))
    fused = name in ("adam", "adamw") and not torch_adam
    return Optimizer(states=states, temporaries=8 if torch_adam else 0, fused=fused)
