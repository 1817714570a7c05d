"""Which parameters stage 3 holds gathered at which moment: DeepSpeed's coordinator, in numbers of elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsgen.memory.job import EMBEDDING, HEAD, Job

_FORWARD = "forward"
_RECOMPUTE = "recompute"


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Most elements that are held gathered."""

    forward: int
    """In the forward pass of the layers."""
    loss: int
    """While the loss is taken."""
    backward: dict[str, tuple[int, ...]]
    """In the backward pass of a module: in the last layer, in the one before it, and so on; the last figure is the most
    in any layer further down. `recompute` while a layer is computed again."""
    copying: int
    """While parameters are copied out of a flat buffer in the backward pass."""

    def at(self, modules: frozenset[str], above: int) -> int:
        """In the backward pass of any of these modules, or of any module when there is none, with `above` layers
        between it and the output."""
        named = [self.backward[name] for name in modules if name in self.backward]
        return max((figures[min(above, len(figures) - 1)] for figures in named or self.backward.values()), default=0)


def gathered(job: Job) -> Gathered:
    """Follow the coordinator through one forward and backward pass.

    runtime/zero/partitioned_param_coordinator.py: fetch_sub_module gathers what a module needs, and ahead of it up to
    the prefetch bucket while fewer than max_live elements are held; release_sub_module keeps what is used again within
    max_reuse elements. Parameters that are gathered together exist twice until the last of them has been used: in the
    flat buffer and as copies (runtime/zero/partition_parameters.py, AllGatherCoalescedHandle.wait).

    Layers are alike, so no more of them are followed than the limits reach across.
    """
    sizes = {w.module: w.elements for w in job.parameters.layer if w.elements > job.persistence_elements}
    layer_elements = sum(sizes.values())
    if job.ranks == 1 and job.offload_parameters == "none":
        return Gathered(forward=0, loss=0, backward={}, copying=0)
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
    visit(head, -1, HEAD)
    every = job.checkpoint_every
    layer = layers - 1
    while layer >= 0:
        first = layer - layer % every if every else layer
        if every:
            for again in range(first, layer + 1):
                for name in order:
                    visit(name, again, _RECOMPUTE)
        for back in range(layer, first - 1, -1):
            for name in reversed(order):
                visit(name, back, name)
        layer = first - 1
    visit(EMBEDDING, -1, EMBEDDING)

    held, highest = _follow(steps, elements, job.live_elements, job.reuse_elements, job.prefetch_elements)
    backward: dict[str, list[int]] = {}
    for label, size in zip(labels[forward_steps:], held[forward_steps:], strict=True):
        backward.setdefault(label, []).append(size)
    loss = max((held[i] for i in (forward_steps - 1, forward_steps) if i < len(held)), default=0)
    near = layers // 2
    return Gathered(
        forward=max(highest[:forward_steps], default=0),
        copying=max(highest[forward_steps:], default=0),
        loss=loss,
        backward={
            label: (*figures[:near], max(figures[near:])) if label in sizes and len(figures) > near else (max(figures),)
            for label, figures in backward.items()
        },
    )


_ORDER = ("q_proj", "k_proj", "v_proj", "W_pack", "o_proj", "gate_proj", "up_proj", "down_proj")


def _execution_order(sizes: dict[str, int]) -> list[str]:
    """Modules of a layer in the order in which the forward pass runs them."""
    return [name for name in _ORDER if name in sizes]


def _follow(
    steps: Sequence[int], elements: Sequence[int], live: int, reuse: int, prefetch: int
) -> tuple[list[int], list[int]]:
    """Elements held while each module of a pass runs, and most until then, of a pass whose order DeepSpeed knows (from
    the second one on)."""
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
                batch.append(q)
                ahead += elements[q]
            queue += 1
        if batch:
            held += ahead
            counted += ahead
            alone = len(batch) == 1
            flight = [len(batch), 0 if alone else ahead, 0 if alone else ahead]
            for q in batch:
                flights[q] = flight
        result.append(held)
        most.append(max(held, highest))
        if fetched_for.get(p, -1) <= i and not (following[i] < count and before[following[i]] - before[i + 1] < reuse):
            available.discard(p)
            held -= size
            counted -= size
    return result, most
