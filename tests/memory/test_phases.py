"""Whole jobs, against runs of the real engine with tensors that have no memory (rank 0, allocated bytes in GiB)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgen.memory import host
from dsgen.memory.gathering import gathered
from dsgen.memory.job import Job, adapter_weights
from dsgen.memory.phases import add, phases

from .conftest import GIB, bytes_by_phase, job_of

RUNS: dict[str, tuple[Job, dict[str, float]]] = {
    "13B at stage 2": (
        job_of("llama-2-13b", 2, 8, accumulation=2),
        {"initialize": 48.488, "forward": 47.025, "backward": 51.192, "step": 54.646},
    ),
    "7B at stage 2": (
        job_of("llama-2-7b", 2, 8, accumulation=2),
        {"initialize": 25.103, "forward": 24.72, "backward": 26.640, "step": 28.256},
    ),
    "7B at stage 3": (
        job_of("llama-2-7b", 3, 8, tokens=4096, sequence=4096),
        {"initialize": 7.845, "forward": 17.698, "backward": 17.942, "step": 18.189},
    ),
    "13B with the optimizer on the host": (
        job_of("llama-2-13b", 2, 8, offload=("optimizer",)),
        {"initialize": 48.488, "forward": 26.0, "backward": 27.587, "step": 24.55},
    ),
    "13B with the optimizer on the host, 32 GiB": (
        job_of("llama-2-13b", 2, 8, offload=("optimizer",), device_bytes=32 * GIB),
        {"initialize": 27.274, "backward": 27.587},
    ),
    "70B with everything on the host": (
        job_of("llama-2-70b", 3, 64, offload=("optimizer", "parameters"), tokens=4096, sequence=4096),
        {"initialize": 1.427, "forward": 9.489, "backward": 10.275, "step": 0.934},
    ),
}
"""`forward` includes the loss's forward pass, `backward` its backward pass."""


@pytest.mark.parametrize("name", RUNS)
def test_the_phases_of_large_jobs(name: str) -> None:
    job, measured = RUNS[name]
    closed = bytes_by_phase(job)
    closed["backward"] = max(closed["backward"], closed["loss"])
    for phase, figure in measured.items():
        # The forward pass has its peak in the loss, whose backward pass holds a little more.
        found = max(closed["forward"], closed["loss"]) if phase == "forward" else closed[phase]
        assert found / GIB == pytest.approx(figure, rel=0.03 if phase == "forward" else 0.02), phase
    assert max(closed.values()) / GIB == pytest.approx(max(measured.values()), rel=0.016)


def test_the_peak_of_the_13b_job_is_in_the_step() -> None:
    found = max(phases(RUNS["13B at stage 2"][0], 0), key=lambda phase: phase.device.device_bytes)
    assert (found.name, found.device.name) == ("step", "gradients in fp32")
    # The run also held the token ids, 16 KiB.
    assert found.device.device_bytes == 58_675_586_580 - 16_660
    # 16-bit gradients, their flat copy, and the copy in fp32: each lives while the next is made.
    assert found.device.device["gradients"] == 3_358_146_560
    assert found.device.device["temporaries"] == 3_253_966_080 + 6_507_932_160


def test_host_memory_of_a_70b_job() -> None:
    """8 ranks a node: 160.6 GiB, counted in a run of the engine."""
    job = RUNS["70B with everything on the host"][0]
    held = add(host.initialized(job), host.optimizer_states(job))
    assert 8 * sum(held.values()) / GIB == pytest.approx(160.6, abs=0.1)


def test_page_locked_buffers_are_rounded_up() -> None:
    job = job_of("llama-2-70b", 3, 64, offload=("optimizer", "parameters"))
    locked = 2 * sum(-(-w.elements // 64) for w in job.trained.in_order())
    # Parameters are locked whatever pin_memory says: 2.16e9 bytes become 4 GiB.
    assert host.rounding(job) == {"page-locked rounding": (4 << 30) - locked}
    assert host.rounding(job_of("llama-2-70b", 2, 64, offload=("optimizer",))) == {}
    assert host.rounding(job_of("llama-2-70b", 2, 64, offload=("optimizer",), kind="cpu", pinned_optimizer=True)) == {}


SHAPES = st.fixed_dictionaries(
    {
        "stage": st.integers(0, 3),
        "ranks": st.sampled_from([1, 2, 8]),
        "accumulate": st.sampled_from(["bf16", "fp32"]),
        "accumulation": st.sampled_from([1, 4]),
        "checkpoint_every": st.sampled_from([0, 1, 4]),
        "bucket_elements": st.sampled_from([1_000_000, 50_000_000, 500_000_000]),
        "overlap": st.booleans(),
        "contiguous": st.booleans(),
        "chunk": st.sampled_from([0, 512]),
        "attention": st.sampled_from(["fused", "eager"]),
        "live_elements": st.sampled_from([1_000_000, 100_000_000, 1_000_000_000]),
        "offload": st.sampled_from([(), ("optimizer",)]),
    }
)


def _job(shape: dict[str, Any], **changes: Any) -> Job:
    return job_of("llama-3.2-1b", **{**shape, **changes})


@given(SHAPES)
def test_parts_are_positive_and_no_phase_is_empty(shape: dict[str, Any]) -> None:
    for phase in phases(_job(shape), 0):
        for moment in (phase.device, phase.host):
            assert all(size > 0 for size in moment.device.values()), (phase.name, moment)
        assert phase.device.device_bytes == sum(phase.device.device.values()) > 0, phase.name
        assert phase.device.device_bytes >= phase.host.device_bytes


@given(SHAPES)
def test_more_tokens_take_no_less(shape: dict[str, Any]) -> None:
    few, more = (bytes_by_phase(_job(shape, tokens=tokens)) for tokens in (2048, 4096))
    longer = bytes_by_phase(_job(shape, tokens=4096, sequence=4096))
    for phase, size in few.items():
        assert size <= more[phase] <= longer[phase], phase


@given(SHAPES)
def test_recomputing_takes_no_more_in_the_forward_pass(shape: dict[str, Any]) -> None:
    every, none = (bytes_by_phase(_job(shape, checkpoint_every=every)) for every in (1, 0))
    assert every["loss"] <= none["loss"]


@given(SHAPES)
def test_the_first_and_the_last_rank_differ_by_a_few_parameters(shape: dict[str, Any]) -> None:
    job = _job(shape)
    first, last = bytes_by_phase(job, 0), bytes_by_phase(job, job.ranks - 1)
    assert abs(first["step"] - last["step"]) <= 12 * job.trained.largest


def test_parameters_that_stay_whole_are_never_gathered() -> None:
    job = job_of("llama-3.2-1b", 3, 8, persistence_elements=1_000_000_000, bucket_elements=0)
    for phase in phases(job, 0):
        if phase.name not in ("load", "initialize"):
            assert phase.device.device["gathered weights"] == 2 * job.parameters.elements, phase.name


def test_one_rank_gathers_what_it_has_on_the_host() -> None:
    alone = job_of("llama-3.2-1b", 3, 1, offload=("optimizer", "parameters"), chunk=512)
    forward = phases(alone, 0)[2]
    assert forward.device.device["gathered weights"] > 2 * alone.parameters.largest
    # On CPU the device is the host, and nothing is copied.
    on_cpu = job_of("llama-3.2-1b", 3, 1, offload=("optimizer", "parameters"), chunk=512, kind="cpu")
    assert "gathered weights" not in phases(on_cpu, 0)[2].device.device


def test_several_ranks_are_each_as_full_as_alone() -> None:
    job = job_of("llama-3.2-1b", 2, 8, accumulation=2, bucket_elements=50_000_000)
    first, last, both = phases(job, 0), phases(job, 7), phases(job, 0, 7)
    for one, other, fuller in zip(first, last, both, strict=True):
        assert fuller.device.device_bytes == max(one.device.device_bytes, other.device.device_bytes)
    assert first != last


def test_frozen_weights_of_a_recomputed_layer_stay_until_its_backward_pass_begins() -> None:
    adapters = adapter_weights(job_of("llama-3.2-1b", 3, 8).architecture, 8, ("q_proj", "v_proj"))
    limits = {"live_elements": 0, "reuse_elements": 0, "prefetch_elements": 0, "persistence_elements": 10_000}
    job = job_of(
        "llama-3.2-1b",
        3,
        8,
        trained=adapters,
        adapter_rank=8,
        adapter_modules=frozenset({"q_proj", "v_proj"}),
        tokens=128,
        sequence=128,
        **limits,
    )
    layer = sum(w.elements for w in (*job.parameters.layer, *adapters.layer) if w.elements > 10_000)
    assert gathered(job).backward["down_proj"][0] == layer
    assert gathered(job).backward["up_proj"][0] < layer / 3
