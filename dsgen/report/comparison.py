"""One recipe at every stage, with and without offload and recomputation, as text or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import Any

from dsgen.planner.compare import CHECKPOINTING, Row
from dsgen.recipe.plan import Plan
from dsgen.report.console import in_bytes, printable, say
from dsgen.report.estimate import job_fields, say_assumed

_COLUMNS = 80
_WORDS = {"fits": "fits", "tight": "tight", "does not fit": "no", "unknown": "?"}
_OFFLOADS = {"none": "none", "optimizer": "optimizer", "optimizer + parameters": "both"}


def show_comparison(rows: Sequence[Row], plan: Plan, assumed: Sequence[str], *, form: str) -> None:
    """Print a line for each stage and offload, with columns for what is recomputed."""
    known = next((row.variant.report for row in rows if row.variant), None)
    if form == "json":
        said = {
            **job_fields(plan),
            "headroom": plan.headroom,
            "device": {"capacity_bytes": known.device.capacity_bytes if known else None},
            "host": {"capacity_bytes": known.host.capacity_bytes if known else None},
            "rows": [_content(row) for row in rows],
            "assumed": list(assumed),
        }
        print(json.dumps(said, indent=2))
        return
    devices = f"{plan.world_size} x {plan.device.id}"
    say(f"{plan.name}: {printable(plan.architecture.name)}, {devices}, {plan.precision}")
    if known is not None:
        sizes = (known.device.capacity_bytes, known.host.capacity_bytes)
        device, node = ("of unknown size" if size is None else in_bytes(size) for size in sizes)
        say(f"one device: {device}; one node: {node}")
    say()
    say(f"{'':<15}" + "".join(f"   {f'checkpointing: {name}':<29}" for name in CHECKPOINTING).rstrip())
    say((f"{'stage':<5} {'offload':<9}" + f"  {'device':>10} {'node':>10} {'':<6}" * len(CHECKPOINTING)).rstrip())
    for stage, offload in dict.fromkeys((row.stage, row.offload) for row in rows):
        pair = {row.checkpointing: row for row in rows if (row.stage, row.offload) == (stage, offload)}
        cells = "".join(_cell(pair[name]) for name in CHECKPOINTING)
        same = any(row.same for row in pair.values())
        say(f"{stage:<5} {_OFFLOADS[offload]:<9}{cells}".rstrip(), style="bold cyan" if same else "")
    say()
    itself = "* the recipe itself" if any(row.same for row in rows) else "the recipe itself is none of these"
    say(f"{itself}; all else is as it says. fits: with its headroom")
    refused: dict[str, list[str]] = {}
    for row in rows:
        if row.refused:
            refused.setdefault(row.refused, []).append(f"stage {row.stage}, {row.offload}, {row.checkpointing}")
    for reason, places in refused.items():
        for line in textwrap.wrap(f"- {'; '.join(places)}: {reason}", _COLUMNS, subsequent_indent="  "):
            say(line)
    say_assumed(assumed)


def _cell(row: Row) -> str:
    if row.variant is None:
        return f"  {'-':>10} {'-':>10} {'':<6}"
    report = row.variant.report
    word = _WORDS[report.verdict] + ("*" if row.same else "")
    return f"  {in_bytes(report.device.total_peak_bytes):>10} {in_bytes(report.host.peak_bytes):>10} {word:<6}"


def _content(row: Row) -> dict[str, Any]:
    report = row.variant.report if row.variant else None
    return {
        "stage": row.stage,
        "offload": row.offload,
        "activation_checkpointing": row.checkpointing,
        "same": row.same,
        "set": list(row.variant.overrides) if row.variant else None,
        "verdict": report.verdict if report else None,
        "device_total_peak_bytes": report.device.total_peak_bytes if report else None,
        "host_peak_bytes": report.host.peak_bytes if report else None,
        "refused": row.refused or None,
    }
