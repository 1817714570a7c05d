"""From finished runs to a device profile: what was measured, beside what was estimated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dsgen.catalog.devices import device_ids, devices_named, load_device
from dsgen.documents.positions import dotted
from dsgen.findings import DsgenError
from dsgen.launch.summary import printable
from dsgen.memory.measured import ESTIMATE
from dsgen.planner.profiles import MeasuredRun, Profile

LEAST_BYTES = 1 << 30
"""Of what tensors hold, for a run to tell anything of reserved / allocated: torch's allocator takes 2 to 20 MiB at a
time (c10/core/AllocatorConfig.h), which is most of what a tiny job reserves."""

_MOST_RATIO = 1000
"""Between what was estimated and what was measured: beyond it, the two are not of one job."""

_REPORT = "report.json"
_MOST_BYTES = 16 << 20
_VERSIONS = ("dsgen", "torch", "torch_npu", "deepspeed", "transformers")


@dataclass(frozen=True, kw_only=True)
class _Found:
    device: str
    simulated: bool
    run: MeasuredRun


def calibrate(folders: Sequence[Path], *, simulated: bool = False) -> Profile:
    """The profile of the device that these runs were on.

    Of the context the most that any run showed counts, of reserved / allocated the range of the runs that tell it: not
    of tiny ones, nor of scripts of the user's own, whose shapes may vary. Raises DsgenError for a folder without
    measured and estimated memory, runs on different devices, and runs on the simulated NPU unless `simulated`, which
    takes no others.
    """
    found = {folder.resolve(): _read(folder) for folder in folders}
    runs = list(found.values())
    devices = sorted({each.device for each in runs})
    if len(devices) > 1:
        raise DsgenError(
            f"these runs are of different devices: {', '.join(devices)}", help="calibrate each device by itself"
        )
    for folder, each in found.items():
        if each.simulated and not simulated:
            raise DsgenError(
                f"{folder} ran on the simulated NPU, which tells nothing of a real one",
                help="to try the command out, add --simulated and --output FILE",
            )
        if simulated and not each.simulated:
            raise DsgenError(f"{folder} ran on a real device", help="leave out --simulated, or this run")
    measured = [each.run for each in runs]
    factors = sorted(run.reserved_factor for run in measured if run.reserved_factor is not None)
    errors = sorted(round(run.error, 4) for run in measured)
    try:
        return Profile(
            device=devices[0],
            simulated=simulated,
            context_bytes=max(run.context_bytes for run in measured),
            reserved_factors=[factors[0], factors[-1]] if factors else None,
            allocated_error=[errors[0], errors[-1]],
            runs=measured,
        )
    except ValidationError as error:
        raise DsgenError(f"these runs make no profile: {_first(error)}") from None


def _read(folder: Path) -> _Found:
    report = _json(folder, _REPORT, "has no run ended in it?")
    if report.get("accelerator") == "cpu":
        raise DsgenError(
            f"{folder} ran on the CPU, which does not count what tensors hold",
            help="only NPUs and CUDA devices can be calibrated",
        )
    memory = report.get("memory")
    device = memory.get("device") if isinstance(memory, Mapping) else None
    if not isinstance(device, Mapping):
        raise DsgenError(
            f"{folder / _REPORT} tells no memory of the device",
            help="it was written by an older dsgen, or not by dsgen.runtime: run the recipe again",
        )
    estimate = _json(folder, ESTIMATE, "was it started by `dsgen launch RECIPE`?")
    steps, before = report.get("steps"), report.get("resumed_after") or 0
    if not isinstance(steps, int) or not isinstance(before, int) or steps - before < 2:
        raise DsgenError(
            f"{folder} trained fewer than two steps, and the first one is not like the others",
            help="train at least two",
        )
    known = estimate.get("device")
    if not isinstance(known, str) or known not in device_ids():
        raise DsgenError(f"{folder / ESTIMATE} is damaged: it names no device that `dsgen devices` lists")
    _check_device(folder, known, str(device.get("device_name")))
    simulated = report.get("simulated", False)
    if not isinstance(simulated, bool):
        raise DsgenError(
            f"{folder} is damaged: simulated: neither true nor false",
            help=f"{_REPORT} and {ESTIMATE} must be as the run left them",
        )
    said = report.get("versions")
    versions = said if isinstance(said, Mapping) else {}
    try:
        run = MeasuredRun.model_validate(
            {
                "name": report.get("name"),
                "run": printable("/".join(folder.resolve().parts[-2:])),
                "allocated_estimated_bytes": estimate.get("allocated_peak_bytes"),
                "allocated_measured_bytes": device.get("allocated_peak_bytes"),
                "reserved_bytes": device.get("reserved_peak_bytes"),
                "reserved_factor": _factor(device) if estimate.get("own_script") is False else None,
                "context_bytes": _context(device.get("beside_bytes"), estimate.get("communicators_bytes")),
                "versions": {name: versions[name] for name in _VERSIONS if name in versions},
            }
        )
    except ValidationError as error:
        raise DsgenError(
            f"{folder} is damaged: {_first(error)}", help=f"{_REPORT} and {ESTIMATE} must be as the run left them"
        ) from None
    _check_possible(folder, run, device, load_device(known).memory_bytes)
    return _Found(device=known, simulated=simulated, run=run)


def _check_possible(folder: Path, run: MeasuredRun, device: Mapping[str, Any], capacity: int | None) -> None:
    """Raises DsgenError for figures that no run can have; `capacity` is the bytes of the device's memory."""
    beside, allocated, estimated = device["beside_bytes"], run.allocated_measured_bytes, run.allocated_estimated_bytes
    wrong = None
    if beside < 0:
        wrong = f"memory.device.beside_bytes: {beside} is negative"
    elif run.reserved_bytes < allocated:
        wrong = f"memory.device.reserved_peak_bytes: {run.reserved_bytes} is less than the {allocated} allocated in it"
    elif max(allocated, estimated) > _MOST_RATIO * min(allocated, estimated):
        wrong = f"memory.device.allocated_peak_bytes: {allocated}, where {estimated} was estimated, is of another job"
    elif capacity is not None and beside > capacity:
        wrong = f"memory.device.beside_bytes: {beside} is more than the {capacity} bytes that the device has"
    elif capacity is not None and run.reserved_bytes > capacity:
        wrong = f"memory.device.reserved_peak_bytes: {run.reserved_bytes} is more than the {capacity} of the device"
    if wrong:
        raise DsgenError(f"{folder} is damaged: {wrong}", help=f"{_REPORT} and {ESTIMATE} must be as the run left them")


def _factor(device: Mapping[str, Any]) -> float | None:
    allocated, reserved = device.get("allocated_peak_bytes"), device.get("reserved_peak_bytes")
    if not isinstance(allocated, int) or not isinstance(reserved, int) or allocated < LEAST_BYTES:
        return None
    return round(max(1.0, reserved / allocated), 4)


def _context(beside: Any, communicators: Any) -> Any:
    """What is neither the allocator's nor counted as buffers of communicators."""
    if type(beside) is not int or type(communicators) is not int:
        return None
    return max(0, beside - communicators)


def _check_device(folder: Path, known: str, reported: str) -> None:
    """The recipe's device is what estimates are for; torch says which one it was."""
    named = [each.id for each in devices_named(reported)]
    if named and known not in named:
        raise DsgenError(
            f"{folder} ran on {reported}, which is {' or '.join(named)}, and its recipe says {known}",
            help="write the right hardware.device in the recipe and run it again",
        )


def _json(folder: Path, name: str, why_missing: str) -> dict[str, Any]:
    path = folder / name
    try:
        if not folder.is_dir():
            raise DsgenError(f"{folder} is no folder", help="name run folders, e.g. runs/NAME/001")
        with path.open("rb") as stream:
            text = stream.read(_MOST_BYTES)
        value = json.loads(text)
    except FileNotFoundError:
        raise DsgenError(f"{folder} has no {name}: {why_missing}") from None
    except OSError as error:
        raise DsgenError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DsgenError(f"{path} is damaged: {error}", help="leave this run out") from None
    if not isinstance(value, dict):
        raise DsgenError(f"{path} is damaged: it holds no JSON object", help="leave this run out")
    return value


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{dotted(first['loc']) or 'it'}: {first['msg']}"
