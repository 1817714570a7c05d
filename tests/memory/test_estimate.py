"""From a recipe to a report: verdicts, totals, and what the plan says that the arithmetic must read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dsgen.memory.estimate import estimate
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.resolve import resolve

from ..conftest import RECIPES
from .conftest import GIB, Planner

FULL = {"activation_checkpointing": "full", "batch": {"sequence_length": 2048, "micro": 1, "accumulation": 2}}
SERVER = {"device": "ascend-910b3-64g", "per_node": 8}


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_fits(path: Path) -> None:
    """On the device and on the host, with the headroom that it asks for."""
    plan = resolve(check_recipe(load_recipe(path, ())))
    report = estimate(plan)
    assert report.verdict == report.host.verdict == "fits", report.host
    # Of a CPU recipe the host is the device.
    assert report.device.verdict == ("unknown" if plan.kind == "cpu" else "fits"), report.device


def test_verdicts_follow_the_headroom(plan: Planner) -> None:
    """13B with 16-bit sums: 54.6 GiB allocated, 12.2 of which come and go; two communicators; 58.9 of 60.96 GiB."""
    job = {**FULL, "model": "llama-2-13b", "precision": {"type": "bf16", "accumulate": "bf16"}, "hardware": SERVER}
    tight = estimate(plan(**job))
    assert tight.device.verdict == "tight"
    assert tight.peak_phase == "step"
    assert tight.device.total_peak_bytes / GIB == pytest.approx(54.646 + 0.2 * 12.21 + 1 + 800 / 1024, abs=0.02)
    assert estimate(plan(**job, memory={"headroom": "1%"})).device.verdict == "fits"
    stage_1 = estimate(plan(**{**job, "precision": {"type": "bf16", "accumulate": "fp32"}, "zero": {"stage": 1}}))
    assert stage_1.device.verdict == stage_1.verdict == "does not fit"
    assert stage_1.device.parts["gradients"] > 4 * 13.0e9


def test_the_phases_add_up(plan: Planner) -> None:
    report = estimate(plan(**FULL))
    peak = max(phase.device.device_bytes for phase in report.phases)
    assert report.device.allocated_peak_bytes == peak == report.phase(report.peak_phase).device.device_bytes
    beside = report.device.parts["device context"] + report.device.parts["communicators"]
    assert sum(report.device.parts.values()) == peak + beside
    assert report.device.total_peak_bytes == report.device.reserved_peak_bytes + beside
    assert report.device.parts[report.peak_part] == max(report.device.parts.values())


def test_communicator_buffers_are_those_of_the_environment(plan: Planner) -> None:
    usual = estimate(plan(**FULL)).device.parts["communicators"]
    small = estimate(plan(**FULL, environment={"HCCL_BUFFSIZE": 50})).device.parts["communicators"]
    assert (usual, small) == (800 << 20, 200 << 20)


def test_a_node_holds_all_its_ranks(plan: Planner) -> None:
    offload = {"stage": 2, "offload": {"optimizer": {"device": "cpu", "pin_memory": False}}}
    hardware = {**SERVER, "host_memory": "512GiB"}
    eight, four = (estimate(plan(**FULL, zero=offload, hardware={**hardware, "per_node": n})) for n in (8, 4))
    assert eight.host.capacity_bytes == 512 * GIB
    # What is divided over the ranks is the same in sum; processes, and the buffer of the largest parameter, are not.
    for part in ("master weights", "optimizer states"):
        assert eight.host.parts[part] == pytest.approx(four.host.parts[part], rel=1e-6)
    assert eight.host.parts["processes"] == 2 * four.host.parts["processes"]


def test_host_memory_decides_where_it_is_short(plan: Planner) -> None:
    offload = {"stage": 3, "offload": {"optimizer": "cpu", "parameters": "cpu"}}
    job = {**FULL, "model": "llama-2-70b", "zero": offload}
    report = estimate(plan(**job, hardware={**SERVER, "host_memory": "1TiB"}))
    assert report.device.verdict == "fits"
    assert report.host.verdict == report.verdict == "does not fit"
    assert report.host.parts["page-locked rounding"] > 0


def test_on_cpu_the_host_is_the_device(plan: Planner) -> None:
    hardware = {"device": "cpu", "per_node": 2, "host_memory": "64GiB"}
    report = estimate(plan(**FULL, model="llama-3.2-1b", hardware=hardware))
    assert report.device.verdict == "unknown"
    assert report.host.peak_bytes > 2 * report.device.allocated_peak_bytes
    assert report.host.verdict == report.verdict == "fits"


def test_an_own_script_may_change_shapes(plan: Planner, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    job = {**FULL, "zero": {"stage": 3}}
    own, usual = (estimate(plan(**job, **more)).device for more in ({"entrypoint": "mine.py"}, {}))
    assert own.allocated_peak_bytes == usual.allocated_peak_bytes
    assert own.total_peak_bytes == usual.total_peak_bytes, "torch gives back before it fails"
    assert own.reserved_with_room_bytes > usual.reserved_with_room_bytes > usual.reserved_peak_bytes


def test_what_is_not_measured_is_said(plan: Planner) -> None:
    assert any("qwen2" in each for each in estimate(plan(**FULL, model="qwen2.5-7b")).unmeasured)
    assert not any("llama" in each for each in estimate(plan(**FULL)).unmeasured)


@pytest.mark.parametrize("stage", [2, 3])
def test_an_estimate_takes_a_moment(stage: int, plan: Planner) -> None:
    made = plan(**FULL, model="llama-2-70b", zero={"stage": stage}, hardware={**SERVER, "nodes": 4})
    estimate(made)
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        estimate(made)
        took.append(time.perf_counter() - begun)
    assert min(took) < 0.02
