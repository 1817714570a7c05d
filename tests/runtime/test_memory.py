"""Memory by phase, on an accelerator that can tell."""

from __future__ import annotations

import struct

from dsgen.runtime.memory import MemoryProbe, reclaim, trim_heap


class Device:
    """An accelerator whose tensors are numbers, and the part of torch that knows its device: the allocator takes 1000
    bytes at a time, something else holds 7."""

    total = 10_000

    def __init__(self, name: str = "npu") -> None:
        self.name = name
        self.held = self.most = 0
        self.reserved = self.reserved_most = 0
        self.emptied = self.waited = 0

    def hold(self, size: int) -> None:
        self.held += size
        self.most = max(self.most, self.held)
        self.reserved = max(self.reserved, -(-self.held // 1000) * 1000)
        self.reserved_most = max(self.reserved_most, self.reserved)

    def device_name(self) -> str:
        return self.name

    def get_device_name(self) -> str:
        return "Ascend910B3"

    def mem_get_info(self) -> tuple[int, int]:
        return self.total - self.reserved - 7, self.total

    def memory_allocated(self) -> int:
        return self.held

    def max_memory_allocated(self) -> int:
        return self.most

    def memory_reserved(self) -> int:
        return self.reserved

    def max_memory_reserved(self) -> int:
        return self.reserved_most

    def reset_peak_memory_stats(self) -> None:
        self.most, self.reserved_most = self.held, self.reserved

    def synchronize(self) -> None:
        self.waited += 1

    def empty_cache(self) -> None:
        self.emptied += 1


def test_phases() -> None:
    device = Device()
    probe = MemoryProbe(device, device)
    device.hold(100)
    device.hold(-70)
    assert probe.end_phase("model") == {
        "device_bytes": 30,
        "device_peak_bytes": 100,
        "device_reserved_bytes": 1000,
        "device_reserved_peak_bytes": 1000,
        "device_used_bytes": 1007,
    }
    device.hold(20)
    device.hold(-10)
    assert probe.peak() == 100
    measured = probe.end_phase("forward")
    assert measured is not None
    assert (measured["device_bytes"], measured["device_peak_bytes"]) == (40, 50)
    device.hold(80)
    assert probe.peak() == 120
    assert device.waited == 2


def test_report_of_all_ranks() -> None:
    """The highest of each phase over steps and ranks, exact to the byte although ranks send float32."""
    device = Device()
    probe = MemoryProbe(device, device)
    for size in (123_456_789, 100):
        device.hold(size)
        device.hold(-size)
        probe.end_phase("forward")
    device.hold(2000)
    probe.end_phase("step")
    device.hold(234_567_890)
    device.hold(-234_567_390)
    probe.end_phase("backward")
    # Not shown as a phase, and still the peak of the run.
    probe.forget("backward")
    lesser = MemoryProbe(Device(), Device())

    def gather(numbers: list[float]) -> list[list[float]]:
        as_float32 = [struct.unpack("f", struct.pack("f", number))[0] for number in numbers]
        return [as_float32, [0.0] * len(numbers)]

    report = probe.report(gather)
    assert report is not None
    phases = {name: each["allocated_peak_bytes"] for name, each in report.pop("phases").items()}
    assert phases == {"forward": 123_456_789, "step": 2000, "train": 2500}
    assert report == {
        "ranks": 2,
        "device_name": "Ascend910B3",
        "capacity_bytes": 10_000,
        "allocated_peak_bytes": 234_569_890,
        "reserved_peak_bytes": 234_570_000,
        "beside_bytes": 7,
        "total_peak_bytes": 234_570_007,
    }
    alone = lesser.report(None)
    assert alone is not None and (alone["ranks"], alone["allocated_peak_bytes"]) == (1, 0)


def test_a_driver_that_does_not_answer() -> None:
    device = Device()
    probe = MemoryProbe(device, None)
    device.hold(5)
    measured = probe.end_phase("model")
    assert measured is not None
    assert (measured["device_peak_bytes"], measured["device_used_bytes"]) == (5, None)


def test_cpu_cannot_tell() -> None:
    probe = MemoryProbe(Device("cpu"))
    assert probe.peak() is None
    assert probe.end_phase("model") is None
    assert probe.report(None) is None


def test_reclaim() -> None:
    device = Device()
    reclaim(device)
    trim_heap()
    assert device.emptied == 1
