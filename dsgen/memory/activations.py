"""What the forward pass keeps for the backward pass, and what the backward pass of a layer adds: bytes per token.

Everything here belongs to a modelling profile: the tensors that a modelling code keeps, not those of "a transformer".
The profile `hf-llama` is that of transformers 5.24 for the Llama family (Llama, Mistral; Qwen2 and Qwen3 but for their
biases and head norms), measured storage by storage with torch 2.13 on CPU. Other profiles are not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dsgen.memory.job import EMBEDDING, HEAD, Job

PROFILE = "hf-llama"
_MEASURED = {"llama", "mistral"}

COMPUTED_AGAIN = "computing again"
"""A layer's second forward pass."""


def unmeasured(job: Job) -> tuple[str, ...]:
    """What of the activations no measurement stands behind."""
    found: list[str] = []
    if job.architecture.family not in _MEASURED:
        found.append(f"activations of {job.architecture.family}: counted as those of Llama")
    if job.kind == "npu" and job.attention == "fused":
        found.append("what the NPU's fused attention keeps for its backward pass: two fp32 values x 8 per head")
    found.extend(job.parallel.unmeasured(job.architecture, job.sequence, adapters=bool(job.adapter_rank)))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What one layer keeps for its backward pass, in bytes per token."""

    input_norm: int
    input_norm_output: int
    attention: int
    """Queries, keys, values, the output and what the kernel notes of the softmax."""
    post_norm: int
    post_norm_output: int
    gate: int
    """Input of the activation function."""
    activated: int
    up: int
    product: int
    """Input of the down projection."""
    adapters: int

    @property
    def all(self) -> int:
        """Everything."""
        return self.first_half + self.post_norm + self.post_norm_output + self.feed_forward + self.adapters

    @property
    def first_half(self) -> int:
        """Up to the attention's output."""
        return self.input_norm + self.input_norm_output + self.attention

    @property
    def feed_forward(self) -> int:
        """From the gate projection's output to the down projection's input."""
        return self.gate + self.activated + self.up + self.product


def layer_bytes(job: Job) -> Layer:
    """What one layer keeps.

    RMSNorm: the input in fp32 (4 bytes an element) and 1/rms, the normalised input and the output in the weights' type
    (modeling_llama.py, LlamaRMSNorm.forward: 16 h for both norms at 2 bytes). Attention: q, k, v and its output.
    Feed-forward: gate, silu(gate), up and their product (8 ff). Sum 20 h + 4 h_kv + 8 ff + 8 for h_q = h, measured to
    0.1 %. Eager attention repeats keys and values for all heads and keeps the softmax in fp32 and, in 16 bits, its copy
    (6 bytes x heads x sequence, in fp32 4; measured).

    With LoRA a frozen norm keeps no normalised input and a frozen projection nothing, but for stage 3, whose linear
    layers keep their input whatever is frozen (runtime/zero/linear.py); an adapter keeps its input, with dropout one of
    its own, and its inner output (measured).
    """
    a, e = job.architecture, job.element
    hidden, queries, keys = a.hidden_size, a.query_size, a.key_value_size
    adapted = job.adapter_modules
    lora = bool(job.adapter_rank)

    def where(modules: set[str], size: int) -> int:
        shared = modules & adapted and not job.adapter_dropout
        return size if not lora or job.stage == 3 or shared else 0

    norm = 4 * hidden + 4 + (0 if lora else e * hidden)
    if job.attention == "eager":
        attention = e * 3 * queries + where({"o_proj"}, e * queries)
        attention += _scores_bytes(job) * a.attention_heads * job.sequence
    else:
        shared = job.parallel
        # What the output projection reads has been sent: it is another tensor than the attention's output.
        sent = e * queries if shared.sequence > 1 else 0
        attention = e * (2 * queries + 2 * keys * shared.key_value_copies(a)) + sent + _softmax_notes(job)
    if a.query_key_norm:
        attention += (4 + e) * (queries + keys)
    return Layer(
        input_norm=norm,
        input_norm_output=where({"q_proj", "k_proj", "v_proj", "W_pack"}, e * hidden),
        attention=attention,
        post_norm=norm,
        post_norm_output=where({"gate_proj", "up_proj"}, e * hidden),
        gate=e * a.intermediate_size,
        activated=e * a.intermediate_size,
        up=e * a.intermediate_size,
        product=where({"down_proj"}, e * a.intermediate_size),
        adapters=_adapters(job) if lora else 0,
    )


_DROPOUT_MASK = {"cpu": None, "cuda": 1, "npu": 1 / 8}
"""Bytes an element: CPU keeps the factors themselves, CUDA a boolean (native_dropout), the NPU a bit (torch_npu's
_npu_dropout; not measured)."""


def _adapters(job: Job) -> int:
    """What adapters keep in one layer: their inner output, and with dropout their own input and its mask."""
    rank, e = job.adapter_rank, job.element
    inputs = {weight.module: weight.elements // rank for weight in job.trained.layer[::2]}
    kept = e * rank * len(inputs)
    if job.adapter_dropout:
        kept += sum(inputs.values()) * e + _dropout_masks(job, sum(inputs.values()))
    return kept


def _dropout_masks(job: Job, elements: int) -> int:
    size = _DROPOUT_MASK[job.kind]
    return round(elements * (job.element if size is None else size))


def _scores_bytes(job: Job) -> int:
    """What eager attention keeps per token, head and token before it: the softmax in fp32, and in 16 bits its copy."""
    return 4 + job.element if job.element < 4 else 4


def _softmax_notes(job: Job) -> int:
    """What fused attention notes per token: the log of the softmax's sum in fp32 for each head (flash attention); on
    the NPU its maximum and its sum, 8 times each (npu_fusion_attention's softmax_max and softmax_sum, [B, N, S, 8])."""
    return job.architecture.attention_heads * (64 if job.kind == "npu" else 4)


def kept_between_layers(job: Job, layer: Layer, layers: int) -> int:
    """Kept of the first `layers` layers, in bytes per token: all of each, or the input of each group of recomputed
    layers (Chen et al. 2016, "Training deep nets with sublinear memory cost")."""
    if job.checkpoint_every == 0:
        return layers * layer.all - unreached(job, layer)
    return -(-layers // job.checkpoint_every) * job.element * job.architecture.hidden_size


def unreached(job: Job, layer: Layer) -> int:
    """What the first layer does not keep where nothing before it is trained, in bytes per token: its input norm, and
    what no gradient needs to pass, which is the masks of dropout right behind it and in eager attention what only the
    gradients of queries, keys or values without an adapter would read."""
    if not job.adapter_rank or EMBEDDING in job.adapter_modules:
        return 0
    adapted = job.adapter_modules
    behind = len(adapted & {"q_proj", "k_proj", "v_proj", "W_pack"}) if job.adapter_dropout else 0
    unread = 0
    if job.attention == "eager" and "W_pack" not in adapted:
        heads = job.architecture.attention_heads * job.sequence
        unread = job.element * job.architecture.query_size * (2 - len(adapted & {"q_proj", "k_proj"}))
        if not adapted & {"q_proj", "k_proj"}:
            unread += job.element * job.architecture.query_size
            unread += 4 * heads if job.element < 4 or "v_proj" not in adapted else 0
        if job.element < 4 and "v_proj" not in adapted:
            unread += job.element * heads
    return layer.input_norm + unread + _dropout_masks(job, behind * job.architecture.hidden_size)


def around_layers(job: Job) -> int:
    """Kept beside the layers, in bytes per token: token ids and labels, sines and cosines; of a shared sequence the
    positions too; for eager attention the mask, which a layer that is computed again reads twice."""
    ids = 3 if job.parallel.sequence > 1 else 2
    mask = job.element * job.sequence if job.attention == "eager" and job.checkpoint_every else 0
    return ids * 8 + 2 * job.element * job.architecture.head_dim + mask


def final_norm_bytes(job: Job) -> int:
    """The last norm, its output included, in bytes per token."""
    hidden = job.architecture.hidden_size
    if job.adapter_rank:
        return 4 * hidden + 4 + (job.element * hidden if job.stage == 3 or HEAD in job.adapter_modules else 0)
    return (4 + 2 * job.element) * hidden + 4


class Part(NamedTuple):
    """A part of a layer's forward pass, in bytes per token: what is there when it begins, and most while it runs."""

    before: int
    during: int


ATTENTION, GATE, UP, DOWN = "attention", "gate_proj", "up_proj", "down_proj"


def forward_parts(job: Job, layer: Layer) -> dict[str, Part]:
    """What the forward pass of one layer holds beside its input.

    Where it is computed again later it keeps nothing: at most silu(gate), up and their product beside two of hidden
    size, and with an adapter the projection's own output; eager attention the scores, in fp32 too, and their softmax in
    fp32.
    """
    if job.checkpoint_every == 0:
        return _keeping(layer)
    a, e = job.architecture, job.element
    h, f = e * a.hidden_size, e * a.intermediate_size
    adapted = job.adapter_modules
    softmax = (e + 8 if e < 4 else 8) * a.attention_heads * job.sequence
    scores = softmax + e * 4 * a.query_size if job.attention == "eager" else 0
    norm = (e + 8) * a.hidden_size
    attention = 2 * h + 2 * e * (a.query_size + a.key_value_size)
    return {
        ATTENTION: Part(h, max(attention, scores, norm, _exchange(job))),
        GATE: Part(2 * h, max(norm, 2 * h + f * (3 if GATE in adapted else 2))),
        UP: Part(2 * h + f, 2 * h + f * (4 if UP in adapted else 3)),
        DOWN: Part(2 * h + f, f + h * (5 if DOWN in adapted else 3)),
    }


def again_parts(job: Job, layer: Layer) -> dict[str, Part]:
    """The same when the backward pass asks for it: everything is kept. Beside it there are the gradient of what the
    layer gave, the residual stream before and behind attention, and at the end what the down projection gives; with an
    adapter there the outputs of both, and the gradient scaled for it."""
    h, adapted = job.element * job.architecture.hidden_size, DOWN in job.adapter_modules
    # In fp32 the norm behind attention keeps the stream itself.
    streams = (job.checkpoint_every > 1) + (job.element < 4)
    beside = h * (1 + streams + adapted)
    parts = {name: Part(before + beside, during + beside) for name, (before, during) in _keeping(layer).items()}
    parts[DOWN] = Part(parts[DOWN].before, parts[DOWN].during + h * (1 + adapted))
    return parts


def _keeping(layer: Layer) -> dict[str, Part]:
    attention = layer.first_half + layer.post_norm + layer.post_norm_output
    gate = attention + layer.gate
    return {
        ATTENTION: Part(layer.input_norm + layer.input_norm_output, layer.first_half),
        GATE: Part(attention, gate),
        UP: Part(gate + layer.activated, layer.all),
        DOWN: Part(layer.all, layer.all),
    }


def _exchange(job: Job) -> int:
    """Most that attention adds in the forward pass where ranks share a sequence, in bytes per token: queries, keys and
    values of the rank's tokens beside those of its heads; the output as it came, as it was sent, and in order
    (runtime/sequence_parallel/ulysses_sp.py, UlyssesSPAttentionHF.forward; measured)."""
    if job.parallel.sequence == 1:
        return 0
    a = job.architecture
    keys = a.key_value_size * (1 + job.parallel.key_value_copies(a))
    return job.element * (a.hidden_size + 5 * a.query_size + 2 * keys)


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point in the backward pass of a layer."""

    name: str
    modules: frozenset[str]
    """Whose gradients are complete here."""
    held: int
    """Bytes per token: what the layer still keeps, and the gradients on their way."""


def backward_points(job: Job, layer: Layer) -> tuple[Point, ...]:
    """The backward pass of a layer, in order.

    Follows autograd: nodes run in the reverse order of the forward pass; a node's saved tensors are freed when it has
    run, its weight's gradient is complete right after. `g` is the gradient of the residual stream.
    """
    a, e = job.architecture, job.element
    h, f = e * a.hidden_size, e * a.intermediate_size
    q, k = e * a.query_size, e * a.key_value_size
    g = h
    whole, first = layer.all, layer.first_half
    second = first + layer.post_norm
    # In fp32: the input's two gradients, its power, twice its power, and what they give; what the weight's gradient was
    # taken from has gone.
    norm = 20 * a.hidden_size - (0 if job.adapter_rank else h)
    inner = layer.input_norm
    # Eager: the softmax, its gradient and that of the scores, all in fp32, where some is counted as kept.
    lora, dropped = bool(job.adapter_rank), job.adapter_dropout
    read = 0 if lora and job.stage < 3 and (dropped or "o_proj" not in job.adapter_modules) else q
    softmax = first - read + g + (12 - _scores_bytes(job)) * a.attention_heads * job.sequence
    attention = softmax if job.attention == "eager" else first + g + q + q + 2 * k

    def at(name: str, held: int, *modules: str) -> Point:
        return Point(name=name, modules=frozenset(modules), held=held)

    # Frozen weights are gathered at stage 3 while the projection's input is still there.
    freed = 0 if job.stage == 3 and job.adapter_rank else layer.product
    # What is there then depends on what is gathered: reduction adds it.
    computed_again = (at(COMPUTED_AGAIN, 0),) if job.checkpoint_every and job.stage == 3 else ()
    return (
        *computed_again,
        at("down projection", whole - freed + g + f, "down_proj"),
        at("gated product", whole - layer.product + g + 3 * f),
        at("up projection", second + layer.post_norm_output + layer.gate + g + f + h, "up_proj"),
        at("gate projection", second + g + 2 * h, "gate_proj"),
        at("norm after attention", second + g + norm, "post_attention_layernorm"),
        at("output projection", first + g + q, "o_proj"),
        at("attention", attention),
        at("value projection", inner + layer.input_norm_output + g + q + k + h, "v_proj", "W_pack", "q_norm", "k_norm"),
        at("key projection", inner + layer.input_norm_output + g + q + 2 * h, "k_proj"),
        at("query projection", inner + g + 2 * h, "q_proj"),
        at("norm before attention", inner + g + norm, "input_layernorm"),
    )


def backward(job: Job) -> Iterator[tuple[Point, int, int]]:
    """The backward pass of all layers: point, number of the layer, and bytes of all activations held there."""
    layer = layer_bytes(job)
    points = backward_points(job, layer)
    base = around_layers(job)
    first = unreached(job, layer)
    every, hidden = job.checkpoint_every, job.element * job.architecture.hidden_size
    # In fp32 a group's input is what its first norm keeps.
    own = 1 if job.element < 4 else 0

    def of_group(number: int) -> int:
        inside = number % every
        return inside * layer.all - (first if 0 < number == inside else 0)

    for number in range(job.architecture.layers - 1, -1, -1):
        whole = max(0, number * layer.all - first)
        below = (number // every + own) * hidden + of_group(number) if every else whole
        for point in points:
            yield point, number, job.tokens * (base + below + point.held)
