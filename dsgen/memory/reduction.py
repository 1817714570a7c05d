"""The backward pass: activations shrink, gradients come and are reduced. Stages 0 to 3, parameter by parameter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dsgen.memory import activations, loss
from dsgen.memory.gathering import Gathered
from dsgen.memory.job import EMBEDDING, FINAL_NORM, HEAD, Job, Weight
from dsgen.memory.report import GRADIENTS
from dsgen.memory.states import (
    accumulated,
    aligned_elements,
    bucket_bytes,
    compact,
    partition_elements,
    partition_gradients,
)

_NORM_BYTES = 8
"""Norms are taken in fp64 (runtime/zero/utils.py, get_norm_dtype), at stage 3 of at most so many elements at once
(runtime/zero/stage3.py, _constant_buffered_norm2):"""
_NORM_ELEMENTS = 250_000_000
_ALL_REDUCED_AT_ONCE = 500_000_000
"""Elements of a bucket where the engine reduces by itself (runtime/engine.py, MEMORY_OPT_ALLREDUCE_SIZE)."""


class Held(NamedTuple):
    """What the backward pass holds at a moment, in bytes, besides what is held between steps."""

    name: str
    activations: int = 0
    loss: int = 0
    gradients: int = 0
    buckets: int = 0
    gathered: int = 0
    temporaries: int = 0

    @property
    def all(self) -> int:
        """The sum."""
        return self.activations + self.loss + self.gradients + self.buckets + self.gathered + self.temporaries


class _Stop(NamedTuple):
    """A place in the backward pass: its activations, and the parameters whose gradients are complete there, each with
    its offset in the flat buffer."""

    name: str
    activations: int
    gathered: int
    weights: tuple[tuple[int, int], ...]


def _stops(job: Job, live: Gathered | None) -> Iterator[_Stop]:
    """The places of the backward pass behind the loss, in order."""
    trained = job.trained
    per_layer = trained.per(trained.layer)
    start = trained.per(trained.before)
    end = start + per_layer * trained.layers
    e = job.element
    hidden = job.tokens * e * job.architecture.hidden_size
    layers = job.architecture.layers
    kept = job.tokens * (
        activations.around_layers(job) + activations.kept_between_layers(job, activations.layer_bytes(job), layers)
    )
    norm = job.tokens * activations.final_norm_bytes(job)

    def placed(weights: tuple[Weight, ...], offset: int, modules: frozenset[str]) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        for weight in weights:
            if weight.module in modules:
                found.append((weight.elements, offset))
            offset += weight.elements
        return tuple(reversed(found))

    def elements_gathered(modules: frozenset[str], above: int = 0) -> int:
        return e * live.at(modules, above) if live else 0

    after_head, after_norm = frozenset({HEAD}), frozenset({FINAL_NORM})
    yield _Stop(
        "output head", kept + norm + hidden, elements_gathered(after_head), placed(trained.after, end, after_head)
    )
    yield _Stop(
        "last norm",
        kept + job.tokens * (4 + e + 8) * job.architecture.hidden_size + hidden,
        elements_gathered(after_head),
        placed(trained.after, end, after_norm),
    )
    inside: dict[str, tuple[tuple[int, int], ...]] = {}
    for point, number, held in activations.backward(job):
        if point.name not in inside:
            inside[point.name] = placed(trained.layer, 0, point.modules)
        offset = start + number * per_layer
        weights = tuple((elements, place + offset) for elements, place in inside[point.name])
        yield _Stop(point.name, held, elements_gathered(point.modules, layers - 1 - number), weights)
    yield _Stop(
        "embedding",
        job.tokens * activations.around_layers(job) + hidden,
        elements_gathered(frozenset({EMBEDDING})),
        placed(trained.before, 0, frozenset({EMBEDDING})),
    )


def backward_pass(job: Job, rank: int, live: Gathered | None) -> Iterator[Held]:
    """Everything that the last micro batch's backward pass holds behind the loss, moment by moment."""
    if job.stage == 3:
        yield from _partitioned(job, live)
    elif job.stage == 2 or (job.stage == 1 and job.overlap and not job.bf16_optimizer):
        yield from _bucket_by_bucket(job, rank)
    else:
        yield from _summed(job, rank)


def _tied(job: Job) -> int:
    """A tied output head's gradient waits for that of the embedding (autograd's input buffer)."""
    if not job.architecture.tied_embeddings or job.adapter_rank:
        return 0
    return job.element * job.architecture.vocabulary_size * job.architecture.hidden_size


def _bucket_by_bucket(job: Job, rank: int) -> Iterator[Held]:
    """Stage 2, and stage 1 with overlap_comm: gradients go into a bucket as they come, and a full one is reduced.

    runtime/zero/stage_1_and_2.py: reduce_independent_p_g_buckets_and_remove_grads copies a gradient into the bucket
    and frees it; before one that no longer fits, reduce_ipg_grads reduces. allreduce_bucket flattens the pieces that
    belong to different partitions, which is a second copy of the bucket's content; one piece alone is not copied.
    copy_grads_in_partition then allocates this rank's partition anew in every micro batch, beside that of the micro
    batches before (average_tensor adds them at the end). At stage 1 the sums of earlier micro batches lie in the
    parameters' own gradients, whole, until they have been copied into the bucket.
    """
    e, size, tied = job.element, partition_elements(job), _tied(job)
    first_stage = job.stage == 1
    element = job.accumulate if first_stage and compact(job) else e
    piled = element * job.trained.elements if first_stage and job.accumulation > 1 else 0
    offloaded = job.offload_optimizer != "none"
    summed = compact(job)
    earlier = 0 if first_stage else accumulated(job, rank).get(GRADIENTS, 0)
    own_bytes = 0 if offloaded and not summed else partition_gradients(job, rank)
    start, end = rank * size, (rank + 1) * size
    buckets = bucket_bytes(job)
    capacity = job.bucket_elements
    mine = earlier
    filled = waiting = 0
    largest_own = 0
    pieces: set[int] = set()
    own_pieces = own_elements = 0
    fresh = False

    def reduce(stop: _Stop | None, name: str, gradient: int) -> Iterator[Held]:
        nonlocal mine, fresh, filled, waiting, largest_own, own_pieces, own_elements
        if not filled:
            return
        acts, gathered = (stop.activations, stop.gathered) if stop else (0, 0)
        split = len(pieces - {rank}) + (own_pieces if summed else min(own_pieces, 1)) > 1
        flat = element * filled if split or not job.contiguous else 0
        if own_pieces and not fresh:
            fresh = True
            if summed:
                mine = own_bytes
        held = piled + gradient + waiting + tied
        # With fp32 accumulation the reduced piece is upcast before it is added; fp32 buckets are sent in 16 bits.
        upcast = e * filled if element > e else 4 * largest_own if summed and own_pieces else 0
        yield Held(name, acts, 0, mine + held, buckets, gathered, flat + upcast)
        if own_pieces and not summed:
            # Without contiguous_gradients they stay where they are.
            mine = earlier + own_bytes if job.contiguous else mine + own_elements * e
        if own_pieces:
            norm = _NORM_BYTES * largest_own if offloaded else 0
            yield Held(name, acts, 0, mine + held, buckets, gathered, norm)
        filled = waiting = largest_own = own_pieces = own_elements = 0
        pieces.clear()

    for stop in _stops(job, None):
        if not stop.weights:
            yield Held(stop.name, stop.activations, 0, piled + mine + waiting + tied, buckets if filled or fresh else 0)
        for elements, offset in stop.weights:
            gradient = e * elements
            if filled + elements > capacity:
                yield from reduce(stop, f"{stop.name}, reducing", gradient)
            yield Held(stop.name, stop.activations, 0, piled + mine + waiting + gradient + tied, buckets)
            filled += elements
            if elements > capacity or not job.contiguous:
                waiting += gradient
            elif piled:
                piled -= element * elements
            pieces.update(range(offset // size, (offset + elements - 1) // size + 1))
            own = min(offset + elements, end) - max(offset, start)
            if own > 0:
                own_pieces += 1
                own_elements += elements
                largest_own = max(largest_own, own)
    yield from reduce(None, "last bucket", 0)


def _summed(job: Job, rank: int) -> Iterator[Held]:
    """Stages 0 and 1, and BF16_Optimizer: whole gradients pile up, and are reduced behind the backward pass.

    runtime/engine.py, buffered_allreduce_fallback (stage 0: 5e8 elements flattened at once);
    runtime/bf16_optimizer.py (one flat fp32 gradient, sent as a copy in 16 bits);
    runtime/zero/stage_1_and_2.py, reduce_gradients (stage 1: bucket by bucket, in the order of registration).
    """
    trained, e, tied = job.trained, job.element, _tied(job)
    fp32_sums = job.stage == 1 and compact(job) and not job.bf16_optimizer
    element = job.accumulate if fp32_sums else e
    buckets = bucket_bytes(job) if job.stage == 1 and not job.bf16_optimizer else 0
    whole = element * trained.elements
    grown = whole if job.accumulation > 1 else 0
    started = job.accumulation > 1
    for stop in _stops(job, None):
        if not stop.weights:
            yield Held(stop.name, stop.activations, 0, grown + tied, buckets if started else 0)
        for elements, _ in stop.weights:
            started = True
            extra = e * elements + (element * elements if fp32_sums else 0)
            yield Held(stop.name, stop.activations, 0, grown + extra + tied, buckets)
            if job.accumulation == 1:
                grown += element * elements
    if job.bf16_optimizer:
        yield Held("adding to the fp32 gradients", 0, 0, whole, 0, 0, 4 * trained.largest)
        yield Held("all-reduce", 0, 0, whole, 0, 0, e * aligned_elements(job))
    elif job.stage == 0:
        flat = highest = 0
        for weight in trained.in_order():
            flat += weight.elements
            highest = max(highest, flat)
            if flat > _ALL_REDUCED_AT_ONCE:
                flat = 0
        yield Held("all-reduce", 0, 0, whole, 0, 0, e * highest)
    else:
        yield from _behind(job, rank, whole, element, buckets)


def _behind(job: Job, rank: int, whole: int, element: int, buckets: int) -> Iterator[Held]:
    size = partition_elements(job)
    own_bytes = 0 if job.offload_optimizer != "none" else partition_gradients(job, rank)
    capacity = job.bucket_elements
    summed = compact(job)
    filled = 0
    remaining = whole
    pieces: set[int] = set()
    mine = 0
    offset = 0
    owns = False

    def reduce() -> Iterator[Held]:
        nonlocal mine
        flat = element * filled if len(pieces) > 1 or (summed and owns) else 0
        if summed and owns:
            mine = own_bytes
        # fp32 sums are sent in 16 bits.
        sent = job.element * filled if element > job.element else 0
        yield Held("reducing a bucket", 0, 0, remaining + mine, buckets, 0, flat + sent)
        if owns:
            mine = own_bytes
            yield Held("reducing a bucket", 0, 0, remaining + mine, buckets)

    for weight in job.trained.in_order():
        if filled + weight.elements > capacity and filled:
            yield from reduce()
            filled = 0
            pieces.clear()
        if weight.elements <= capacity:
            remaining -= element * weight.elements
        filled += weight.elements
        last = offset + weight.elements - 1
        pieces.update(range(offset // size, last // size + 1))
        owns = owns or offset // size <= rank <= last // size
        offset += weight.elements
    yield from reduce()


def _partitioned(job: Job, live: Gathered | None) -> Iterator[Held]:
    """Stage 3: gradients go into the permanent bucket, and a full one is reduced and scattered.

    runtime/zero/stage3.py, __add_grad_to_ipg_bucket and __avg_scatter_grads; runtime/comm/coalesced_collectives.py,
    reduce_scatter_coalesced: the pieces are put in the order of their ranks, which is a copy of the bucket's content.
    With offload a rank's piece passes through the device, and its norm is taken in fp64 (_constant_buffered_norm2).
    """
    e, n, tied = job.element, job.ranks, _tied(job)
    offloaded = job.offload_optimizer != "none"
    capacity = job.bucket_elements
    filled = waiting = largest = pieces = 0
    if live:
        below = activations.kept_between_layers(job, activations.layer_bytes(job), job.architecture.layers)
        kept = job.tokens * (below + activations.around_layers(job))
        yield Held("gathering", kept, 0, 0, 0, e * live.copying)

    def reduce(name: str, acts: int, gathered: int, gradient: int) -> Iterator[Held]:
        alone = pieces == 1 and filled % n == 0
        flat = 0 if alone else e * filled
        # Reduced pieces are views of the flat copy until they are converted to the type of the sums.
        converted = job.accumulate * -(-filled // n) if job.accumulate != e else 0
        own = -(-largest // n)
        moved = job.accumulate * own if job.kind != "cpu" else 0
        passing = _NORM_BYTES * min(own, _NORM_ELEMENTS) + moved if offloaded else 0
        temporaries = max(flat + converted, (converted or flat) + passing)
        yield Held(name, acts, 0, gradient + waiting + tied, 0, gathered, temporaries)

    for stop in _stops(job, live):
        if not stop.weights:
            yield Held(stop.name, stop.activations, 0, waiting + tied, 0, stop.gathered)
        for elements, _ in stop.weights:
            gradient = e * elements
            if filled + elements > capacity and filled:
                yield from reduce(f"{stop.name}, reducing", stop.activations, stop.gathered, gradient)
                filled = waiting = largest = pieces = 0
            yield Held(stop.name, stop.activations, 0, gradient + waiting + tied, 0, stop.gathered)
            filled += elements
            pieces += 1
            largest = max(largest, elements)
            if elements > capacity or not job.contiguous:
                waiting += gradient
    if filled:
        yield from reduce("last bucket", 0, 0, 0)


def loss_moments(job: Job, live: Gathered | None) -> tuple[Held, Held, Held]:
    """The loss forward, the loss backward, and the output head's backward pass, before any bucket is there."""
    layers = job.architecture.layers
    kept = job.tokens * (
        activations.around_layers(job)
        + activations.kept_between_layers(job, activations.layer_bytes(job), layers)
        + activations.final_norm_bytes(job)
    )
    gathered = job.element * live.loss if live else 0
    head = loss.head_gradient_bytes(job)
    hidden = loss.hidden_gradient_bytes(job)
    chunked = bool(job.chunk)
    return (
        Held("loss forward", kept, loss.forward_bytes(job), 0, 0, gathered),
        Held(
            "loss backward",
            kept + (hidden if chunked else 0),
            loss.backward_bytes(job),
            head // 2 if chunked else 0,
            0,
            gathered,
        ),
        Held("output head backward", kept + hidden, loss.logits_gradient_bytes(job), head, 0, gathered),
    )
