"""Giving memory back that nobody uses any more."""

from __future__ import annotations

import contextlib
import ctypes
import gc
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


class MemoryProbe:
    """Peaks of device memory, phase by phase; None everywhere on CPU.

    DeepSpeed's CPU accelerator reports the process's resident memory, which is no device figure.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator if accelerator.device_name() != "cpu" else None
        self._earlier = 0

    @property
    def counts(self) -> bool:
        """Whether the accelerator tells what is held on its device."""
        return self._accelerator is not None

    def peak(self) -> int | None:
        """Most bytes that tensors held on this rank's device since the start."""
        if self._accelerator is None:
            return None
        return max(self._earlier, int(self._accelerator.max_memory_allocated()))

    def end_phase(self) -> dict[str, int] | None:
        """Close a phase: bytes held now, and the most since the last phase was closed."""
        if self._accelerator is None:
            return None
        # Work that is still queued belongs to the phase that queued it.
        self._accelerator.synchronize()
        peak = int(self._accelerator.max_memory_allocated())
        held = int(self._accelerator.memory_allocated())
        self._earlier = max(self._earlier, peak)
        self._accelerator.reset_peak_memory_stats()
        return {"device_bytes": held, "device_peak_bytes": peak}
