"""The end of a run in a few lines of text. Nothing here prints."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsgen.launch.outcome import Failure
from dsgen.launch.run_folder import has_checkpoint

_GIB, _MIB = 2**30, 2**20
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def ended_well(report: Mapping[str, Any], folder: Path) -> list[str]:
    """A finished or stopped run: what it did, how fast, in how much memory, and where it stands."""
    steps, planned = report.get("steps"), report.get("planned_steps")
    if report.get("status") == "stopped":
        first = f"stopped after step {steps}" + (f" of {planned}" if planned else "")
    else:
        first = f"finished: {steps} steps"
    if report.get("simulated"):
        first += " on the simulated NPU"
    lines = [", ".join([first, *_losses(report), *_speed(report)])]
    memory = _memory(report)
    if memory:
        lines.append(memory)
    if report.get("checkpoint"):
        lines.append(f"checkpoint: {shown(Path(str(report['checkpoint'])))}")
    lines.append(f"run folder: {shown(folder)}")
    if report.get("status") == "stopped":
        lines.append(go_on(folder))
    return lines


def script_ended(folder: Path) -> list[str]:
    """The user's own script ended well and left no report."""
    return ["finished: the script ended without an error and wrote no report.json", f"run folder: {shown(folder)}"]


def failed(failure: Failure, folder: Path) -> list[str]:
    """A failed run: the first rank that failed, its message, what to do, and where to read on."""
    who = f"rank {failure.rank}: " if failure.rank is not None else ""
    lines = [f"failed: {who}{failure.message}"]
    if failure.help:
        lines.append(f"  help: {failure.help}")
    if failure.log is not None:
        lines.append(f"  log: {shown(failure.log)}" + (", which ends with" if failure.last_lines else ""))
    lines += [f"    {line}" for line in failure.last_lines]
    lines.append(f"run folder: {shown(folder)}")
    return lines


def stopped_hard(folder: Path) -> list[str]:
    """A run that was asked to stop and left no report: the ranks were ended before they could save."""
    lines = ["stopped before the ranks could save; steps since the last checkpoint are lost"]
    lines.append(f"run folder: {shown(folder)}")
    if has_checkpoint(folder):
        lines.append(go_on(folder))
    return lines


def go_on(folder: Path) -> str:
    """The command that continues a run."""
    return f"go on with: dsgen launch {shlex.quote(shown(folder))} --resume"


def printable(text: str) -> str:
    """Text from logs without what would move a terminal's cursor or change its colours."""
    text = _ESCAPES.sub("", text)
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def shown(path: Path) -> str:
    """A path as short as it can be written here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _losses(report: Mapping[str, Any]) -> list[str]:
    first, last = report.get("first_loss"), report.get("last_loss")
    if not isinstance(last, (int, float)):
        return []
    return [f"loss {first:.4f} -> {last:.4f}" if isinstance(first, (int, float)) else f"loss {last:.4f}"]


def _speed(report: Mapping[str, Any]) -> list[str]:
    tokens, seconds, speed = (report.get(key) for key in ("tokens", "seconds", "tokens_per_second"))
    if not isinstance(tokens, (int, float)) or not isinstance(seconds, (int, float)):
        return []
    rate = f" ({speed:,.0f} tokens/s)" if isinstance(speed, (int, float)) else ""
    return [f"{tokens:,.0f} tokens in {_duration(seconds)}{rate}"]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _memory(report: Mapping[str, Any]) -> str:
    parts = []
    device = "simulated NPU" if report.get("simulated") else "device"
    for key, where in (("device_peak_bytes", device), ("host_peak_bytes", "host")):
        value = report.get(key)
        if isinstance(value, (int, float)):
            size = f"{value / _GIB:.2f} GiB" if value >= _GIB / 10 else f"{value / _MIB:.1f} MiB"
            parts.append(f"{size} on the {where}")
    return f"peak memory: {', '.join(parts)}" if parts else ""
