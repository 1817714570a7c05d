"""Memory by phase, on an accelerator that can tell."""

from __future__ import annotations

from dsgen.runtime.memory import MemoryProbe, reclaim, trim_heap


class Device:
    """An accelerator whose tensors are numbers."""

    def __init__(self, name: str = "npu") -> None:
        self.name = name
        self.held = self.most = 0
        self.emptied = self.waited = 0

    def hold(self, size: int) -> None:
        self.held += size
        self.most = max(self.most, self.held)

    def device_name(self) -> str:
        return self.name

    def memory_allocated(self) -> int:
        return self.held

    def max_memory_allocated(self) -> int:
        return self.most

    def reset_peak_memory_stats(self) -> None:
        self.most = self.held

    def synchronize(self) -> None:
        self.waited += 1

    def empty_cache(self) -> None:
        self.emptied += 1


def test_phases() -> None:
    device = Device()
    probe = MemoryProbe(device)
    device.hold(100)
    device.hold(-70)
    assert probe.end_phase() == {"device_bytes": 30, "device_peak_bytes": 100}
    device.hold(20)
    device.hold(-10)
    assert probe.peak() == 100
    assert probe.end_phase() == {"device_bytes": 40, "device_peak_bytes": 50}
    device.hold(80)
    assert probe.peak() == 120
    assert device.waited == 2


def test_cpu_cannot_tell() -> None:
    probe = MemoryProbe(Device("cpu"))
    assert probe.peak() is None
    assert probe.end_phase() is None


def test_reclaim() -> None:
    device = Device()
    reclaim(device)
    trim_heap()
    assert device.emptied == 1
