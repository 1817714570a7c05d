"""Which parameters stage 3 holds gathered at which moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsgen.memory.coordinator import Event, Limits, follow
from dsgen.memory.job import EMBEDDING, FINAL_NORM, HEAD, Job
from dsgen.memory.module_order import CHUNK, TOP, Modules
from dsgen.memory.states import gathers


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Most elements that are held gathered."""

    forward: dict[str, list[tuple[int, int]]]
    """In each part of the forward pass of a layer (activations.Part): while parameters are copied out of a flat buffer
    before it, and while it runs. In the first layer, in the second, and so on; the last half belongs to the last
    layers."""
    again: dict[str, list[tuple[int, int]]]
    """The same in a second forward pass, in the order of the backward pass."""
    embedding: int = 0
    """In the embedding's forward pass."""
    head: int = 0
    """In the output head's forward pass."""
    loss: int = 0
    """While the loss is taken: what is left when the head is through."""
    loss_backward: int = 0
    head_backward: int = 0
    last_norm: int = 0
    """In the backward pass of the last norm."""
    embedding_backward: int = 0
    backward: dict[str, list[int]]
    """In the backward pass of a module: in the last layer, in the one before it, and so on; the last figure is the most
    in any layer further down."""
    behind: dict[str, list[int]]
    """The same when the module has been released."""
    copying: int = 0
    """While parameters are copied out of a flat buffer in the backward pass."""

    def during(self, modules: Iterable[str], passed: str, layers: int) -> list[int]:
        """In the backward pass of any of these modules, where none of them is gathered behind that of `passed`: in the
        last of `layers` layers, in the one before it, and so on."""
        named = [self.backward[name] for name in modules if name in self.backward]
        several = named or [self.behind[name] for name in (passed,) if name in self.behind]
        padded = [(*figures[:layers], *figures[-1:] * (layers - len(figures))) for figures in several]
        return [max(figures) for figures in zip(*padded, strict=True)] or [0] * layers


def gathered(job: Job) -> Gathered:
    """Follow the coordinator through one forward and backward pass.

    Layers are alike, so no more of them are followed than the limits reach across.
    """
    nothing = Gathered(forward={}, again={}, backward={}, behind={})
    if not gathers(job):
        return nothing
    modules = Modules(job)
    if not modules.has_large:
        return nothing
    order = modules.order()
    limits = Limits(job.live_elements, job.reuse_elements, job.prefetch_elements)
    many = modules.layers < job.architecture.layers
    # What the very first pass decides otherwise matters where the limits are near the model's own size.
    held, most, left = follow(order, limits, together=job.ranks > 1, step_between=job.accumulation == 1 or many)
    once: dict[str, int] = {}
    forward, again = _Layers(), _Layers()
    backward: dict[str, dict[int, int]] = {}
    behind: dict[str, dict[int, int]] = {}
    copying = 0
    for i, event in enumerate(order.events):
        label = event.label
        if i >= order.first_back:
            copying = max(copying, most[i])
            if label == TOP or (label == CHUNK and event.ends):
                once["loss_backward"] = left[i]
            if event.back:
                backward.setdefault(label, {})[event.layer] = held[i]
                behind.setdefault(label, {})[event.layer] = left[i]
            else:
                again.note(event, held[i], most[i])
        elif label == HEAD:
            name = "loss" if event.ends else "head"
            once[name] = left[i] if event.ends else max(most[i], once.get(name, 0))
        else:
            forward.note(event, held[i], most[i])
            if label == EMBEDDING and not event.ends:
                once["embedding"] = most[i]
    lists = [
        {label: _shortened([some[layer] for layer in sorted(some, reverse=True)], many) for label, some in each.items()}
        for each in (backward, behind)
    ]
    ends = {name: lists[0].get(name, [0])[0] for name in (HEAD, FINAL_NORM)}
    return Gathered(
        **once,
        forward=forward.ascending(),
        again={name: _pairs_shortened(some[::-1], many) for name, some in again.ascending().items()},
        head_backward=ends[HEAD] if modules.has_head else 0,
        last_norm=ends[FINAL_NORM],
        embedding_backward=lists[0][EMBEDDING][0] if EMBEDDING in lists[0] else left[-1],
        backward=lists[0],
        behind=lists[1],
        copying=copying,
    )


class _Layers:
    """Figures of the parts of layers."""

    def __init__(self) -> None:
        self._found: dict[str, dict[int, tuple[int, int]]] = {}

    def note(self, event: Event, held: int, most: int) -> None:
        """Take them from an event in a layer."""
        if event.layer >= 0 and not event.ends and event.label:
            some = self._found.setdefault(event.label, {})
            before, during = some.get(event.layer, (0, 0))
            some[event.layer] = max(before, most), max(during, held)

    def ascending(self) -> dict[str, list[tuple[int, int]]]:
        """Layer by layer."""
        return {name: [some[layer] for layer in sorted(some)] for name, some in self._found.items()}


def _shortened(figures: list[int], many: bool) -> list[int]:
    """Where there are more layers than were followed the last figure stands for all below."""
    near = len(figures) // 2
    return [*figures[:near], max(figures[near:])] if many and near else figures


def _pairs_shortened(figures: list[tuple[int, int]], many: bool) -> list[tuple[int, int]]:
    before, during = (_shortened(list(some), many) for some in zip(*figures, strict=True))
    return list(zip(before, during, strict=True))
