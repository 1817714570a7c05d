"""Devices: what is known of an accelerator and of the servers it usually stands in, with sources and doubts."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dsgen.catalog.datafiles import read_yaml
from dsgen.catalog.lookup import UnknownName

Kind = Literal["npu", "cuda", "cpu"]
"""The accelerator's name in DeepSpeed (`DS_ACCELERATOR`)."""

Precision = Literal["fp32", "fp16", "bf16"]

Overflow = Literal["inf", "saturates"]

_FILES: dict[str, Kind] = {"ascend": "npu", "cuda": "cuda", "cpu": "cpu"}


class UnknownDevice(UnknownName):
    """No device has that id or alias; `suggestions` are the nearest ids."""

    kind = "device"


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device as torch counts them (on Ascend A3: one die of two). A value that nobody has published is None."""

    id: str
    """For example `ascend-910b3-64g`."""
    aliases: tuple[str, ...]
    """Other names that people write for it in a recipe."""
    names: tuple[str, ...]
    """What the machine calls it: SoC names, and the names that npu-smi, nvidia-smi and torch print."""
    kind: Kind
    generation: str
    """Family of the hardware: `910` (the old Ascend family), `A2`, `A3`, `950`; `volta`, `ampere`, ...; `cpu`."""
    memory_bytes: int | None
    """Memory by the data sheet. None for `cpu`, whose memory is the host's."""
    usable_bytes: int | None
    """What torch reports as the device's total, before any process uses it."""
    bf16: bool
    fp16: bool
    peak_flops: Mapping[Precision, float | None] = field(hash=False)
    """Dense matrix operations per second for fp32, fp16 and bf16."""
    memory_bandwidth_bytes_per_second: float | None
    link_in_server_bytes_per_second: float | None
    """From one device to the others of its server, one direction."""
    link_between_servers_bytes_per_second: float | None
    """From one device to those of other servers, one direction; a server's network shared evenly by its devices."""
    devices_per_server: int
    host_memory_bytes: int | None
    """Memory of the usual server."""
    host_cores: int | None
    """Processor cores of the usual server."""
    overflow: Overflow
    """What fp16 gives beyond its range: `inf`, or the largest number (the old Ascend family)."""
    sources: tuple[str, ...]
    doubts: Mapping[str, str] = field(hash=False)
    """Uncertain values: name of the field (`peak_flops.fp16` for one precision) and why it is uncertain."""

    @property
    def uncertain(self) -> tuple[str, ...]:
        """Names of the fields whose values are uncertain."""
        return tuple(self.doubts)

    def supports(self, precision: Precision) -> bool:
        """Whether the device computes in that precision."""
        return {"fp32": True, "fp16": self.fp16, "bf16": self.bf16}[precision]


def device_ids() -> tuple[str, ...]:
    """The ids of all devices: Ascend, CUDA, CPU."""
    return tuple(id for file in _FILES for id in read_yaml(f"devices/{file}.yaml")["devices"])


def load_device(name: str) -> Device:
    """The device of that id or alias; upper and lower case are the same.

    Raises UnknownDevice.
    """
    wanted = name.strip().lower()
    for file in _likely_first(wanted):
        for device in _devices(file):
            if wanted == device.id or wanted in device.aliases:
                return device
    raise UnknownDevice(name, device_ids())


def devices_named(reported: str) -> tuple[Device, ...]:
    """The devices that a machine may mean by a name it reports (SoC name, or the name npu-smi or torch prints).

    Empty when the name is not known. `Ascend910B` and `910B` are the old family here, as they are in torch_npu.
    """
    return tuple(device for file in _FILES for device in _devices(file) if reported.strip() in device.names)


def _likely_first(name: str) -> tuple[str, ...]:
    """The data files, the one that is named by the id's first word first, so that it is the only one read."""
    first = name.split("-", 1)[0]
    return tuple(sorted(_FILES, key=lambda file: file != first))


@functools.cache
def _devices(file: str) -> tuple[Device, ...]:
    content = read_yaml(f"devices/{file}.yaml")
    return tuple(_device(id, _FILES[file], entry, content["sources"]) for id, entry in content["devices"].items())


def _device(id: str, kind: Kind, entry: Mapping[str, Any], sources: Mapping[str, str]) -> Device:
    peak: Mapping[str, str] = entry["peak"]
    return Device(
        id=id,
        aliases=tuple(entry["aliases"]),
        names=tuple(entry["names"]),
        kind=kind,
        generation=entry["generation"],
        memory_bytes=_whole(entry.get("memory")),
        usable_bytes=_whole(entry.get("usable")),
        bf16=entry["bf16"],
        fp16=entry.get("fp16", True),
        peak_flops={
            "fp32": _quantity(peak.get("fp32")),
            "fp16": _quantity(peak.get("fp16")),
            "bf16": _quantity(peak.get("bf16")),
        },
        memory_bandwidth_bytes_per_second=_quantity(entry.get("memory_bandwidth")),
        link_in_server_bytes_per_second=_quantity(entry.get("link_in_server")),
        link_between_servers_bytes_per_second=_quantity(entry.get("link_between_servers")),
        devices_per_server=entry["devices_per_server"],
        host_memory_bytes=_whole(entry.get("host_memory")),
        host_cores=entry.get("host_cores"),
        overflow=entry["overflow"],
        sources=tuple(sources[key] for key in entry["sources"]),
        doubts=dict(entry.get("doubts", {})),
    )


_UNITS = {"": 1.0, "G": 1e9, "T": 1e12, "Gi": 2.0**30, "Ti": 2.0**40}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?) (G|T|Gi|Ti|)(?:B|B/s|FLOP/s)")


def _quantity(text: str | None) -> float | None:
    """`1.6 TiB/s` as a number of bytes (or operations) per second; None stays None."""
    if text is None:
        return None
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"device data: {text!r} is not a quantity with a unit")
    return float(match[1]) * _UNITS[match[2]]


def _whole(text: str | None) -> int | None:
    value = _quantity(text)
    return None if value is None else int(value)
