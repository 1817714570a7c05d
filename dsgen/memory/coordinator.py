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
        _Coordinator(order, limits, decided, set(), together=together).follow()
    return _Coordinator(order, limits, decided, order.small, together=together).follow()


class _Flight:
    """Parameters that are gathered together, until each of them has been used."""

    def __init__(self, waiting: int, elements: int) -> None:
        self.waiting = waiting
        self.flat = self.uncopied = elements


class _Coordinator:
    """`decided`: whether a parameter goes at an event, filled where it is empty. `present`: parameters that are there
    from the beginning."""

    def __init__(
        self, order: Pass, limits: Limits, decided: dict[int, bool], present: set[int], *, together: bool
    ) -> None:
        self.events, self.elements, self.small = order.events, order.elements, order.small
        self.frozen = order.frozen
        self.limits, self.together, self.decided = limits, together, decided
        begun = [event for event in order.events if not event.ends]
        self.steps = [event.parameter for event in begun]
        self.before = [0, *itertools.accumulate(event.elements for event in begun)]
        self.uses: dict[int, list[int]] = {}
        for i in range(len(self.steps) - 1, -1, -1):
            self.uses.setdefault(self.steps[i], []).append(i)
        self.step = self.queue = 0
        """Modules that have begun, and those whose parameters were looked up ahead."""
        self.held = self.counted = 0
        """Elements; `counted` as the coordinator counts them, flat buffers and older copies aside."""
        self.available = {NOTHING, *present}
        self.flights: dict[int, _Flight] = {}
        self.fetched_for: dict[int, int] = {}
        self.active: dict[tuple[str, int], set[int]] = {}
        """Modules whose backward pass runs, with what belongs to them."""
        self.owned: set[int] = set()
        self.saved: set[int] = set()

    def follow(self) -> Figures:
        """Go through all events."""
        figures = Figures([], [], [])
        for number, event in enumerate(self.events):
            if event.ends:
                figures.held.append(self.held)
                figures.most.append(self.held)
                self._end(number, event)
            else:
                highest = self._begin(event)
                figures.held.append(self.held)
                figures.most.append(max(self.held, highest))
            figures.left.append(self.held)
        return figures

    def _begin(self, event: Event) -> int:
        """Gather what a module needs, and what comes behind it; gives the most that is held until then."""
        p = event.parameter
        highest = self.held
        if p in self.flights:
            flight = self.flights.pop(p)
            # The first of them to be used copies all of them out of the flat buffer.
            self.held += flight.uncopied
            flight.uncopied = 0
            highest = self.held
            self.available.add(p)
            flight.waiting -= 1
            if not flight.waiting:
                self.held -= flight.flat
        elif p not in self.available:
            self.available.add(p)
            self.held += self.elements[p]
            self.counted += self.elements[p]
        if event.back:
            self.active[event.label, event.layer] = set()
        elif event.again and self.frozen[p] and p not in self.owned:
            next(reversed(self.active.values())).add(p)
            self.owned.add(p)
        if self.queue <= self.step:
            self.queue = self.step + 1
            self.fetched_for[p] = self.step
        self._fetch_ahead()
        self.step += 1
        return highest

    def _fetch_ahead(self) -> None:
        room = min(self.limits.live - self.counted, self.limits.prefetch)
        if room <= 0:
            return
        steps, queue, count = self.steps, self.queue, len(self.steps)
        batch: list[int] = []
        fetched = 0
        while queue < count and fetched < room:
            p = steps[queue]
            self.fetched_for[p] = queue
            if p not in self.available and p not in self.flights and p not in batch:
                fetched += self.elements[p]
                batch.append(p)
            queue += 1
        self.queue = queue
        if batch:
            self.held += fetched
            self.counted += fetched
            flight = _Flight(len(batch), fetched if len(batch) > 1 and self.together else 0)
            self.flights.update(dict.fromkeys(batch, flight))

    def _end(self, number: int, event: Event) -> None:
        """Release what may go."""
        p = event.parameter
        if event.back:
            if p in self.saved:
                self.saved.discard(p)
                self.held -= self.elements[p]
            own = self.active.pop((event.label, event.layer))
            self.owned -= own
            for each in (own & self.available) - self.small:
                self._drop(each)
        if number not in self.decided:
            self.decided[number] = self._may_go(p)
        if self.decided[number] and p in self.available and p not in self.owned:
            if event.again:
                self.saved.add(p)
                self.held += self.elements[p]
            self._drop(p)

    def _may_go(self, p: int) -> bool:
        if p == NOTHING or p in self.small or self.fetched_for.get(p, -1) > self.step:
            return False
        uses = self.uses[p]
        while uses and uses[-1] < self.step:
            uses.pop()
        return not uses or self.before[uses[-1]] - self.before[self.step] >= self.limits.reuse

    def _drop(self, p: int) -> None:
        self.available.discard(p)
        self.held -= self.elements[p]
        self.counted -= self.elements[p]
