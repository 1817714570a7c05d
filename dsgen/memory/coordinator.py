"""DeepSpeed's parameter coordinator of stage 3, in numbers of elements: what is gathered while modules run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

NOTHING = 0
"""The parameter of a module that has none of its own."""


class Limits(NamedTuple):
    """DeepSpeed's own, in elements."""

    live: int
    reuse: int
    prefetch: int


class Event(NamedTuple):
    """A module begins, or what it owns may go."""

    parameter: int
    elements: int
    """Of all that the module owns, small parameters that are never released included."""
    label: str
    layer: int
    ends: bool = False
    back: bool = False
    """In the backward pass."""
    again: bool = False
    """In a forward pass that the backward pass asked for."""


@dataclass
class Pass:
    """The modules of one forward and backward pass, in the order in which their hooks run."""

    elements: list[int] = field(default_factory=lambda: [0])
    frozen: list[bool] = field(default_factory=lambda: [False])
    small: set[int] = field(default_factory=set)
    """Parameters that are never released once they are there."""
    events: list[Event] = field(default_factory=list)
    first_back: int = 0
    """The event that begins the backward pass."""

    def add(self, elements: Sequence[int], frozen: Sequence[bool], small: Sequence[bool]) -> int:
        """Add parameters; gives the number of the first one."""
        first = len(self.elements)
        self.elements.extend(elements)
        self.frozen.extend(frozen)
        self.small.update(first + i for i, stays in enumerate(small) if stays)
        return first


class Figures(NamedTuple):
    """Elements that are held gathered, event by event."""

    held: list[int]
    """When the module runs; at its end, before it is released."""
    most: list[int]
    """Until then, while parameters are copied out of a flat buffer."""
    left: list[int]
    """When it is released."""


def follow(order: Pass, limits: Limits, *, together: bool, step_between: bool) -> Figures:
    """Go through a pass whose order DeepSpeed knows; small parameters that stay are not counted.

    What may be released where is decided in the first such pass and kept (__params_to_release is cached). Unless a step
    of the optimizer has gathered the small parameters before (`step_between`, runtime/zero/stage3.py, _post_step), that
    pass gathers them as well, and holds less of the others; so it is gone through before.

    runtime/zero/partitioned_param_coordinator.py: fetch_sub_module gathers what a module needs, and ahead of it up to
    the prefetch bucket while fewer than `live` elements are held, in every module, with parameters or without;
    release_sub_module keeps what was fetched ahead for later and what is used again within `reuse` elements.

    Parameters that are gathered together exist twice until the last of them has been used: in the flat buffer and as
    copies (runtime/zero/partition_parameters.py, AllGatherCoalescedHandle.wait). One rank alone needs no flat buffer:
    `together` is false (NoGatherCoalescedHandle).

    What is computed again keeps the trained weights that it read, even when they are released and gathered anew: torch
    saves detached tensors then (torch/utils/checkpoint.py, _recomputation_hook). Frozen ones are saved as they are, and
    belong to the module whose backward pass asked for it; they go when that ends, whatever the limits
    (update_recompute_parameters), or with the pass (release_backward_leftovers).
    """
    decided: dict[int, bool] = {}
    if not step_between:
        _follow(order, limits, decided, set(), together=together)
    return _follow(order, limits, decided, order.small, together=together)


def _follow(order: Pass, limits: Limits, decided: dict[int, bool], present: set[int], *, together: bool) -> Figures:
    """`decided`: whether a parameter goes at an event; filled where it is empty."""
    live, reuse, prefetch = limits
    elements, frozen = order.elements, order.frozen
    begun = [event for event in order.events if not event.ends]
    steps = [event.parameter for event in begun]
    count = len(steps)
    before = [0, *itertools.accumulate(event.elements for event in begun)]
    uses: dict[int, list[int]] = {}
    for i, p in enumerate(steps):
        uses.setdefault(p, []).append(i)
    for numbers in uses.values():
        numbers.reverse()

    available = {NOTHING, *present}
    flights: dict[int, list[int]] = {}  # parameter -> [waiting parameters, elements of the flat buffer, all elements]
    fetched_for: dict[int, int] = {}
    stays = {NOTHING, *order.small}
    active: dict[tuple[str, int], set[int]] = {}
    owned: set[int] = set()
    saved: set[int] = set()
    held = counted = queue = i = 0
    result: list[int] = []
    most: list[int] = []
    left: list[int] = []
    for event, (p, _, label, layer, ends, back, again) in enumerate(order.events):
        if ends:
            result.append(held)
            most.append(held)
            if back:
                if p in saved:
                    saved.discard(p)
                    held -= elements[p]
                own = active.pop((label, layer))
                owned -= own
                for q in (own & available) - order.small:
                    available.discard(q)
                    held -= elements[q]
                    counted -= elements[q]
            goes = decided.get(event)
            if goes is None:
                numbers = uses[p]
                while numbers and numbers[-1] < i:
                    numbers.pop()
                far = not numbers or before[numbers[-1]] - before[i] >= reuse
                goes = decided[event] = far and p not in stays and fetched_for.get(p, -1) <= i
            if goes and p in available and p not in owned:
                available.discard(p)
                counted -= elements[p]
                if again:
                    saved.add(p)
                else:
                    held -= elements[p]
            left.append(held)
            continue
        highest = held
        if p in flights:
            flight = flights.pop(p)
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
            held += elements[p]
            counted += elements[p]
        if back:
            active[label, layer] = set()
        elif again and frozen[p] and p not in owned:
            next(reversed(active.values())).add(p)
            owned.add(p)
        if queue <= i:
            queue = i + 1
            fetched_for[p] = i
        room = min(live - counted, prefetch)
        if room > 0 and queue < count:
            batch: list[int] = []
            fetched = 0
            while queue < count and fetched < room:
                q = steps[queue]
                fetched_for[q] = queue
                if q not in available and q not in flights and q not in batch:
                    fetched += elements[q]
                    batch.append(q)
                queue += 1
            if batch:
                held += fetched
                counted += fetched
                alone = len(batch) == 1 or not together
                flight = [len(batch), 0 if alone else fetched, 0 if alone else fetched]
                for q in batch:
                    flights[q] = flight
        i += 1
        result.append(held)
        most.append(max(held, highest))
        left.append(held)
    return Figures(result, most, left)
