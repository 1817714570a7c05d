"""The coordinator in numbers: what holds whatever its limits are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgen.catalog.models import Architecture, load_preset
from dsgen.memory.coordinator import Event, Limits, Pass, follow
from dsgen.memory.job import adapter_weights
from dsgen.memory.module_order import Modules

from .conftest import job_of

MODEL = load_preset("qwen2.5-0.5b")
TARGETS = ("q_proj", "down_proj")
LIMIT = st.sampled_from([0, 1, 1_000_000, 20_000_000, 10**12]) | st.integers(0, 10**9)


def order_of(model: Architecture, **changes: Any) -> Pass:
    return Modules(job_of(model, 3, 8, **changes)).order()


def adapted() -> dict[str, Any]:
    trained = adapter_weights(MODEL, 16, TARGETS)
    return {"trained": trained, "adapter_rank": 16, "adapter_modules": frozenset(TARGETS)}


@settings(max_examples=60, deadline=None)
@given(
    live=LIMIT,
    reuse=LIMIT,
    prefetch=LIMIT,
    small=st.sampled_from([0, 10_000, 200_000]),
    every=st.integers(0, 5),
    adapter=st.booleans(),
    together=st.booleans(),
    step=st.booleans(),
)
def test_nothing_is_released_twice_and_nothing_forgotten(
    live: int, reuse: int, prefetch: int, small: int, every: int, adapter: bool, together: bool, step: bool
) -> None:
    order = order_of(
        MODEL,
        checkpoint_every=every,
        live_elements=live,
        reuse_elements=reuse,
        prefetch_elements=prefetch,
        persistence_elements=small,
        **(adapted() if adapter else {}),
    )
    figures = follow(order, Limits(live, reuse, prefetch), together=together, step_between=step)
    own = [0 if event.parameter in order.small else order.elements[event.parameter] for event in order.events]
    everything = sum(order.elements)
    for held, most, left, size, event in zip(*figures, own, order.events, strict=True):
        assert 0 <= left <= held <= most
        # Once as copies and once in flat buffers, and what the recomputed layers keep of older copies.
        assert most <= 3 * everything
        if not event.ends:
            assert held >= size
    # What is left at the end is what no module could release: the embedding, or what a first layer's adapters read.
    assert figures.left[-1] <= everything


def module(parameter: int, size: int, *, back: bool = False) -> tuple[Event, Event]:
    begins = Event(parameter, size, str(parameter), 0, back=back)
    return begins, begins._replace(ends=True)


def two_modules() -> Pass:
    order = Pass()
    assert order.add([100, 40], [False, False], [False, False]) == 1
    order.events = [*module(1, 100), *module(2, 40), *module(2, 40, back=True), *module(1, 100, back=True)]
    order.first_back = 4
    return order


@pytest.mark.parametrize(
    ("limits", "held"),
    [
        # Each module alone.
        (Limits(0, 0, 0), [100, 100, 40, 40, 40, 40, 100, 100]),
        # 40 elements away: the first stays, as long as that is nearer than the limit.
        (Limits(0, 41, 0), [100, 100, 40, 40, 40, 40, 100, 100]),
        (Limits(0, 81, 0), [100, 100, 140, 140, 140, 140, 100, 100]),
        # The second is fetched beside the first, and both are kept for what they were looked up for.
        (Limits(1000, 0, 50), [140, 140, 140, 140, 140, 140, 100, 100]),
    ],
)
def test_two_modules(limits: Limits, held: list[int]) -> None:
    assert follow(two_modules(), limits, together=True, step_between=True).held == held
