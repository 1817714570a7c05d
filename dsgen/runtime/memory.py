"""Device memory: its peaks, and giving back what nobody uses any more."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable
from typing import Any


def reclaim(accelerator: Any) -> None:
    """Collect garbage and return cached memory: the device's to the device, the host's to the operating system."""
    gc.collect()
    accelerator.empty_cache()
    trim_heap()


def trim_heap() -> None:
    """Return the unused pages of the C heap to the operating system, where the C library can (glibc).

    Gathering partitioned parameters one after the other leaves holes between the partitions that stay: a heap of
    twice what is held, measured on CPU at stage 3.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


PHASES = ("model", "initialize", "resume", "forward", "backward", "accumulate", "step", "train", "evaluation", "save")
"""What a run's memory is told apart by: `train` is everything after the first two steps that is none of the others."""

_MIB = 1 << 20


class MemoryProbe:
    """Peaks of device memory, phase by phase; None everywhere on CPU.

    DeepSpeed's CPU accelerator reports the process's resident memory, which is no device figure.
    """

    def __init__(self, accelerator: Any, module: Any = None) -> None:
        """`accelerator` is DeepSpeed's, `module` the part of torch that knows its device (torch.npu, torch.cuda)."""
        self._accelerator = accelerator if accelerator.device_name() != "cpu" else None
        self._module = module
        self._earlier = self._reserved = 0
        self._phases: dict[str, tuple[int, int]] = {}
        self._beside: int | None = None

    @property
    def counts(self) -> bool:
        """Whether the accelerator tells what is held on its device."""
        return self._accelerator is not None

    def peak(self) -> int | None:
        """Most bytes that tensors held on this rank's device since the start."""
        if self._accelerator is None:
            return None
        return max(self._earlier, int(self._accelerator.max_memory_allocated()))

    def end_phase(self, phase: str) -> dict[str, int | None] | None:
        """Close one of PHASES: bytes held now, the most since the last phase was closed, the same of the allocator's
        memory, and what the whole device holds now, other processes included."""
        if self._accelerator is None:
            return None
        # Work that is still queued belongs to the phase that queued it.
        self._accelerator.synchronize()
        peak = int(self._accelerator.max_memory_allocated())
        reserved_peak = int(self._accelerator.max_memory_reserved())
        reserved = int(self._accelerator.memory_reserved())
        free_total = self._device()
        used = None if free_total is None else free_total[1] - free_total[0]
        self._earlier, self._reserved = max(self._earlier, peak), max(self._reserved, reserved_peak)
        before = self._phases.get(phase, (0, 0))
        self._phases[phase] = max(before[0], peak), max(before[1], reserved_peak)
        if used is not None:
            self._beside = max(self._beside or 0, used - reserved)
        self._accelerator.reset_peak_memory_stats()
        return {
            "device_bytes": int(self._accelerator.memory_allocated()),
            "device_peak_bytes": peak,
            "device_reserved_bytes": reserved,
            "device_reserved_peak_bytes": reserved_peak,
            "device_used_bytes": used,
        }

    def forget(self, *phases: str) -> None:
        """Leave these out of the report's phases."""
        for phase in phases:
            self._phases.pop(phase, None)

    def report(self, gather: Callable[[list[float]], list[list[float]]] | None) -> dict[str, Any] | None:
        """What report.json says of the device: peaks by phase and of the run, the highest of all ranks.

        `gather` gives the numbers of every rank (as float32) and makes this a collective; without it the figures are
        this rank's.
        """
        if self._accelerator is None:
            return None
        self.end_phase("train")
        own = [size for phase in PHASES for size in self._phases.get(phase, (0, 0))]
        own += [self._earlier, self._reserved, 0 if self._beside is None else self._beside + 1]
        rows = [own]
        if gather is not None:
            # Whole numbers of up to 24 bits are exact in float32.
            halves = gather([float(half) for size in own for half in divmod(size, _MIB)])
            rows = [[int(row[i]) * _MIB + int(row[i + 1]) for i in range(0, len(row), 2)] for row in halves]
        *peaks, allocated, reserved, known = (max(sizes) for sizes in zip(*rows, strict=True))
        beside = known - 1 if known else None
        free_total = self._device()
        return {
            "ranks": len(rows),
            "device_name": str(self._module.get_device_name()),
            "capacity_bytes": None if free_total is None else free_total[1],
            "allocated_peak_bytes": allocated,
            "reserved_peak_bytes": reserved,
            "beside_bytes": beside,
            "total_peak_bytes": None if beside is None else reserved + beside,
            "phases": {
                phase: {"allocated_peak_bytes": peaks[2 * i], "reserved_peak_bytes": peaks[2 * i + 1]}
                for i, phase in enumerate(PHASES)
                if peaks[2 * i + 1]
            },
        }

    def _device(self) -> tuple[int, int] | None:
        """Free bytes of the device, and all of them, as its driver counts them; None where it does not answer."""
        # No training is to end for want of a figure.
        with contextlib.suppress(RuntimeError, AttributeError):
            free, total = self._module.mem_get_info()
            return int(free), int(total)
        return None
