"""The backward pass: activations shrink, gradients come and are reduced. Stages 0 to 3, parameter by parameter."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
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


_Stop = tuple[str, int, int, int, tuple[tuple[int, int], ...], int]
"""A place in the backward pass: its name, its activations, gathered weights and gradients of a tied head in bytes, and
the parameters whose gradients are complete there: elements and offset, and from where in the flat buffer offsets
count."""


def _stops(job: Job, live: Gathered | None) -> Iterator[_Stop]:
    """The places of the backward pass behind the loss, in order."""
    trained = job.trained
    per_layer = trained.per(trained.layer)
    start = trained.per(trained.before)
    end = start + per_layer * trained.layers
    e = job.element
    hidden = job.tokens * e * job.architecture.hidden_size
    layer, layers = activations.layer_bytes(job), job.architecture.layers
    kept = job.tokens * (activations.around_layers(job) + activations.kept_between_layers(job, layer, layers))
    norm = job.tokens * activations.final_norm_bytes(job)

    def placed(weights: tuple[Weight, ...], modules: frozenset[str]) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        offset = 0
        for weight in weights:
            if weight.module in modules:
                found.append((weight.elements, offset))
            offset += weight.elements
        return tuple(reversed(found))

    def gathered(modules: Iterable[str], passed: str) -> list[int]:
        """Layer by layer, the first one first."""
        return [e * elements for elements in reversed(live.during(modules, passed, layers))] if live else [0] * layers

    after_head, after_norm = frozenset({HEAD}), frozenset({FINAL_NORM})
    at_head, at_norm, at_embedding = (
        (e * live.head_backward, e * live.last_norm, e * live.embedding_backward) if live else (0, 0, 0)
    )
    tied = _tied(job)
    yield "output head", kept + norm + hidden, at_head, tied, placed(trained.after, after_head), end
    # Its input and five more in fp32, as in a layer (activations.backward_points).
    last_norm = kept + job.tokens * (24 * job.architecture.hidden_size + 4)
    # Its weight's gradient is there first.
    yield "last norm", kept + norm + hidden, at_norm, tied, placed(trained.after, after_norm), end
    yield "last norm", last_norm, at_norm, tied, (), end
    again = _again(job, layer, live) if live and job.checkpoint_every else []
    points = []
    passed = ""
    for point in activations.backward_points(job, layer):
        points.append((point.name, gathered(point.modules, passed), placed(trained.layer, point.modules)))
        passed = next((name for name in point.modules if live and name in live.backward), passed)
    for (_, number, held), (name, figures, weights) in zip(
        activations.backward(job), itertools.cycle(points), strict=False
    ):
        if name == activations.COMPUTED_AGAIN:
            own, weights_gathered = again[min(layers - 1 - number, len(again) - 1)]
            yield name, held + own, weights_gathered, tied, (), 0
        else:
            yield name, held, figures[number], tied, weights, start + number * per_layer
    first = job.tokens * activations.around_layers(job) + hidden
    # The gradients of a tied head and of the embedding, and their sum.
    yield "embedding", first, at_embedding, 3 * tied, (), 0
    yield "embedding", first, at_embedding, 0, placed(trained.before, frozenset({EMBEDDING})), 0


def _again(job: Job, layer: activations.Layer, live: Gathered) -> list[tuple[int, int]]:
    """Activations of the layer itself and gathered weights, in bytes, at the highest moment of a layer's second forward
    pass: in the last layer, in the one before it, and so on."""
    found: list[tuple[int, int]] = []
    for name, part in activations.again_parts(job, layer).items():
        moments = [
            max(((job.tokens * own, job.element * gathered) for gathered, own in zip(pair, part, strict=True)), key=sum)
            for pair in live.again.get(name, ())
        ]
        if moments:
            found = [max(pair, key=sum) for pair in zip(found, moments, strict=True)] if found else moments
    # Where everything stays only the end counts.
    end = activations.again_parts(job, layer)[activations.DOWN].during
    return found or [(job.tokens * end, 0)]


def backward_pass(job: Job, ranks: Sequence[int], live: Gathered | None) -> list[Held]:
    """For each of `ranks` the highest moment of the last micro batch's backward pass behind the loss."""
    if job.stage == 3:
        return [_partitioned(job, live)] * len(ranks)
    if job.stage == 2 or (job.stage == 1 and job.overlap and not job.bf16_optimizer):
        return _bucket_by_bucket(job, ranks)
    piling = _piling(job)
    return [_summed(job, rank, piling) for rank in ranks]


def _tied(job: Job) -> int:
    """A tied output head's gradient waits for that of the embedding (autograd's input buffer)."""
    if not job.architecture.tied_embeddings or job.adapter_rank:
        return 0
    return job.element * job.architecture.vocabulary_size * job.architecture.hidden_size


class _Bucket(NamedTuple):
    """Gradients that are reduced together, the same on every rank, and what is held besides."""

    name: str
    """Where the backward pass is."""
    activations: int
    gradients: int
    """Those that wait, but for what the rank holds of its own partition."""
    elements: int
    aside: bool
    """One gradient that is larger than a bucket, and is not in it."""
    weights: list[tuple[int, int]]
    """Elements and offset in the flat buffer."""
    first: int
    behind: int
    """The range in the flat buffer."""


class _Rank:
    """What a rank holds of its own partition while buckets are reduced, and its highest moment.

    runtime/zero/stage_1_and_2.py: allreduce_bucket flattens the pieces that belong to different partitions, which is a
    second copy of the bucket's content; one piece alone is not copied. copy_grads_in_partition then allocates this
    rank's partition anew in every micro batch, beside that of the micro batches before (average_tensor adds them at the
    end).
    """

    def __init__(self, job: Job, rank: int) -> None:
        self.summed, self.contiguous = compact(job), job.contiguous
        self.offloaded, self.first_stage = job.offload_optimizer != "none", job.stage == 1
        self.summing = self.offloaded and job.accumulation > 1
        self.e, self.size, self.sent = job.element, partition_elements(job), job.sent
        self.element = job.accumulate if job.stage == 1 and self.summed else self.e
        self.buckets = bucket_bytes(job)
        self.start, self.end = rank * self.size, (rank + 1) * self.size
        self.earlier = 0 if job.stage == 1 else accumulated(job, rank).get(GRADIENTS, 0)
        self.own_bytes = 0 if self.offloaded and not self.summed else partition_gradients(job, rank)
        self.mine = self.earlier
        self.most = 0
        self.highest = Held("")

    def reduce(self, bucket: _Bucket) -> None:
        """A bucket is reduced."""
        largest_own = own_pieces = own_elements = 0
        if bucket.first < self.end and bucket.behind > self.start:
            for elements, offset in bucket.weights:
                own = min(offset + elements, self.end) - max(offset, self.start)
                if own > 0:
                    own_pieces += 1
                    own_elements += elements
                    largest_own = max(largest_own, own)
        split = bucket.first // self.size < (bucket.behind - 1) // self.size or (self.summed and own_pieces > 1)
        flat = self.element * bucket.elements if split or not self.contiguous else 0
        if own_pieces and self.summed:
            self.mine = self.own_bytes
        # With fp32 accumulation the reduced piece is upcast before it is added.
        if self.element != self.sent:
            upcast = self.sent * bucket.elements
        else:
            upcast = 4 * largest_own if self.summed and own_pieces else 0
        self.note(*bucket[:3], self.buckets, flat + upcast)
        if not own_pieces:
            return
        norm = _NORM_BYTES * largest_own if self.offloaded else 0
        if self.contiguous and not self.summed and not self.offloaded:
            self.mine = self.earlier + self.own_bytes
        self.note(*bucket[:3], self.buckets, norm)
        if self.summed:
            return
        if not self.first_stage and (not self.contiguous or (self.summing and bucket.aside)):
            # They stay where they are, copied to the host or not; with offload the last micro batch clears them.
            self.mine += own_elements * self.e
        elif self.first_stage and bucket.aside and self.contiguous and not self.offloaded:
            # Of those that stay at stage 1 its own do not.
            self.mine -= own_elements * self.e

    def note(self, name: str, activations: int, gradients: int, buckets: int, temporaries: int = 0) -> None:
        """A moment; `gradients` without its own."""
        gradients += self.mine
        now = activations + gradients + buckets + temporaries
        if now > self.most:
            self.most, self.highest = now, Held(name, activations, 0, gradients, buckets, 0, temporaries)


def _bucket_by_bucket(job: Job, ranks: Sequence[int]) -> list[Held]:
    """Stage 2, and stage 1 with overlap_comm: gradients go into a bucket as they come, and a full one is reduced.

    runtime/zero/stage_1_and_2.py: reduce_independent_p_g_buckets_and_remove_grads copies a gradient into the bucket
    and frees it; before one that no longer fits, reduce_ipg_grads reduces. At stage 1 the sums of earlier micro batches
    lie in the parameters' own gradients, whole, until they have been copied into the bucket.
    """
    e = job.element
    first_stage = job.stage == 1
    element = job.accumulate if first_stage and compact(job) else e
    piled = element * job.trained.elements if first_stage and job.accumulation > 1 else 0
    buckets, capacity = bucket_bytes(job), job.bucket_elements
    # What is sent in another type is copied.
    size, sent = partition_elements(job), job.sent if element != job.sent else 0
    several = [_Rank(job, rank) for rank in ranks]
    filled = waiting = behind = most = 0
    first = job.trained.elements
    weights: list[tuple[int, int]] = []
    filling = "", 0, 0, 0

    def reduce(name: str, held: int, gradients: int) -> None:
        """The bucket is reduced; before, it was filled."""
        bucket = None
        split = first // size < (behind - 1) // size
        temporaries = (element * filled if split or not job.contiguous else 0) + sent * filled
        for each in several:
            if most + each.mine > each.most:
                each.note(*filling)
            if first < each.end and behind > each.start:
                bucket = bucket or _Bucket(name, held, gradients, filled, filled > capacity, weights, first, behind)
                each.reduce(bucket)
            elif held + gradients + buckets + temporaries + each.mine > each.most:
                each.note(name, held, gradients, buckets, temporaries)

    for name, held, _, tied, complete, start in _stops(job, None):
        if not complete:
            now, allocated = piled + waiting + tied, buckets if filled else 0
            if held + now + allocated > most:
                most, filling = held + now + allocated, (name, held, now, allocated)
        for elements, offset in complete:
            gradient = e * elements
            if filled and filled + elements > capacity:
                reduce(f"{name}, reducing", held, piled + waiting + gradient + tied)
                filled = behind = most = 0
                # Stage 1 clears no gradient; those in a bucket are views of it.
                waiting = waiting if first_stage else 0
                first = job.trained.elements
                weights = []
            now = piled + waiting + gradient + tied
            if held + now + buckets > most:
                most, filling = held + now + buckets, (name, held, now, buckets)
            filled += elements
            if elements <= capacity and job.contiguous:
                piled -= min(piled, element * elements)
            elif not piled:
                waiting += gradient
            place = start + offset
            weights.append((elements, place))
            first, behind = min(first, place), max(behind, place + elements)
    reduce("last bucket", 0, piled + waiting)
    highest = [each.highest for each in several]
    if first_stage and job.accumulation > 1:
        # Only the last micro batch is reduced: in those before it gradients are summed whole.
        before = _piling(job)
        highest = [max(before, each, key=_all) for each in highest]
    return highest


def _piling(job: Job) -> Held:
    """Stages 0 and 1, and BF16_Optimizer: whole gradients pile up until the backward pass has ended."""
    trained, e = job.trained, job.element
    fp32_sums = job.stage == 1 and compact(job) and not job.bf16_optimizer
    element = job.accumulate if fp32_sums else e
    buckets = bucket_bytes(job) if job.stage == 1 and not job.bf16_optimizer else 0
    started = job.accumulation > 1
    grown = element * trained.elements if started else 0
    most, highest = 0, Held("")
    for name, held, _, tied, complete, _ in _stops(job, None):
        if not complete:
            now, allocated = grown + tied, buckets if started else 0
            if held + now + allocated > most:
                most, highest = held + now + allocated, Held(name, held, 0, now, allocated)
        for elements, _ in complete:
            started = True
            now = grown + e * elements + (element * elements if fp32_sums else 0) + tied
            if held + now + buckets > most:
                most, highest = held + now + buckets, Held(name, held, 0, now, buckets)
            if job.accumulation == 1:
                grown += element * elements
    return highest


def _summed(job: Job, rank: int, piling: Held) -> Held:
    """Stages 0 and 1, and BF16_Optimizer: whole gradients are reduced behind the backward pass.

    runtime/engine.py, buffered_allreduce_fallback (stage 0: 5e8 elements flattened at once);
    runtime/bf16_optimizer.py (one flat fp32 gradient, sent as a copy in 16 bits);
    runtime/zero/stage_1_and_2.py, reduce_gradients (stage 1: bucket by bucket, in the order of registration).
    """
    trained, e = job.trained, job.element
    whole = e * trained.elements
    moments = [piling]
    if job.bf16_optimizer:
        moments.append(Held("adding to the fp32 gradients", gradients=whole, temporaries=4 * trained.largest))
        moments.append(Held("all-reduce", gradients=whole, temporaries=e * aligned_elements(job)))
    elif job.stage == 0:
        flat = highest = 0
        for weight in trained.in_order():
            flat += weight.elements
            highest = max(highest, flat)
            if flat > _ALL_REDUCED_AT_ONCE:
                flat = 0
        moments.append(Held("all-reduce", gradients=whole, temporaries=e * highest))
    else:
        moments.extend(_behind(job, rank))
    return max(moments, key=_all)


def _behind(job: Job, rank: int) -> Iterator[Held]:
    size = partition_elements(job)
    start, end = rank * size, (rank + 1) * size
    own_bytes = 0 if job.offload_optimizer != "none" else partition_gradients(job, rank)
    capacity, buckets = job.bucket_elements, bucket_bytes(job)
    summed = compact(job)
    element = job.accumulate if summed else job.element
    remaining = element * job.trained.elements
    filled = first = offset = mine = 0

    def reduce() -> Iterator[Held]:
        """What lies from `first` to `offset` in the flat buffer."""
        nonlocal mine
        owns = first < end and offset > start
        flat = element * filled if first // size < (offset - 1) // size or (summed and owns) else 0
        if summed and owns:
            mine = own_bytes
        # What is sent in another type is copied.
        sent = job.sent * filled if element != job.sent else 0
        yield Held("reducing a bucket", 0, 0, remaining + mine, buckets, 0, flat + sent)
        if owns:
            mine = own_bytes
            yield Held("reducing a bucket", 0, 0, remaining + mine, buckets)

    for weight in job.trained.in_order():
        elements = weight.elements
        if filled + elements > capacity and filled:
            yield from reduce()
            filled, first = 0, offset
        if elements <= capacity:
            remaining -= element * elements
        filled += elements
        offset += elements
    yield from reduce()


def _all(held: Held) -> int:
    return held.all


def _partitioned(job: Job, live: Gathered | None) -> Held:
    """Stage 3: gradients go into the permanent bucket, and a full one is reduced and scattered.

    runtime/zero/stage3.py, __add_grad_to_ipg_bucket and __avg_scatter_grads; runtime/comm/coalesced_collectives.py,
    reduce_scatter_coalesced: the pieces are put in the order of their ranks, which is a copy of the bucket's content.
    With offload a rank's piece passes through the device, and its norm is taken in fp64 (_constant_buffered_norm2).
    """
    e, n, sent = job.element, job.ranks, job.sent
    offloaded = job.offload_optimizer != "none"
    capacity = job.bucket_elements
    filled = waiting = 0
    sizes: list[int] = []
    highest = Held("")
    if live:
        below = activations.kept_between_layers(job, activations.layer_bytes(job), job.architecture.layers)
        kept = job.tokens * (below + activations.around_layers(job))
        highest = Held("gathering", kept, gathered=e * live.copying)
    most = highest.all

    @functools.cache
    def reducing(filled: int, sizes: tuple[int, ...]) -> int:
        """Temporaries; `sizes`: elements of the gradients in the bucket."""
        alone = len(sizes) == 1 and filled % n == 0
        flat = 0 if alone else sent * filled
        # Reduced pieces are views of the flat copy until they are converted to the type of the sums.
        converted = job.accumulate * -(-filled // n) if job.accumulate != sent else 0
        passing = freed = 0
        for elements in sizes if offloaded else ():
            own = -(-elements // n)
            moved = job.accumulate * own if job.kind != "cpu" else 0
            passing = max(passing, _NORM_BYTES * min(own, _NORM_ELEMENTS) + moved - freed)
            # One that is not a view of the bucket goes when its piece has passed.
            freed += 0 if job.contiguous else e * elements
        return max(flat + converted, (converted or flat) + passing)

    for name, held, gathered, tied, complete, _ in _stops(job, live):
        if not complete:
            now = waiting + tied
            if held + gathered + now > most:
                most, highest = held + gathered + now, Held(name, held, gradients=now, gathered=gathered)
        for elements, _ in complete:
            gradient = e * elements
            if filled + elements > capacity and filled:
                now, temporaries = gradient + waiting + tied, reducing(filled, tuple(sizes))
                if held + gathered + now + temporaries > most:
                    most = held + gathered + now + temporaries
                    highest = Held(f"{name}, reducing", held, 0, now, 0, gathered, temporaries)
                filled = waiting = 0
                sizes.clear()
            now = gradient + waiting + tied
            if held + gathered + now > most:
                most, highest = held + gathered + now, Held(name, held, gradients=now, gathered=gathered)
            filled += elements
            sizes.append(elements)
            if elements > capacity or not job.contiguous:
                waiting += gradient
    if not filled:
        return highest
    # The embedding goes when the pass has ended.
    left = e * live.embedding_backward if live else 0
    temporaries = reducing(filled, tuple(sizes))
    return max(highest, Held("last bucket", 0, 0, waiting, 0, left, temporaries), key=_all)


def loss_moments(job: Job, live: Gathered | None) -> tuple[Held, ...]:
    """The loss forward, the loss backward, and the output head's backward pass, before any bucket is there."""
    layers = job.architecture.layers
    kept = job.tokens * (
        activations.around_layers(job)
        + activations.kept_between_layers(job, activations.layer_bytes(job), layers)
        + activations.final_norm_bytes(job)
    )
    at_head, at_loss, at_backward, back = (
        [job.element * each for each in (live.head, live.loss, live.loss_backward, live.head_backward)]
        if live
        else [0] * 4
    )
    head = loss.head_gradient_bytes(job)
    hidden = loss.hidden_gradient_bytes(job)
    several = loss.chunks(job) > 1
    return (
        Held("output head", kept, loss.logits_gradient_bytes(job), gathered=at_head),
        Held("loss forward", kept, loss.forward_bytes(job), gathered=at_loss),
        Held(
            "loss backward",
            kept + (hidden if several else 0),
            loss.backward_bytes(job),
            head // 2 if several else 0,
            0,
            at_backward,
        ),
        Held("output head backward", kept + hidden, loss.logits_gradient_bytes(job), head, 0, back),
    )
