"""A memory estimate as text or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from dsgen.memory.report import COMMUNICATORS, CONTEXT, MemoryReport
from dsgen.planner.advice import Advice, Advised
from dsgen.recipe.plan import Plan
from dsgen.report.console import in_bytes, printable, say

STYLE = {"fits": "bold green", "tight": "bold yellow", "does not fit": "bold red", "unknown": "bold magenta"}
_BAR = 22
_COLUMNS = 80
_LEAST_ROOM_BYTES = 64 << 20
"""What torch must reserve more where there is room, for a line of its own."""


def show_estimate(report: MemoryReport, plan: Plan, advised: Advised, assumed: Sequence[str], *, form: str) -> None:
    """Print the verdict, the phases, the parts at the peak, what was assumed, and what would make the job fit."""
    if form == "json":
        print(json.dumps(job_fields(plan) | _content(report, advised) | {"assumed": list(assumed)}, indent=2))
        return
    device, host = report.device, report.host
    devices = f"{plan.world_size} x {plan.device.id}"
    say(f"{plan.name}: {printable(plan.architecture.name)}, {devices}, ZeRO stage {plan.stage}, {plan.precision}")
    say(f"{report.verdict}: {_verdict(report)}", style=STYLE[report.verdict])
    say()
    whole = device.capacity_bytes or max(device.allocated_peak_bytes, 1)
    title = f"of {in_bytes(device.capacity_bytes)}" if device.capacity_bytes else "of the highest"
    say(f"{'phase':<10}  {'highest at':<31}  {'allocated':>10}  {title}")
    for phase in report.phases:
        size = phase.device.device_bytes
        peak = phase.name == report.peak_phase
        line = f"{phase.name:<10}  {phase.device.name[:31]:<31}  {in_bytes(size):>10}  {_bar(size, whole)}"
        say(line.rstrip(), style="bold cyan" if peak else "")
    say()
    say(f"one device at its peak ({report.peak_phase}, {report.peak_moment})")
    beside = {part: size for part, size in device.parts.items() if part in (CONTEXT, COMMUNICATORS)}
    _say_parts({part: size for part, size in device.parts.items() if part not in beside})
    for label, value in (
        ("allocated", device.allocated_peak_bytes),
        (f"reserved: what comes and goes x {device.reserved_factors[1]:.1f}", device.reserved_peak_bytes),
        *beside.items(),
        ("device total, from reserved on", device.total_peak_bytes),
    ):
        say(f"  {label:<46} {in_bytes(value):>10}")
    more = device.reserved_with_room_bytes
    if more - device.reserved_peak_bytes >= max(_LEAST_ROOM_BYTES, 0.02 * device.reserved_peak_bytes):
        all_of_it = device.capacity_bytes is not None and more >= device.capacity_bytes
        most = "all there is" if all_of_it else f"up to {in_bytes(more)}"
        text = f"torch reserves more where there is room, here {most}, and gives it back before it fails"
        for line in textwrap.wrap(text, _COLUMNS - 2):
            say(f"  {line}")
    if report.calibration is not None:
        for line in textwrap.wrap(f"device profile: {printable(report.calibration.source)}", _COLUMNS - 2):
            say(f"  {line}")
    say()
    ranks = "1 rank" if plan.per_node == 1 else f"{plan.per_node} ranks"
    of = f" of {in_bytes(host.capacity_bytes)}" if host.capacity_bytes else ""
    say(f"one node of {ranks} at its peak ({host.peak_phase}): {in_bytes(host.peak_bytes)}{of}")
    if host.capacity_bytes and not host.capacity_said:
        say("  (usual for such servers: the recipe names no hardware.host_memory)")
    _say_parts(host.parts)
    for each in report.unmeasured:
        for line in textwrap.wrap(f"not measured: {each}", _COLUMNS, subsequent_indent="  "):
            say(line)
    say_assumed(assumed)
    _say_advice(report, advised)


def say_assumed(assumed: Sequence[str]) -> None:
    """Print what nobody said."""
    for each in assumed:
        for line in textwrap.wrap(f"assumed: {printable(each)}", _COLUMNS, subsequent_indent="  "):
            say(line)


def _say_advice(report: MemoryReport, advised: Advised) -> None:
    if advised.advice:
        say()
        say(f"what makes it fit{' with room to spare' if report.verdict == 'tight' else ''}, cheapest first")
    for number, each in enumerate(advised.advice, 1):
        _say_changes(f"  {number}. ", each)
    if advised.advice or report.verdict not in ("tight", "does not fit"):
        return
    say()
    if report.verdict == "tight":
        say(f"no settings leave {100 * report.headroom:.4g}% free: it takes more devices or hosts, a smaller")
        say("model, or less memory.headroom")
    else:
        say("no settings make it fit: it takes more devices or hosts, or a smaller model")
    if advised.closest is not None:
        say("closest:")
        _say_changes("  ", advised.closest)


def _say_changes(start: str, advice: Advice) -> None:
    indent = " " * len(start)
    first, *others = (f"--set {override}" for override in advice.variant.overrides)
    line = start + first
    for word in others:
        if len(line) + 1 + len(word) > _COLUMNS:
            say(line)
            line = indent + word
        else:
            line += f" {word}"
    say(line)
    report = advice.variant.report
    for line in textwrap.wrap(f"{report.verdict}: {_verdict(report)}", _COLUMNS - len(indent)):
        say(indent + line, style=STYLE[report.verdict])
    costs = dict.fromkeys(change.cost for change in advice.changes)
    for cost in costs:
        for line in textwrap.wrap(f"cost: {cost}", _COLUMNS, initial_indent=indent, subsequent_indent=indent + "  "):
            say(line)


def _verdict(report: MemoryReport) -> str:
    device, host = report.device, report.host
    parts = []
    if device.capacity_bytes is not None:
        parts.append(f"device {in_bytes(device.total_peak_bytes)} of {in_bytes(device.capacity_bytes)}")
    if host.capacity_bytes is not None:
        parts.append(f"node {in_bytes(host.peak_bytes)} of {in_bytes(host.capacity_bytes)}")
    tight = f"; {100 * report.headroom:.4g}% should stay free" if report.verdict == "tight" else ""
    return (", ".join(parts) or "neither the device's memory nor the host's is known") + tight


def _say_parts(parts: Mapping[str, int]) -> None:
    total = max(1, sum(parts.values()))
    for part, size in sorted(parts.items(), key=lambda item: -item[1]):
        say(f"  {part:<46} {in_bytes(size):>10}  {size / total:>4.0%}")


def _bar(size: int, whole: int) -> str:
    """As much of the capacity as is used; `!` beyond it."""
    filled = round(_BAR * size / whole)
    if filled > _BAR or size > whole:
        return "#" * (_BAR - 1) + "!"
    return "#" * filled + "." * (_BAR - filled)


def _advice(advice: Advice) -> dict[str, Any]:
    report = advice.variant.report
    return {
        "set": list(advice.variant.overrides),
        "costs": [change.cost for change in advice.changes],
        "verdict": report.verdict,
        "device_total_peak_bytes": report.device.total_peak_bytes,
        "host_peak_bytes": report.host.peak_bytes,
    }


def job_fields(plan: Plan) -> dict[str, Any]:
    """What the job is, for JSON."""
    return {
        "name": plan.name,
        "model": plan.architecture.name,
        "device_id": plan.device.id,
        "world_size": plan.world_size,
        "stage": plan.stage,
        "precision": plan.precision,
        "micro_batch": plan.micro_batch,
        "sequence_length": plan.sequence_length,
    }


def _content(report: MemoryReport, advised: Advised) -> dict[str, Any]:
    device, host = report.device, report.host
    return {
        "verdict": report.verdict,
        "headroom": report.headroom,
        "device": {
            "verdict": device.verdict,
            "capacity_bytes": device.capacity_bytes,
            "allocated_peak_bytes": device.allocated_peak_bytes,
            "reserved_peak_bytes": device.reserved_peak_bytes,
            "reserved_factors": list(device.reserved_factors),
            "reserved_with_room_bytes": device.reserved_with_room_bytes,
            "steady_bytes": device.steady_bytes,
            "reserved_source": device.reserved_source,
            "total_peak_bytes": device.total_peak_bytes,
            "peak_phase": report.peak_phase,
            "peak_moment": report.peak_moment,
            "peak_part": report.peak_part,
            "phases": [
                {
                    "name": phase.name,
                    "moment": phase.device.name,
                    "allocated_bytes": phase.device.device_bytes,
                    "parts": dict(phase.device.device),
                }
                for phase in report.phases
            ],
            "parts": dict(device.parts),
        },
        "host": {
            "verdict": host.verdict,
            "capacity_bytes": host.capacity_bytes,
            "capacity_said": host.capacity_said,
            "peak_bytes": host.peak_bytes,
            "peak_phase": host.peak_phase,
            "phases": [
                {"name": phase.name, "moment": phase.host.name, "bytes_per_rank": phase.host.host_bytes}
                for phase in report.phases
            ],
            "parts": dict(host.parts),
        },
        "profile": report.profile,
        "device_profile": report.calibration.source if report.calibration else None,
        "unmeasured": list(report.unmeasured),
        "advice": [_advice(each) for each in advised.advice],
        "closest": _advice(advised.closest) if advised.closest else None,
    }
