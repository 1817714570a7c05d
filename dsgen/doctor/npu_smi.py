"""Reading what npu-smi prints: by the words of its headings, never by columns, since the widths differ by version.

Layouts seen in public: the old 910 family, A2, and A3, where a card is two chips (dies) with a number of its own each.
No function here raises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One device of the table: an NPU of A2, a die of A3."""

    npu: int
    chip: int
    physical: int | None
    """Its own number where a card has several chips."""
    name: str
    health: str
    used_mb: int | None
    """Memory in use; MB are MiB in npu-smi."""
    total_mb: int | None


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process that holds memory of a chip."""

    npu: int
    chip: int
    pid: int
    name: str
    memory_mb: int | None


@dataclass(frozen=True, kw_only=True)
class Info:
    """`npu-smi info`."""

    version: str
    """Of the driver, which brings npu-smi."""
    chips: tuple[Chip, ...]
    processes: tuple[Process, ...]
    unread: tuple[str, ...]
    """Lines of the tables in an unknown form."""


def parse_info(text: str) -> Info | None:
    """The tables of `npu-smi info`; None when nothing in the text looks like them."""
    reader = _InfoReader()
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("|"):
            reader.take([cell.strip() for cell in line.strip("|").split("|")], line)
    return reader.result()


class _InfoReader:
    def __init__(self) -> None:
        self.version = ""
        self.chips: list[Chip] = []
        self.processes: list[Process] = []
        self.unread: list[str] = []
        self._first: list[str] | None = None
        """The upper line of a chip, whose lower line is to come."""
        self._upper: list[list[str]] = []
        """Words of the headings, cell by cell."""
        self._lower: list[list[str]] = []
        self._process_heads: list[str] = []

    def take(self, cells: list[str], line: str) -> None:
        words = [cell.lower().split() for cell in cells]
        whole = " ".join(cells).lower()
        if whole.startswith("npu-smi "):
            match = re.search(r"version: *(\S+)", whole)
            self.version = match[1] if match else ""
        elif "process id" in whole:
            self._process_heads, self._first = [cell.lower() for cell in cells], None
        elif words[0][:2] == ["npu", "name"]:
            self._upper, self._process_heads = words, []
        elif words[0][:1] == ["chip"]:
            self._lower = words
        elif whole.startswith("no running processes"):
            return
        elif not (self._process(cells) if self._process_heads else self._chip(cells)):
            self.unread.append(line)

    def result(self) -> Info | None:
        if not (self._upper and self._lower) or not (self.chips or self.unread):
            return None
        if self._first is not None:
            self.unread.append(" | ".join(self._first))
        return Info(
            version=self.version,
            chips=tuple(self.chips),
            processes=tuple(self.processes),
            unread=tuple(self.unread),
        )

    def _chip(self, cells: list[str]) -> bool:
        if not self._upper or not self._lower:
            return False
        if self._first is None:
            self._first = cells
            return _named(cells[0]) is not None and len(cells) == len(self._upper)
        first, self._first = self._first, None
        named, numbers = _named(first[0]), re.fullmatch(r"(\d{1,6})(?: +(\d{1,6}))?", cells[0])
        health = next((i for i, words in enumerate(self._upper) if "health" in words), None)
        if named is None or numbers is None or health is None or health >= len(first):
            return False
        memory = self._memory(cells)
        if memory is None:
            return False
        self.chips.append(
            Chip(
                npu=named[0],
                chip=int(numbers[1]),
                physical=int(numbers[2]) if numbers[2] else None,
                name=named[1],
                health=first[health],
                used_mb=memory[0],
                total_mb=memory[1],
            )
        )
        return True

    def _memory(self, cells: list[str]) -> tuple[int | None, int | None] | None:
        """Used and total memory of the lower line; None when the line does not fit its heading."""
        for wanted in ("hbm-usage", "memory-usage"):
            for heads, cell in zip(self._lower, cells, strict=False):
                values = re.findall(r"(\S+?) */ *(\S+)|(\S+)", cell)
                places = [i for i, head in enumerate(heads) if head.startswith(wanted)]
                if places and len(values) == len(heads):
                    used, total, word = values[places[0]]
                    return (_number(used), _number(total)) if word in ("", "-", "NA") else None
                if places:
                    return None
        return None

    def _process(self, cells: list[str]) -> bool:
        numbers = re.fullmatch(r"(\d{1,6})(?: +(\d{1,6}))?", cells[0])
        row = dict(zip(self._process_heads, cells, strict=False))
        pid = _number(row.get("process id", ""))
        if numbers is None or pid is None or len(cells) != len(self._process_heads):
            return False
        memory = next((value for head, value in row.items() if head.startswith("process memory")), "")
        self.processes.append(
            Process(
                npu=int(numbers[1]),
                chip=int(numbers[2] or 0),
                pid=pid,
                name=row.get("process name", ""),
                memory_mb=_number(memory),
            )
        )
        return True


def _named(cell: str) -> tuple[int, str] | None:
    match = re.fullmatch(r"(\d{1,6}) +(\S.*)", cell)
    return (int(match[1]), match[2]) if match else None


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else None


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """A line of `npu-smi info -m`: which chip has which number for programs."""

    npu: int
    chip: int
    logic: int
    name: str


def parse_map(text: str) -> tuple[Mapped, ...] | None:
    """The chips of `npu-smi info -m`, without the controllers (Mcu) between them; None in an unknown form."""
    heads: list[str] | None = None
    rows = []
    for line in text.splitlines():
        cells = re.split(r" {2,}|\t+", line.strip())
        lowered = [cell.lower() for cell in cells]
        if "npu id" in lowered and "chip logic id" in lowered:
            heads = lowered
        elif heads is not None and len(cells) == len(heads):
            row = dict(zip(heads, cells, strict=True))
            numbers = [_number(row.get(head, "")) for head in ("npu id", "chip id", "chip logic id")]
            npu, chip, logic = numbers
            if npu is not None and chip is not None and logic is not None:
                rows.append(Mapped(npu=npu, chip=chip, logic=logic, name=row.get("chip name", "")))
    return tuple(rows) or None


def parse_count(text: str) -> int | None:
    """The chips that `npu-smi info -l` counts, over all cards; None in an unknown form."""
    total = re.search(r"^\s*Total Count\s*: *(\d{1,6})\s*$", text, re.MULTILINE)
    chips = re.findall(r"^\s*Chip Count\s*: *(\d{1,6})\s*$", text, re.MULTILINE)
    if total is None or int(total[1]) != len(chips):
        return None
    return sum(map(int, chips))


def parse_process_memory(text: str) -> tuple[Process, ...] | None:
    """The processes of `npu-smi info -t proc-mem -i N -c N`; None in an unknown form."""
    npu = re.search(r"^\s*NPU ID\s*: *(\d{1,6})\s*$", text, re.MULTILINE)
    chip = re.search(r"^\s*Chip ID\s*: *(\d{1,6})\s*$", text, re.MULTILINE)
    if npu is None:
        return None
    rows = re.findall(r"Process id *: *(\d{1,10}) +Process name *:(.*?)Process memory\(MB\) *: *(\d{1,10})", text)
    return tuple(
        Process(npu=int(npu[1]), chip=int(chip[1]) if chip else 0, pid=int(pid), name=name.strip(), memory_mb=int(mb))
        for pid, name, mb in rows
    )


_FAILURES: Sequence[tuple[str, str, str]] = (
    (
        r"command not found|No such file or directory.*npu-smi",
        "npu-smi is not there: the driver is not installed, or this container does not have it",
        "install the NPU driver; in a container mount /usr/local/Ascend/driver, /usr/local/dcmi and npu-smi",
    ),
    (
        r"error while loading shared libraries: (\S+?):",
        "npu-smi does not find the driver's library {0}: a container without the driver's folder",
        "start the container with -v /usr/local/Ascend/driver:/usr/local/Ascend/driver and "
        "-v /usr/local/dcmi:/usr/local/dcmi, and LD_LIBRARY_PATH with /usr/local/Ascend/driver/lib64 and its folders",
    ),
    (
        r"dcmi module initialize failed\. *ret is (-?\d+)",
        "npu-smi does not reach the driver (dcmi {0}): the manager's device is not there or not allowed",
        "a container needs --device /dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc; on the host, check that "
        "the driver is loaded (lsmod | grep drv) and that the user is in the group of /dev/davinci_manager",
    ),
)


def explain_failure(text: str) -> tuple[str, str] | None:
    """What a known error text of npu-smi means, and a remedy; None for any other text."""
    for pattern, meaning, remedy in _FAILURES:
        match = re.search(pattern, text)
        if match:
            return meaning.format(*match.groups()), remedy
    return None
