"""The memory of jobs that other trainers than DeepSpeed ran: what `benchmarks/memory_accuracy.py` needs beside a Plan.

The model's part (what a layer keeps, what its backward pass adds) is that of `dsgen.memory`; what differs is written
here, from the sources of the trainers at the time of the runs: bytes for each trained parameter, how the loss treats
the logits, what is sharded. Nothing in this file is fitted to a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsgen.memory import activations
from dsgen.memory.job import Job
from dsgen.memory.reserved import NEEDED, VARYING

Point = Mapping[str, Any]

KNOWN = ("hf", "fsdp2", "torchtune", "litgpt")
"""Trainers: transformers' own, torchtitan's and xtuner's FSDP2, torchtune, litgpt."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Bytes per token and vocabulary entry."""

    forward: float
    backward: float
    reserved: float
    """What torch's allocator takes for all of it: blocks of the forward pass that are too small for the backward pass
    stay beside those of the backward pass."""


FLOAT_LOGITS = Loss(forward=12, backward=12, reserved=14)
"""Logits made fp32 by the model, a contiguous copy without the last token, log-softmax; then log-softmax and two
gradients. transformers until 4.44, torchtune and torchtitan (which free the logits before the backward pass). Reserved:
the 16-bit logits' block beside three of 4 bytes."""
QWEN_LOGITS = Loss(forward=12, backward=12, reserved=16)
"""Qwen's own modelling code under autocast: logits and their contiguous copy in 16 bits, made fp32 by the cross
entropy, log-softmax. Reserved: both 16-bit blocks beside three of 4 bytes."""
COMPILED = Loss(forward=2, backward=4, reserved=4)
"""torchtune with its loss compiled: logits and their gradient in 16 bits; no copy in fp32 leaves the kernels."""
CHUNKED = Loss(forward=7, backward=7.5, reserved=8)
"""torchtune's eight chunks, not compiled: logits in 16 bits, log-softmax in fp32, and two more of a chunk in fp32."""
LITGPT_CHUNKS = Loss(forward=6, backward=8, reserved=8)
"""litgpt's head and loss take 128 tokens at a time: logits of all chunks, log-softmax and gradients, all in 16 bits."""
SIXTEEN_BITS = Loss(forward=6, backward=8, reserved=8)
"""Cross entropy of 16-bit logits: logits, log-softmax and two gradients, all in 16 bits (xtuner)."""
NO_LOGITS = Loss(forward=0, backward=0, reserved=0)


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """Bytes for each parameter."""

    weight: int
    gradient: int
    states: int
    """Of the optimizer, with master weights."""
    step: int
    """Temporaries of the optimizer's step: torch's AdamW makes one copy unless it is fused."""
    cast: int = 0
    """A copy of the weights in 16 bits that autocast keeps."""
    frozen: int = 2
    loss: Loss = FLOAT_LOGITS


def trainer_of(point: Point) -> Trainer:
    """What the trainer of a point keeps."""
    optimizer = point["optimizer"].lower()
    fused = "fused" in optimizer
    states_16_bit = "bf16 states" in optimizer
    framework, lora = point["framework"], point.get("lora") is not None
    loss = FLOAT_LOGITS
    if point["model"].startswith("Qwen-"):
        loss = QWEN_LOGITS
    if point.get("head", "lm") not in ("lm", None):
        loss = NO_LOGITS
    if framework == "fsdp2":
        # fp32 weights, gradients and states, sharded; torchtitan's AdamW is fused.
        return Trainer(
            weight=4, gradient=4, states=8, step=0, loss=SIXTEEN_BITS if point["group"] == "xtuner" else loss
        )
    if framework == "torchtune":
        if point.get("compile"):
            loss = COMPILED
        elif point.get("chunked_ce") is True:
            loss = CHUNKED
        return Trainer(weight=2, gradient=2, states=4, step=0 if fused else 2, loss=loss)
    if framework == "litgpt":
        return Trainer(weight=2, gradient=2, states=4, step=2, loss=LITGPT_CHUNKS)
    precision = point["precision"]
    if states_16_bit or (lora and precision == "bf16"):
        # peft makes adapters, and copies of whole matrices, in the type of the model's weights.
        return Trainer(weight=2, gradient=2, states=4, step=0 if fused else 2, loss=loss)
    # transformers' own AdamW and torch's before 2.0 take one parameter at a time.
    return Trainer(weight=4, gradient=4, states=8, step=0, cast=2 if "autocast" in precision else 0, loss=loss)


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a rank has of the model."""

    trained: float
    """Elements."""
    frozen: float
    head: float
    """Elements of the embedding, and of the head."""
    largest_layer: float
    tokens: float
    vocabulary: float
    layers: int
    input: float
    """Bytes per token that a recomputed layer keeps."""
    kept: float
    """Bytes per token that a layer keeps which is not recomputed."""
    backward: float
    """Most that the backward pass of a layer holds, what it keeps included, in bytes per token."""


def model_of(point: Point, job: Job | None) -> Model:
    """From a Job of dsgen's where the model is of Llama's kind, else from the point's own figures."""
    h, f, v, layers = point["hidden"], point["ffn"], point["vocab"], point["layers"]
    q, k = point["heads"] * point["head_dim"], point["kv_heads"] * point["head_dim"]
    tp, cp = point.get("tp", 1), point.get("cp", 1)
    element = 4 if point["precision"] == "fp32" else 2
    if job is not None:
        layer = activations.layer_bytes(job)
        kept: float = layer.all
        backward = max(at.held for at in activations.backward_points(job, layer))
    else:
        kept = _other_layer(point, element)
        backward = kept + element * (h + f)
    if point["recompute"] == "selective-op":
        # torchtitan: the results of every other matrix product, and attention's, are kept.
        kept = 2 * h + 2 * q + 4 * point["heads"] + 0.5 * element * (q + 2 * k + h + 2 * f + h)
    elif point.get("compile") and point["recompute"] == "none":
        # The compiler keeps what matrix products read and write, and computes the rest again.
        kept = element * (4 * h + 2 * q + 2 * k + 2 * f)
    if point.get("lora") and point["lora"].get("dropout"):
        dropped = 3 * sum(_inputs(point))
        kept, backward = kept + dropped, backward + dropped
    head = 0 if point["tied"] else v * h
    trained, frozen = point["params"], 0.0
    if point.get("lora"):
        whole = sum(v * h for _ in point["lora"].get("extra_full", ()))
        trained, frozen = layers * _adapters(point) + whole, point["params"]
    return Model(
        trained=trained / tp,
        frozen=frozen / tp,
        head=v * h / tp,
        largest_layer=(point["params"] - v * h - head) / layers / tp,
        tokens=point["seq"] * point["mbs"] / cp,
        vocabulary=0 if point.get("head", "lm") not in ("lm", None) else v / tp,
        layers=layers,
        input=element * h / tp,
        kept=kept / tp,
        backward=backward / tp,
    )


def _other_layer(point: Point, element: int) -> float:
    """A layer with GELU and LayerNorm, in bytes per token."""
    h, f = point["hidden"], point["ffn"]
    if point["attn"] == "eager":
        # BERT: queries, keys, values, context, and both norms' inputs and outputs; GELU's input and output; the softmax
        # before and after dropout; three masks of a byte each.
        scores = point["heads"] * point["seq"] * (2 * element + 1)
        return 8 * element * h + 2 * h + 2 * element * f + scores
    if point.get("lora"):
        # Frozen: the norm's input, queries, keys, values, attention's output, the adapters' input, GELU's input.
        return element * (6 * h + f)
    return element * (8 * h + 2 * f)


def _modules(point: Point) -> list[tuple[int, int]]:
    """Inputs and outputs of the adapted matrices of a layer, fused ones as one."""
    h, f = point["hidden"], point["ffn"]
    q, k = point["heads"] * point["head_dim"], point["kv_heads"] * point["head_dim"]
    targets = point["lora"]["targets"]
    known: dict[str, list[tuple[int, int]]] = {
        "c_attn,c_proj,w1,w2": [(h, q + 2 * k), (q, h), (h, f), (h, f), (f, h)],
        "c_attn / qkv (DEFAULT)": [(h, q + 2 * k)],
        "q,v": [(h, q), (h, k)],
        "q,k,v": [(h, q), (h, k), (h, k)],
        "q,k,v,o": [(h, q), (h, k), (h, k), (q, h)],
        "q,v,o,mlp": [(h, q), (h, k), (q, h), (h, f), (h, f), (f, h)],
        "all-linear": [(h, q), (h, k), (h, k), (q, h), (h, f), (h, f), (f, h)],
    }
    return known.get(targets, known["all-linear"])


def _inputs(point: Point) -> list[int]:
    return [inputs for inputs, _ in _modules(point)]


def _adapters(point: Point) -> float:
    rank = point["lora"]["r"]
    return sum(rank * (inputs + outputs) for inputs, outputs in _modules(point))


@dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes on one device."""

    allocated: float
    reserved: float


def held(point: Point, job: Job | None, varying: bool) -> Held:
    """Most that a device holds: at the loss, in the last layer's backward pass, at its end, or in the step."""
    trainer, model = trainer_of(point), model_of(point, job)
    n = max(1, point["devices"] // (point.get("tp", 1) * point.get("pp", 1))) if point["zero"] == 3 else 1
    fsdp = point["zero"] == 3
    whole = trainer.weight * model.trained + trainer.frozen * model.frozen
    steady = (whole + trainer.states * model.trained) / n + trainer.cast * model.trained
    gradients = trainer.gradient * model.trained / n
    if point["zero"] == 0 and point["dp"] > 1:
        # DistributedDataParallel's buckets.
        steady += trainer.gradient * model.trained
    gathered = unsharded = 0.0
    if fsdp:
        # The head's weights, and two layers': one at work and one on its way.
        gathered = 2 * (model.head + 2 * model.largest_layer)
        # Gradients in 16 bits, and in fp32 to be reduced; the embedding's come last.
        unsharded = 6 * max(model.largest_layer, model.head)
    accumulating = point["ga"] > 1
    if accumulating:
        steady += gradients
    new_gradients = 0.0 if accumulating or point.get("opt_in_bwd") else gradients
    recomputed = point["recompute"] == "full"
    inputs = model.layers * model.input * model.tokens
    kept = inputs if recomputed else model.layers * model.kept * model.tokens
    layer = model.backward * model.tokens if recomputed else (model.backward - model.kept) * model.tokens
    logits = model.tokens * model.vocabulary
    loss = trainer.loss
    passes = kept + gathered
    in_layer = kept + gathered + layer + (model.head * trainer.gradient / n if not point.get("lora") else 0)
    at_end = new_gradients + gathered + unsharded
    in_step = new_gradients + trainer.step * model.trained / n
    peak = max(passes + max(loss.forward, loss.backward) * logits, in_layer, at_end, in_step)
    fixed, lengthwise = NEEDED[1], VARYING if varying else NEEDED[1]
    # The blocks of torch's step are as small as those of the passes, which they use again.
    taken = max(
        lengthwise * passes + lengthwise / fixed * loss.reserved * logits,
        lengthwise * in_layer,
        fixed * at_end,
        fixed * in_step,
    )
    return Held(allocated=steady + peak, reserved=steady + taken)
