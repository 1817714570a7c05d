"""What torch's allocator takes for what tensors hold."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from dsgen.memory.phases import phases
from dsgen.memory.reserved import needed_bytes, with_room_bytes
from dsgen.memory.states import between_steps

from ..conftest import REPOSITORY
from .conftest import GIB, job_of


@pytest.fixture(scope="module")
def replay() -> ModuleType:
    path = REPOSITORY / "benchmarks" / "allocator_replay.py"
    spec = importlib.util.spec_from_file_location("allocator_replay", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["allocator_replay"] = module
    spec.loader.exec_module(module)
    return module


def test_only_what_comes_and_goes_takes_more() -> None:
    assert needed_bytes(100, 60) == 108
    assert needed_bytes(60, 60) == 60


@pytest.mark.parametrize(("model", "gib"), [("llama-2-7b", 40.8), ("llama-2-13b", 79.0)])
def test_with_room_as_replays_of_the_engine(model: str, gib: float) -> None:
    """Stage 2, 8 ranks, two micro batches of 2048 tokens: the engine's own allocations through torch's allocator."""
    job = job_of(model, 2, 8, accumulation=2)
    steady = sum(between_steps(job).values())
    assert with_room_bytes(job, phases(job, 0), steady, False) / GIB == pytest.approx(gib, rel=0.02)


def test_lengths_that_vary_take_more_with_room() -> None:
    job = job_of("llama-2-7b", 3, 8, tokens=8192, sequence=8192)
    steady = sum(between_steps(job).values())
    fixed, varying = (with_room_bytes(job, phases(job, 0), steady, each) for each in (False, True))
    highest = max(phases(job, 0), key=lambda phase: phase.device.device_bytes if phase.name == "loss" else 0)
    lengthwise = highest.device.device["activations"] + highest.device.device["logits and loss"]
    assert varying - fixed == pytest.approx(0.8 * lengthwise, rel=0.01)


def test_the_allocator_uses_blocks_again(replay: ModuleType) -> None:
    memory = replay.Allocator()
    mib = 1 << 20
    first = memory.allocate(30 * mib)
    memory.free(first)
    half = memory.allocate(14 * mib)
    assert memory.reserved == 30 * mib, "the half is cut from the free block"
    memory.allocate(16 * mib)
    assert memory.reserved == 30 * mib, "and so is the rest"
    memory.free(half)
    memory.allocate(14 * mib + 1)
    assert memory.reserved == 46 * mib, "a block that is too small stays; the new segment is rounded to 2 MiB"


def test_the_allocator_gives_back_before_it_fails(replay: ModuleType) -> None:
    mib = 1 << 20
    memory = replay.Allocator(limit_bytes=50 * mib)
    memory.free(memory.allocate(30 * mib))
    memory.allocate(40 * mib)
    assert (memory.reserved, memory.most_reserved) == (40 * mib, 40 * mib)
    with pytest.raises(MemoryError):
        memory.allocate(12 * mib)


def test_small_blocks_come_from_segments(replay: ModuleType) -> None:
    mib = 1 << 20
    memory = replay.Allocator()
    memory.allocate(100)
    assert (memory.reserved, memory.allocated) == (2 * mib, 512)
    memory.allocate(5 * mib)
    assert memory.reserved == 22 * mib


def test_replays_stay_within_the_factors(replay: ModuleType) -> None:
    """One of the jobs of the benchmark."""
    shape = replay.SHAPES[0]
    steps = replay.lengths(2048)
    memory = replay.run(shape, True, steps)
    assert memory.most_reserved / memory.most_allocated < 1.2
    assert replay.least(shape, True, steps, memory.most_allocated) < 1.2
