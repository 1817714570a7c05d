"""The devices that npu-smi or nvidia-smi shows, in one form for both kinds."""

from __future__ import annotations

from dataclasses import dataclass

from dsgen.catalog.devices import Kind
from dsgen.doctor import nvidia_smi
from dsgen.doctor.npu_smi import Info, explain_failure, parse_info, parse_map, parse_process_memory
from dsgen.doctor.probe import Output, Probe
from dsgen.doctor.words import GIB, MIB

IDLE_BYTES = {"npu": 4 * GIB, "cuda": GIB}
"""Above this a device is held by somebody. Idle NPUs show 0 (the old family) to 3.4 GiB (A2, A3) in public logs."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that holds device memory."""

    pid: int
    name: str
    bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One device as torch counts them."""

    kind: Kind
    index: int
    place: str
    """In the words of the tool: `NPU 2`, `NPU 0 chip 1`, `GPU 0`."""
    name: str
    health: str
    """`OK`; empty where the tool does not say."""
    total_bytes: int | None
    used_bytes: int | None
    holders: tuple[Holder, ...]

    @property
    def held(self) -> bool:
        """Whether a process holds it, by name or by more memory than an idle device shows."""
        return bool(self.holders) or (self.used_bytes or 0) > IDLE_BYTES[self.kind]


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What came of looking; without devices, `output` says why."""

    devices: tuple[Seen, ...]
    output: Output
    driver: str = ""
    unread: tuple[str, ...] = ()
    """Lines in an unknown form."""


def see(probe: Probe, kind: Kind) -> Sight:
    """The devices of one kind, by their numbers."""
    return _see_npus(probe) if kind == "npu" else _see_gpus(probe)


def _see_npus(probe: Probe) -> Sight:
    output = probe.run("npu-smi", "info")
    info = parse_info(output.text)
    if info is None:
        return Sight(devices=(), output=output)
    mapped = parse_map(probe.run("npu-smi", "info", "-m").text) or ()
    numbers = {(row.npu, row.chip): row.logic for row in mapped}
    several = len({chip.npu for chip in info.chips}) < len(info.chips)
    devices = []
    for position, chip in enumerate(info.chips):
        key = (chip.npu, chip.chip)
        index = numbers.get(key, position if chip.physical is None else chip.physical)
        used = None if chip.used_mb is None else chip.used_mb * MIB
        device = Seen(
            kind="npu",
            index=index,
            place=f"NPU {chip.npu} chip {chip.chip}" if several else f"NPU {chip.npu}",
            name=chip.name,
            health=chip.health,
            total_bytes=None if chip.total_mb is None else chip.total_mb * MIB,
            used_bytes=used,
            holders=_holders(probe, info, *key, hidden=(used or 0) > IDLE_BYTES["npu"]),
        )
        devices.append(device)
    return Sight(
        devices=tuple(sorted(devices, key=lambda device: device.index)),
        output=output,
        driver=info.version,
        unread=info.unread,
    )


def _holders(probe: Probe, info: Info, npu: int, chip: int, *, hidden: bool) -> tuple[Holder, ...]:
    listed = [each for each in info.processes if (each.npu, each.chip) == (npu, chip)]
    if not listed and hidden:
        # The table leaves out processes of other containers, and this list has them.
        words = ("npu-smi", "info", "-t", "proc-mem", "-i", str(npu), "-c", str(chip))
        listed = list(parse_process_memory(probe.run(*words).text) or ())
    return tuple(
        Holder(pid=each.pid, name=each.name, bytes=None if each.memory_mb is None else each.memory_mb * MIB)
        for each in listed
    )


def _see_gpus(probe: Probe) -> Sight:
    output = probe.run(*nvidia_smi.DEVICES)
    gpus = nvidia_smi.parse_devices(output.text) if not output.problem else None
    if gpus is None:
        return Sight(devices=(), output=output)
    processes = nvidia_smi.parse_processes(probe.run(*nvidia_smi.PROCESSES).text)
    devices = tuple(
        Seen(
            kind="cuda",
            index=gpu.index,
            place=f"GPU {gpu.index}",
            name=gpu.name,
            health="",
            total_bytes=None if gpu.total_mib is None else gpu.total_mib * MIB,
            used_bytes=None if gpu.used_mib is None else gpu.used_mib * MIB,
            holders=tuple(
                Holder(pid=each.pid, name=each.name, bytes=None if each.memory_mib is None else each.memory_mib * MIB)
                for each in processes
                if each.uuid == gpu.uuid
            ),
        )
        for gpu in gpus
    )
    return Sight(devices=devices, output=output, driver=gpus[0].driver)


def failure(sight: Sight, tool: str) -> tuple[str, str] | None:
    """Why the tool shows nothing, and a remedy; None when it answered in a form that is not known."""
    known = explain_failure(sight.output.text) if tool == "npu-smi" else None
    if known is not None:
        return known
    if sight.output.missing:
        remedy = f"install the driver; a container needs {tool} and the driver's folders mounted"
        return sight.output.problem, remedy
    if sight.output.problem:
        last = sight.output.text.strip().splitlines()[-1:] or ["nothing"]
        return (
            f"{tool}: {sight.output.problem}; it said: {last[0][:200]}",
            f"run {tool} by hand; check the driver (dmesg)",
        )
    return None
