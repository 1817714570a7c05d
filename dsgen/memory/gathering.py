"""Which parameters stage 3 holds gathered at which moment: DeepSpeed's coordinator, in numbers of elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dsgen.memory.job import EMBEDDING, HEAD, Job
from dsgen.memory.states import gathers

_FORWARD = "forward"
_RECOMPUTE = "recompute"
_CHUNK = "recomputed loss"


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Most elements that are held gathered."""

    forward: int
    """In the forward pass of the layers."""
    forward_copying: int
    """While parameters are copied out of a flat buffer in it, between modules."""
    head: int
    """In the output head's forward pass."""
    loss: int
    """While the loss is taken: what is left when the head is through."""
    head_backward: int
    embedding_backward: int
    backward: dict[str, list[int]]
    """In the backward pass of a module: in the last layer, in the one before it, and so on; the last figure is the most
    in any layer further down."""
    behind: dict[str, list[int]]
    """The same when the module has been released."""
    copying: int
    """While parameters are copied out of a flat buffer in the backward pass."""

    def during(self, modules: Iterable[str], passed: str, layers: int) -> list[int]:
        """In the backward pass of any of these modules, where none of them is gathered behind that of `passed`: in the
        last of `layers` layers, in the one before it, and so on."""
        named = [self.backward[name] for name in modules if name in self.backward]
        several = named or [self.behind[name] for name in (passed,) if name in self.behind]
        padded = [(*figures[:layers], *figures[-1:] * (layers - len(figures))) for figures in several]
        return [max(figures) for figures in zip(*padded, strict=True)] or [0] * layers


_NOTHING = Gathered(
    forward=0,
    forward_copying=0,
    head=0,
    loss=0,
    head_backward=0,
    embedding_backward=0,
    backward={},
    behind={},
    copying=0,
)


def gathered(job: Job) -> Gathered:
    """Follow the coordinator through one forward and backward pass.

    runtime/zero/partitioned_param_coordinator.py: fetch_sub_module gathers what a module needs, and ahead of it up to
    the prefetch bucket while fewer than max_live elements are held; release_sub_module keeps what is used again within
    max_reuse elements. Parameters that are gathered together exist twice until the last of them has been used: in the
    flat buffer and as copies (runtime/zero/partition_parameters.py, AllGatherCoalescedHandle.wait). One rank alone
    needs no flat buffer (NoGatherCoalescedHandle).

    Layers are alike, so no more of them are followed than the limits reach across.
    """
    sizes = {w.module: w.elements for w in job.parameters.layer if w.elements > job.persistence_elements}
    layer_elements = sum(sizes.values())
    if not gathers(job):
        return _NOTHING
    reach = 2 * max(job.live_elements, job.reuse_elements, job.prefetch_elements)
    layers = min(job.architecture.layers, 6 + reach // max(1, layer_elements))
    ends = {w.module: w.elements for w in (*job.parameters.before, *job.parameters.after)}
    ends = {name: size for name, size in ends.items() if size > job.persistence_elements}
    order = _execution_order(sizes)
    head = HEAD if HEAD in ends else EMBEDDING

    numbers: dict[tuple[str, int], int] = {}
    elements: list[int] = []

    def number(name: str, layer: int) -> int:
        key = (name, layer)
        if key not in numbers:
            numbers[key] = len(elements)
            elements.append(ends[name] if layer < 0 else sizes[name])
        return numbers[key]

    steps: list[int] = []
    labels: list[str] = []

    def visit(name: str, layer: int, label: str) -> None:
        if layer < 0 and name not in ends:
            return
        steps.append(number(name, layer))
        labels.append(label)

    visit(EMBEDDING, -1, _FORWARD)
    for layer in range(layers):
        for name in order:
            visit(name, layer, _FORWARD)
    visit(head, -1, HEAD)
    forward_steps = len(steps)
    if job.chunk:
        visit(head, -1, _CHUNK)
    loss_steps = len(steps)
    visit(head, -1, HEAD)
    every = job.checkpoint_every
    trained = not job.adapter_rank or EMBEDDING in job.adapter_modules
    layer = layers - 1
    while layer >= 0:
        first = layer - layer % every if every else layer
        if every:
            for again in range(first, layer + 1):
                for name in order:
                    visit(name, again, _RECOMPUTE)
        for back in range(layer, first - 1, -1):
            for name in reversed(order):
                # Nothing before the first layer's attention needs a gradient.
                if trained or back > 0 or name not in _FIRST:
                    visit(name, back, name)
        layer = first - 1
    if trained:
        visit(EMBEDDING, -1, EMBEDDING)

    if not steps:
        return _NOTHING
    held, highest, left = _follow(
        steps,
        elements,
        Limits(job.live_elements, job.reuse_elements, job.prefetch_elements),
        together=job.ranks > 1,
        again=[label in (_RECOMPUTE, _CHUNK) and not job.adapter_rank for label in labels],
        staying=[label == _RECOMPUTE and bool(job.adapter_rank) for label in labels],
        turn=forward_steps,
    )
    backward: dict[str, list[int]] = {}
    behind: dict[str, list[int]] = {}
    for label, during, after in zip(labels[forward_steps:], held[forward_steps:], left[forward_steps:], strict=True):
        backward.setdefault(label, []).append(during)
        behind.setdefault(label, []).append(after)
    has_head = head in ends
    if layers < job.architecture.layers:
        near = layers // 2
        for each in (backward, behind):
            each.update(
                {label: [*figures[:near], max(figures[near:])] for label, figures in each.items() if label in sizes}
            )
    return Gathered(
        forward=max(held[:forward_steps], default=0),
        forward_copying=max(highest[:forward_steps], default=0),
        head=highest[forward_steps - 1] if forward_steps else 0,
        loss=left[loss_steps - 1] if loss_steps else 0,
        head_backward=held[loss_steps] if has_head else 0,
        embedding_backward=held[-1] if trained else left[-1],
        backward=backward,
        behind=behind,
        copying=max(highest[forward_steps:], default=0),
    )


_FIRST = ("q_proj", "k_proj", "v_proj", "W_pack")
_ORDER = (*_FIRST, "o_proj", "gate_proj", "up_proj", "down_proj")


def _execution_order(sizes: dict[str, int]) -> list[str]:
    """Modules of a layer in the order in which the forward pass runs them."""
    return [name for name in _ORDER if name in sizes]


class Limits(NamedTuple):
    """DeepSpeed's own, in elements."""

    live: int
    reuse: int
    prefetch: int


def _follow(
    steps: Sequence[int],
    elements: Sequence[int],
    limits: Limits,
    *,
    together: bool,
    again: Sequence[bool],
    staying: Sequence[bool],
    turn: int,
) -> tuple[list[int], list[int], list[int]]:
    """Elements held while each module of a pass runs, most until then, and what is left when it has been released, of a
    pass whose order DeepSpeed knows (from the second one on).

    `together`: what is fetched at once comes in a flat buffer. `staying`: frozen parameters that are gathered to
    compute a layer again belong to the module whose backward pass asked for it, and go when that is through, whatever
    the limits (fetch_sub_module, update_recompute_parameters, release_sub_module). `again`: what is computed again
    keeps the weights that it read, even when they are released and gathered anew (runtime/zero/linear.py saves them).
    `turn`: where the backward pass
    begins. What is fetched before for use behind it is not in a flat buffer any more when the loss is taken (measured).
    """
    live, reuse, prefetch = limits
    owned: set[int] = set()
    saved: set[int] = set()
    count = len(steps)
    before = [0] * (count + 1)
    for i, p in enumerate(steps):
        before[i + 1] = before[i] + elements[p]
    following = [count] * count
    seen: dict[int, int] = {}
    for i in range(count - 1, -1, -1):
        following[i] = seen.get(steps[i], count)
        seen[steps[i]] = i
    available: set[int] = set()
    flights: dict[int, list[int]] = {}  # parameter -> [waiting parameters, elements of the flat buffer, all elements]
    fetched_for: dict[int, int] = {}
    held = counted = queue = 0
    result: list[int] = []
    most: list[int] = []
    left: list[int] = []
    for i, p in enumerate(steps):
        size = elements[p]
        highest = 0
        if p in flights:
            flight = flights.pop(p)
            if flight[2]:
                # The first of them to be used copies all of them out of the flat buffer.
                held += flight[2]
                flight[2] = 0
            available.add(p)
            flight[0] -= 1
            highest = held
            if not flight[0]:
                held -= flight[1]
        elif p not in available:
            available.add(p)
            held += size
            counted += size
        if queue <= i:
            queue = i + 1
            fetched_for[p] = i
        room = min(live - counted, prefetch)
        batch: list[int] = []
        ahead = 0
        while queue < count and ahead < room:
            q = steps[queue]
            fetched_for[q] = queue
            if q not in available and q not in flights and q not in batch:
                if queue >= turn > i:
                    available.add(q)
                    held += elements[q]
                    counted += elements[q]
                else:
                    batch.append(q)
                ahead += elements[q]
            queue += 1
        if batch:
            ahead = sum(elements[q] for q in batch)
            held += ahead
            counted += ahead
            alone = len(batch) == 1 or not together
            flight = [len(batch), 0 if alone else ahead, 0 if alone else ahead]
            for q in batch:
                flights[q] = flight
        result.append(held)
        most.append(max(held, highest))
        used_again = following[i] < count
        if staying[i]:
            owned.add(p)
        elif owned:
            gone = sum(elements[q] for q in owned & available)
            held -= gone
            counted -= gone
            available -= owned
            owned.clear()
        elif fetched_for.get(p, -1) <= i and not (used_again and before[following[i]] - before[i + 1] < reuse):
            available.discard(p)
            counted -= size
            if again[i] and used_again:
                saved.add(p)
            else:
                held -= size
        if not again[i] and i >= turn and p in saved:
            saved.discard(p)
            held -= size
        left.append(held)
    return result, most, left
