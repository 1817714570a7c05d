"""What memory a job is estimated to take: said before it starts, and kept in its run folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsgen.documents.atomic import write_set
from dsgen.findings import DsgenError, ExitCode
from dsgen.launch.source import Source
from dsgen.launch.summary import printable, size
from dsgen.memory.estimate import estimate
from dsgen.memory.measured import ESTIMATE, record
from dsgen.memory.report import Verdict
from dsgen.planner.advice import Advised, advise
from dsgen.planner.profiles import find_calibration
from dsgen.planner.variant import Variant

_SHOWN = 2
"""Sets of changes that a refusal names."""

_MOMENTS = {
    "load": "loading the model",
    "initialize": "deepspeed.initialize",
    "forward": "the forward pass",
    "loss": "the loss",
    "backward": "the backward pass",
    "step": "the optimizer step",
    "all-gather": "the all-gather after the step",
    "save": "saving",
}


class DoesNotFit(DsgenError):
    """The job needs more memory than there is."""

    exit_code = ExitCode.FINDINGS


class _Said(BaseModel):
    """A record of an estimate, as far as it is said again; see dsgen.memory.measured.record."""

    model_config = ConfigDict(strict=True, frozen=True)

    verdict: Verdict
    headroom: float
    device_verdict: Verdict
    total_peak_bytes: int = Field(ge=0)
    capacity_bytes: int | None = Field(ge=0)
    peak_phase: str
    peak_part: str
    host_verdict: Verdict
    host_peak_bytes: int = Field(ge=0)
    host_capacity_bytes: int | None = Field(ge=0)
    host_peak_phase: str
    host_peak_part: str
    device_profile: str | None


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The estimate of a job."""

    said: _Said
    record: Mapping[str, Any]
    base: Variant | None
    """None where it was read from an earlier run."""


def expect(source: Source, given: Path, profile: str | None = None) -> Expected | None:
    """The estimate of a job; of a folder that an earlier run left, the one that it was started with.

    `given` is what the user named, `profile` a file of a device profile or `none`.
    None for a rendered folder: it holds no recipe, and neither does an earlier run whose files were changed.
    Raises DocumentError for a profile that cannot be read.
    """
    if source.plan is not None:
        report = estimate(source.plan, find_calibration(source.plan.device.id, profile))
        content = record(report, source.plan)
        base = Variant(overrides=(), plan=source.plan, report=report)
        return Expected(said=_Said.model_validate(content), record=content, base=base)
    with suppress(OSError, ValueError, RecursionError, ValidationError):
        kept = json.loads((given / ESTIMATE).read_text(encoding="utf-8"))
        if isinstance(kept, dict) and kept.get("files") == _digests(source):
            return Expected(said=_Said.model_validate(kept), record=kept, base=None)
    return None


def keep(expected: Expected, source: Source, folder: Path) -> None:
    """Leave the estimate in the run folder. Raises DsgenError when it cannot be written."""
    text = json.dumps({**expected.record, "files": _digests(source)}, indent=2, ensure_ascii=False) + "\n"
    try:
        write_set(folder, {ESTIMATE: (text.encode(), False)})
    except OSError as error:
        raise DsgenError(f"{folder / ESTIMATE} cannot be written: {error.strerror}") from error


def lines(expected: Expected | None) -> list[str]:
    """The estimate in a few lines."""
    if expected is None:
        return ["memory estimate: none, because a rendered folder holds no recipe; `dsgen estimate RECIPE` makes one"]
    said = expected.said
    first = f"memory estimate: {said.verdict}"
    if said.verdict == "tight":
        first += f": it may fit, but less than the {100 * said.headroom:.4g}% that should stay free is left"
    elif said.verdict == "unknown":
        first += ": neither the device's memory nor the host's is known (hardware.host_memory)"
    found = [first if expected.base else f"{first} (made when this run was first started)"]
    if said.capacity_bytes is not None:
        found.append(
            f"  device {size(said.total_peak_bytes)} of {size(said.capacity_bytes)}, "
            f"highest in {_moment(said.peak_phase)}"
        )
    of = f" of {size(said.host_capacity_bytes)}" if said.host_capacity_bytes is not None else ""
    found.append(f"  node {size(said.host_peak_bytes)}{of}, highest in {_moment(said.host_peak_phase)}")
    if said.device_profile:
        found.append(f"  device profile: {printable(said.device_profile)}")
    return found


def refuse(expected: Expected | None, source: Source) -> None:
    """Raise DoesNotFit, with what decides and what would help, when the job needs more memory than there is."""
    if expected is None or expected.said.verdict != "does not fit":
        return
    said, reasons = expected.said, []
    if said.device_verdict == "does not fit":
        reasons.append(
            f"a device has {size(said.capacity_bytes or 0)} and {_moment(said.peak_phase)} needs "
            f"{size(said.total_peak_bytes)} (largest part: {printable(said.peak_part)})"
        )
    if said.host_verdict == "does not fit":
        reasons.append(
            f"a node has {size(said.host_capacity_bytes or 0)} and {_moment(said.host_peak_phase)} needs "
            f"{size(said.host_peak_bytes)} of host memory (largest part: {printable(said.host_peak_part)})"
        )
    raise DoesNotFit(
        f"the job does not fit: {'; '.join(reasons)}", help=f"{_remedy(expected, source)}; --force starts it anyway"
    )


def _remedy(expected: Expected, source: Source) -> str:
    if expected.base is None or source.loaded is None:
        return "`dsgen estimate` of its recipe says what would make it fit"
    found = advise(source.loaded, expected.base)
    if not found.advice:
        return "no settings make it fit: it takes more devices or hosts, or a smaller model" + _closest(found)
    return "it would fit with " + ", or with ".join(
        f"{' '.join(f'--set {each}' for each in advice.variant.overrides)} ({_needs(advice.variant)})"
        for advice in found.advice[:_SHOWN]
    )


def _closest(found: Advised) -> str:
    if found.closest is None:
        return ""
    return f" (the closest is {' '.join(f'--set {each}' for each in found.closest.variant.overrides)})"


def _needs(variant: Variant) -> str:
    device, host = variant.report.device, variant.report.host
    on_device = f"device {size(device.total_peak_bytes)}, " if device.capacity_bytes is not None else ""
    return f"{on_device}node {size(host.peak_bytes)}"


def _moment(phase: str) -> str:
    return _MOMENTS.get(phase, printable(phase))


def _digests(source: Source) -> dict[str, str]:
    """The files that decide what a run does, by name."""
    return {
        name: hashlib.sha256(content).hexdigest()
        for name, content in sorted(source.files.items())
        if name in ("ds_config.json", "train.py", "settings.json", "launch.sh")
    }
