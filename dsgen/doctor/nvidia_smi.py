"""Reading what nvidia-smi prints as comma-separated values. No function here raises."""

from __future__ import annotations

import re
from dataclasses import dataclass

DEVICES = (
    "nvidia-smi",
    "--query-gpu=index,uuid,memory.total,memory.used,driver_version,name",
    "--format=csv,noheader,nounits",
)
"""The name comes last, since it may hold a comma."""
PROCESSES = (
    "nvidia-smi",
    "--query-compute-apps=gpu_uuid,pid,used_memory,process_name",
    "--format=csv,noheader,nounits",
)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One line of DEVICES."""

    index: int
    uuid: str
    total_mib: int | None
    used_mib: int | None
    driver: str
    name: str


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """One line of PROCESSES."""

    uuid: str
    pid: int
    memory_mib: int | None
    name: str


def parse_devices(text: str) -> tuple[Gpu, ...] | None:
    """The devices that DEVICES prints; None in an unknown form."""
    rows = []
    for line in filter(str.strip, text.splitlines()):
        cells = [cell.strip() for cell in line.split(",", 5)]
        if len(cells) != 6 or not re.fullmatch(r"[0-9]{1,6}", cells[0]):
            return None
        index, uuid, total, used, driver, name = cells
        rows.append(
            Gpu(
                index=int(index),
                uuid=uuid,
                total_mib=_number(total),
                used_mib=_number(used),
                driver=driver,
                name=name,
            )
        )
    return tuple(rows) or None


def parse_processes(text: str) -> tuple[GpuProcess, ...]:
    """The processes that PROCESSES prints; lines in another form are left out."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",", 3)]
        if len(cells) == 4 and re.fullmatch(r"[0-9]{1,10}", cells[1]):
            rows.append(GpuProcess(uuid=cells[0], pid=int(cells[1]), memory_mib=_number(cells[2]), name=cells[3]))
    return tuple(rows)


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else None
