"""From a Plan to a MemoryReport."""

from __future__ import annotations

from collections.abc import Mapping

from dsgen.memory import activations
from dsgen.memory.device_total import beside_tensors, reserved
from dsgen.memory.job import Job, read_job
from dsgen.memory.phases import add, phases
from dsgen.memory.report import (
    DeviceMemory,
    HostMemory,
    MemoryReport,
    Phase,
    Verdict,
)
from dsgen.recipe.plan import Plan

_WORST: tuple[Verdict, ...] = ("does not fit", "tight", "fits", "unknown")


def estimate(plan: Plan) -> MemoryReport:
    """The memory that a job needs on its fullest device, and on its fullest node."""
    job = read_job(plan)
    found = _fullest(job)
    peak = max(found, key=lambda phase: phase.device.device_bytes)
    host_peak = max(found, key=lambda phase: phase.host.host_bytes)
    factors, source = reserved(plan)
    beside = beside_tensors(plan, job)
    allocated = peak.device.device_bytes
    held = round(allocated * factors[1])
    on_cpu = plan.kind == "cpu"
    capacity = None if on_cpu else job.device_bytes
    device = DeviceMemory(
        capacity_bytes=capacity,
        allocated_peak_bytes=allocated,
        reserved_peak_bytes=held,
        reserved_factors=factors,
        reserved_source=source,
        total_peak_bytes=held + sum(beside.values()),
        parts=add(peak.device.device, beside),
        verdict=_judge(held + sum(beside.values()), capacity, plan.headroom),
    )
    node = _node(host_peak.host.host, plan.per_node, on_cpu, max(found, key=_together) if on_cpu else None)
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
        unmeasured=activations.unmeasured(job),
    )


def _fullest(job: Job) -> tuple[Phase, ...]:
    """Phase by phase that of the rank that holds most: the first or the last. Only at stages 1 and 2 do they differ:
    parameters that lie across the borders of partitions belong to both sides."""
    first = phases(job, 0)
    if job.stage not in (1, 2) or job.ranks == 1:
        return first
    last = phases(job, job.ranks - 1)
    return tuple(
        Phase(
            name=one.name,
            device=max(one.device, other.device, key=lambda moment: moment.device_bytes),
            host=max(one.host, other.host, key=lambda moment: moment.host_bytes),
        )
        for one, other in zip(first, last, strict=True)
    )


def _together(phase: Phase) -> int:
    return phase.device.device_bytes + phase.host.host_bytes


def _node(on_host: Mapping[str, int], per_node: int, on_cpu: bool, fullest: Phase | None) -> dict[str, int]:
    if on_cpu and fullest is not None:
        # The host is the device.
        return {part: size * per_node for part, size in add(fullest.device.device, fullest.host.host).items()}
    return {part: size * per_node for part, size in on_host.items()}


def _judge(needed: int, capacity: int | None, headroom: float) -> Verdict:
    if capacity is None:
        return "unknown"
    if needed > capacity:
        return "does not fit"
    return "fits" if needed <= capacity * (1 - headroom) else "tight"
