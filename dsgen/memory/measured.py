"""The memory that a run was measured to take, beside its estimate. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsgen.memory.report import COMMUNICATORS, MemoryReport
from dsgen.recipe.plan import Plan

ESTIMATE = "estimate.json"
"""Where `dsgen launch` leaves a record in the run folder."""

PHASES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("load", ("load",), ("model",)),
    ("initialize", ("initialize",), ("initialize",)),
    ("forward, loss, backward", ("forward", "loss", "backward"), ("forward", "backward", "accumulate")),
    ("step, all-gather", ("step", "all-gather"), ("step",)),
    ("save", ("save",), ("save",)),
)
"""Name, phases of the estimate, phases that dsgen.runtime measures.

The model computes the loss inside its forward pass, and the loss's gradient begins the backward pass, so a run can only
tell the three together. `engine.step` gathers the weights too, and does nothing behind a micro batch before the last.
"""


def record(report: MemoryReport, plan: Plan) -> dict[str, Any]:
    """What a run folder keeps of an estimate, as JSON."""
    device, host = report.device, report.host
    beside = device.total_peak_bytes - device.reserved_peak_bytes
    # The allocator takes more than it needs as long as there is room.
    reserved = device.reserved_with_room_bytes
    if device.capacity_bytes is not None:
        reserved = max(device.reserved_peak_bytes, min(reserved, device.capacity_bytes - beside))
    return {
        "device": plan.device.id,
        "verdict": report.verdict,
        "headroom": report.headroom,
        "peak_phase": report.peak_phase,
        "peak_part": report.peak_part,
        "device_profile": report.calibration.source if report.calibration else None,
        "phases": {phase.name: phase.device.device_bytes for phase in report.phases},
        "own_script": plan.entrypoint is not None,
        "allocated_peak_bytes": device.allocated_peak_bytes,
        "reserved_bytes": reserved,
        "device_bytes": reserved + beside,
        "total_peak_bytes": device.total_peak_bytes,
        "communicators_bytes": device.parts.get(COMMUNICATORS, 0),
        "capacity_bytes": device.capacity_bytes,
        "host_peak_bytes": host.peak_bytes,
        "host_peak_phase": host.peak_phase,
        "host_peak_part": max(host.parts, key=lambda part: host.parts[part], default=""),
        "host_capacity_bytes": host.capacity_bytes,
        "device_verdict": device.verdict,
        "host_verdict": host.verdict,
    }


def compare(
    estimate: Mapping[str, Any], measured: Mapping[str, Any] | None, host_peak_bytes: int | None = None
) -> list[dict[str, Any]]:
    """Rows of `what`, `estimated_bytes` and `measured_bytes`: the phases, the three figures of a device, the node.

    `estimate` is a record, `measured` what dsgen.runtime reports of the device (None on CPU, whose phases nobody
    counts), `host_peak_bytes` the resident memory of the ranks of one node. What either side does not tell is left out.
    """
    rows = [*_of_device(estimate, measured)] if measured else []
    rows.append(("node", _number(estimate.get("host_peak_bytes")), _number(host_peak_bytes)))
    return [
        {"what": what, "estimated_bytes": expected, "measured_bytes": found}
        for what, expected, found in rows
        if expected is not None and found is not None
    ]


def _of_device(
    estimate: Mapping[str, Any], measured: Mapping[str, Any]
) -> Iterator[tuple[str, int | None, int | None]]:
    expected, found = _mapping(estimate.get("phases")), _mapping(measured.get("phases"))
    for name, estimated, run in PHASES:
        peaks = (_mapping(found.get(phase)).get("allocated_peak_bytes") for phase in run)
        yield name, _highest(map(expected.get, estimated)), _highest(peaks)
    for name, expected_key, found_key in (
        ("allocated", "allocated_peak_bytes", "allocated_peak_bytes"),
        ("reserved", "reserved_bytes", "reserved_peak_bytes"),
        ("device total", "device_bytes", "total_peak_bytes"),
    ):
        yield name, _number(estimate.get(expected_key)), _number(measured.get(found_key))


def _highest(values: Iterator[Any]) -> int | None:
    return max((number for value in values if (number := _number(value)) is not None), default=None)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
