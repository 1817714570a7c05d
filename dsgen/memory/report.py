"""What an estimate says. All sizes are bytes of one rank unless a name says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dsgen.memory.calibration import Calibration

Parts = Mapping[str, int]
"""Part -> bytes."""

WEIGHTS = "weights"
GRADIENTS = "gradients"
MASTER = "master weights"
STATES = "optimizer states"
ACTIVATIONS = "activations"
LOSS = "logits and loss"
BUCKETS = "communication buckets"
GATHERED = "gathered weights"
TEMPORARIES = "temporaries"
COMMUNICATORS = "communicators"
CONTEXT = "device context"
ROUNDING = "page-locked rounding"
PROCESSES = "processes"

Verdict = Literal["fits", "tight", "does not fit", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A point in time at which memory may be highest."""

    name: str
    device: Parts
    host: Parts = field(default_factory=dict)

    @property
    def device_bytes(self) -> int:
        """Bytes that tensors hold on the device."""
        return sum(self.device.values())

    @property
    def host_bytes(self) -> int:
        """Bytes that tensors hold in host memory."""
        return sum(self.host.values())


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of the job, and the moments in it where most is held on the device and on the host."""

    name: str
    device: Moment
    host: Moment


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """One device, on the rank that holds most."""

    capacity_bytes: int | None
    """What torch can reach on the device; None when it is not known (CPU)."""
    allocated_peak_bytes: int
    """What tensors hold."""
    steady_bytes: int
    """Of these, what is held between steps; the rest comes and goes."""
    reserved_peak_bytes: int
    """What torch's allocator gets by with for them."""
    reserved_with_room_bytes: int
    """What it takes when there is room; it gives back what it does not use before it fails."""
    reserved_factors: tuple[float, float]
    """Bytes of `reserved_peak_bytes` for each byte that comes and goes; the upper end counts."""
    reserved_source: str
    total_peak_bytes: int
    """What npu-smi or nvidia-smi shows: reserved, the context and the buffers of the communicators."""
    parts: Parts
    """At the peak of `total_peak_bytes` but for what the allocator reserves in vain."""
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """The memory of one node, all its ranks together."""

    capacity_bytes: int | None
    """As the recipe says, else what servers with this device usually have; None when neither is known."""
    capacity_said: bool
    """Whether the recipe says it."""
    peak_bytes: int
    peak_phase: str
    parts: Parts
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """The memory that a job needs."""

    verdict: Verdict
    """The worse of the two."""
    headroom: float
    phases: tuple[Phase, ...]
    """In the order in which they come; those of the training step repeat."""
    peak_phase: str
    peak_moment: str
    peak_part: str
    """The largest part at the device's peak."""
    device: DeviceMemory
    host: HostMemory
    profile: str
    """The modelling code whose activations are counted."""
    unmeasured: tuple[str, ...]
    """What of this job's arithmetic no measurement stands behind."""
    calibration: Calibration | None = None
    """Measured figures of the device that were used."""

    def phase(self, name: str) -> Phase:
        """The phase of that name. Raises KeyError."""
        for phase in self.phases:
            if phase.name == name:
                return phase
        raise KeyError(name)
