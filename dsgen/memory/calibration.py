"""What runs on a kind of device have shown of it, in place of what is assumed of every device of its kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Measured figures of one kind of device; None where the runs did not tell."""

    device: str
    """Id in the catalog: it counts for plans of that device only."""
    context_bytes: int | None
    """What the device holds beside the allocator's memory and the counted buffers of communicators."""
    reserved_factors: tuple[float, float] | None
    """Reserved / allocated on a device with room, the lowest and the highest of runs whose shapes never change."""
    source: str
    """Which runs these are and where they stand, for whoever reads the estimate."""
