"""From a Plan to a MemoryReport."""

from __future__ import annotations

from dsgen.memory import activations
from dsgen.memory.calibration import Calibration
from dsgen.memory.device_total import beside_tensors
from dsgen.memory.job import Job, read_job
from dsgen.memory.phases import add, phases
from dsgen.memory.report import (
    DeviceMemory,
    HostMemory,
    MemoryReport,
    Phase,
    Verdict,
)
from dsgen.memory.reserved import NEEDED, NEEDED_SOURCE, needed_bytes, with_room_bytes
from dsgen.memory.states import between_steps
from dsgen.memory.uncounted import uncounted
from dsgen.recipe.plan import Plan

_WORST: tuple[Verdict, ...] = ("does not fit", "tight", "fits", "unknown")


def estimate(plan: Plan, calibration: Calibration | None = None) -> MemoryReport:
    """The memory that a job needs on its fullest device, and on its fullest node.

    `calibration` holds measured figures of the plan's device. Raises ValueError for those of another one.
    """
    if calibration is not None and calibration.device != plan.device.id:
        raise ValueError(f"figures of {calibration.device} for a plan of {plan.device.id}")
    job = read_job(plan)
    found = _fullest(job)
    peak = max(found, key=lambda phase: phase.device.device_bytes)
    beside = beside_tensors(plan, job, calibration)
    allocated = peak.device.device_bytes
    steady = min(allocated, sum(between_steps(job).values()))
    on_cpu = plan.kind == "cpu"
    held = allocated if on_cpu else needed_bytes(allocated, steady)
    with_room = allocated if on_cpu else max(held, with_room_bytes(job, found, steady, plan.entrypoint is not None))
    if calibration is not None and calibration.reserved_factors is not None:
        with_room = max(held, round(allocated * calibration.reserved_factors[1]))
    capacity = None if on_cpu else job.device_bytes
    device = DeviceMemory(
        capacity_bytes=capacity,
        allocated_peak_bytes=allocated,
        steady_bytes=steady,
        reserved_peak_bytes=held,
        reserved_with_room_bytes=with_room,
        reserved_factors=(1.0, 1.0) if on_cpu else NEEDED,
        reserved_source="the CPU has no caching allocator" if on_cpu else NEEDED_SOURCE,
        total_peak_bytes=held + sum(beside.values()),
        parts=add(peak.device.device, beside),
        verdict=_judge(held + sum(beside.values()), capacity, plan.headroom),
    )
    # On the CPU the host is the device.
    host_peak = max(found, key=_together if on_cpu else lambda phase: phase.host.host_bytes)
    on_host = add(host_peak.device.device, host_peak.host.host) if on_cpu else host_peak.host.host
    node = {part: size * plan.per_node for part, size in on_host.items()}
    host_capacity = plan.host_memory_bytes or plan.device.host_memory_bytes
    host = HostMemory(
        capacity_bytes=host_capacity,
        capacity_said=plan.host_memory_bytes is not None,
        peak_bytes=sum(node.values()),
        peak_phase=host_peak.name,
        parts=node,
        verdict=_judge(sum(node.values()), host_capacity, plan.headroom),
    )
    return MemoryReport(
        verdict=min(device.verdict, host.verdict, key=_WORST.index),
        headroom=plan.headroom,
        phases=found,
        peak_phase=peak.name,
        peak_moment=peak.device.name,
        peak_part=max(peak.device.device, key=lambda part: peak.device.device[part]),
        device=device,
        host=host,
        profile=activations.PROFILE,
        unmeasured=(*activations.unmeasured(job), *uncounted(plan.ds_config)),
        calibration=calibration,
    )


def _fullest(job: Job) -> tuple[Phase, ...]:
    """Phase by phase that of the rank that holds most: the first or the last. Only at stages 1 and 2 do they differ:
    parameters that lie across the borders of partitions belong to both sides."""
    if job.stage not in (1, 2) or job.ranks == 1:
        return phases(job, 0)
    return phases(job, 0, job.ranks - 1)


def _together(phase: Phase) -> int:
    return phase.device.device_bytes + phase.host.host_bytes


def _judge(needed: int, capacity: int | None, headroom: float) -> Verdict:
    if capacity is None:
        return "unknown"
    if needed > capacity:
        return "does not fit"
    return "fits" if needed <= capacity * (1 - headroom) else "tight"
