"""Measured figures of a device in an estimate, and measured memory of a run beside its estimate."""

from __future__ import annotations

from typing import Any

import pytest

from dsgen.memory.calibration import Calibration
from dsgen.memory.estimate import estimate
from dsgen.memory.measured import compare, record

from .conftest import Planner

DEVICE = "ascend-910b3-64g"


def calibration(**changes: Any) -> Calibration:
    fields: dict[str, Any] = {"context_bytes": 777_000_000, "reserved_factors": (1.02, 1.51)}
    return Calibration(device=DEVICE, source="calibrated by 2 runs", **{**fields, **changes})


def test_measured_figures_take_the_place_of_assumed_ones(plan: Planner) -> None:
    usual, measured = estimate(plan()), estimate(plan(), calibration())
    device = measured.device
    assert device.allocated_peak_bytes == usual.device.allocated_peak_bytes
    assert device.reserved_peak_bytes == usual.device.reserved_peak_bytes
    assert device.reserved_with_room_bytes == round(device.allocated_peak_bytes * 1.51)
    communicators = device.parts["communicators"]
    assert communicators == usual.device.parts["communicators"] > 0
    assert device.total_peak_bytes == device.reserved_peak_bytes + 777_000_000 + communicators
    assert device.parts["device context"] == 777_000_000
    assert measured.calibration == calibration() and usual.calibration is None
    assert measured.host == usual.host and measured.phases == usual.phases


def test_what_the_runs_did_not_tell_stays_assumed(plan: Planner) -> None:
    usual, measured = estimate(plan()).device, estimate(plan(), calibration(reserved_factors=None)).device
    assert measured.reserved_with_room_bytes == usual.reserved_with_room_bytes
    assert measured.parts["device context"] == 777_000_000
    no_context = estimate(plan(), calibration(context_bytes=None)).device
    assert no_context.parts["device context"] == usual.parts["device context"]


def test_figures_of_another_device_are_refused(plan: Planner) -> None:
    with pytest.raises(ValueError, match="ascend-910b3-64g for a plan of ascend-910a-32g"):
        estimate(plan(precision="fp16", hardware={"device": "ascend-910a-32g", "per_node": 8}), calibration())


def test_a_record_says_what_the_report_says(plan: Planner) -> None:
    report = estimate(plan(), calibration())
    kept = record(report, plan())
    assert kept["device"] == DEVICE
    assert kept["device_profile"] == "calibrated by 2 runs"
    assert kept["phases"]["step"] == report.phase("step").device.device_bytes
    assert kept["communicators_bytes"] == report.device.parts["communicators"]
    beside = report.device.total_peak_bytes - report.device.reserved_peak_bytes
    assert kept["reserved_bytes"] == report.device.reserved_with_room_bytes
    assert kept["device_bytes"] == kept["reserved_bytes"] + beside
    assert (kept["peak_phase"], kept["total_peak_bytes"]) == (report.peak_phase, report.device.total_peak_bytes)
    assert kept["host_peak_part"] == max(report.host.parts, key=lambda part: report.host.parts[part])


def test_the_allocator_takes_no_more_than_there_is(plan: Planner) -> None:
    job = {"model": "llama-2-13b", "activation_checkpointing": "full"}
    report = estimate(plan(**job), calibration(reserved_factors=(1.0, 9.0)))
    kept = record(report, plan(**job))
    assert report.device.reserved_with_room_bytes > kept["capacity_bytes"] == kept["device_bytes"]


ESTIMATE = {
    "phases": {
        **{"load": 10, "initialize": 20, "forward": 30, "loss": 45, "backward": 40},
        **{"step": 50, "all-gather": 35, "save": 35},
    },
    "allocated_peak_bytes": 50,
    "reserved_bytes": 55,
    "device_bytes": 70,
    "host_peak_bytes": 900,
}
PEAKS = {"model": 11, "initialize": 19, "forward": 31, "backward": 44, "accumulate": 12, "step": 49, "train": 60}
MEASURED = {
    "phases": {name: {"allocated_peak_bytes": size, "reserved_peak_bytes": 99} for name, size in PEAKS.items()},
    "allocated_peak_bytes": 60,
    "reserved_peak_bytes": 66,
    "total_peak_bytes": 80,
}


def test_phases_of_a_run_beside_those_of_the_estimate() -> None:
    """The forward pass of a model ends with its loss, whose gradient begins the backward pass: one row."""
    rows = [(row["what"], row["estimated_bytes"], row["measured_bytes"]) for row in compare(ESTIMATE, MEASURED, 800)]
    assert rows == [
        ("load", 10, 11),
        ("initialize", 20, 19),
        ("forward, loss, backward", 45, 44),
        ("step, all-gather", 50, 49),
        ("allocated", 50, 60),
        ("reserved", 55, 66),
        ("device total", 70, 80),
        ("node", 900, 800),
    ]


def test_nothing_is_said_of_a_device_that_nobody_counted() -> None:
    assert [row["what"] for row in compare(ESTIMATE, None, 800)] == ["node"]
    assert compare(ESTIMATE, None) == []


@pytest.mark.parametrize(
    "damaged", [{}, {"phases": 3, "allocated_peak_bytes": "x"}, {"phases": {"load": None, "step": True, "save": -1}}]
)
def test_damaged_sides_are_left_out(damaged: dict[str, Any]) -> None:
    assert compare(damaged, MEASURED) == []
    assert compare(ESTIMATE, damaged) == []
