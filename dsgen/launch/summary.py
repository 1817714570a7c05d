"""The end of a run in a few lines of text. Nothing here prints."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsgen.launch.outcome import Failure
from dsgen.launch.process import LAUNCHER_LOG
from dsgen.launch.progress import Progress
from dsgen.launch.run_folder import has_checkpoint, left_by_script

_GIB, _MIB = 2**30, 2**20
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def ended_well(report: Mapping[str, Any], folder: Path, *, own_script: bool = False) -> list[str]:
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
    lines += _beside_estimate(report)
    if report.get("checkpoint"):
        lines.append(f"checkpoint: {shown(Path(str(report['checkpoint'])))}")
    if own_script:
        lines.append(_output(folder))
    lines.append(f"run folder: {shown(folder)}")
    if report.get("status") == "stopped":
        lines.append(go_on(folder))
    return lines


def script_ended(folder: Path, progress: Progress) -> list[str]:
    """The user's own script ended without an error and left no report; `progress` is what it told on the way."""
    if progress.steps is None:
        first = "finished: the script ended without an error and wrote no report.json"
    else:
        first = (
            f"the script ended without an error, but without runtime.finish: it told of {progress.step} of "
            f"{progress.steps} steps, and wrote no report.json"
        )
    return [first, _output(folder), f"run folder: {shown(folder)}"]


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


def stopped_hard(folder: Path, *, own_script: bool = False) -> list[str]:
    """A run that was asked to stop and left no report: the ranks were ended before they could save."""
    if own_script:
        lines = ["stopped; the script wrote no report.json, so what it saved is not known", _output(folder)]
    else:
        lines = ["stopped before the ranks could save; steps since the last checkpoint are lost"]
    lines.append(f"run folder: {shown(folder)}")
    if has_checkpoint(folder) or (own_script and left_by_script(folder)):
        lines.append(go_on(folder))
    return lines


def resumes(earlier: Path | None, *, own_script: bool) -> str:
    """What --resume found to go on from, and what not; `earlier` is the run that was chosen."""
    if earlier is None:
        what = "left anything to go on from" if own_script else "has a checkpoint"
        return f"no earlier run {what}: starting from the beginning"
    if has_checkpoint(earlier):
        return f"going on from {shown(earlier)}"
    if not own_script:
        return f"no checkpoint stands in {shown(earlier)}: starting from the beginning"
    left = left_by_script(earlier)
    there = f", which holds {', '.join(left[:6])}{', ...' if len(left) > 6 else ''}" if left else ""
    return (
        f"going on from {shown(earlier)}{there}: dsgen knows no checkpoint there, so it is for the script to find its "
        "own (DSGEN_RESUME)"
    )


def go_on(folder: Path) -> str:
    """The command that continues a run."""
    return f"go on with: dsgen launch {shlex.quote(shown(folder))} --resume"


def printable(text: str) -> str:
    """Text from logs without what would move a terminal's cursor or change its colours."""
    text = _ESCAPES.sub("", text)
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def size(number: float) -> str:
    """A number of bytes for people."""
    return f"{number / _GIB:.2f} GiB" if number >= _GIB / 10 else f"{number / _MIB:.1f} MiB"


def shown(path: Path) -> str:
    """A path as short as it can be written here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _output(folder: Path) -> str:
    """Where the output of the user's own script stands: dsgen.runtime gives each rank a log of its own."""
    if (folder / "logs" / "rank-0.log").exists():
        return f"output of the script: {shown(folder / 'logs' / 'rank-0.log')}, and of the other ranks beside it"
    return f"output of the script: {shown(folder / LAUNCHER_LOG)}"


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
            parts.append(f"{size(value)} on the {where}")
    return f"peak memory: {', '.join(parts)}" if parts else ""


def _beside_estimate(report: Mapping[str, Any]) -> list[str]:
    """What was estimated and measured; nothing where one of the two is missing."""
    memory = report.get("memory")
    rows = memory.get("compared") if isinstance(memory, Mapping) else None
    found = []
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, Mapping):
            continue
        estimated, measured = row.get("estimated_bytes"), row.get("measured_bytes")
        if isinstance(estimated, int) and isinstance(measured, int):
            found.append(f"  {row.get('what')!s:<24}{size(estimated):>11}{size(measured):>11}")
    return [f"{'memory':<26}{'estimated':>11}{'measured':>11}", *found] if found else []
