"""Reading npu-smi: all layouts that were seen, and a wider one."""

from __future__ import annotations

import pytest

from dsgen.doctor import nvidia_smi
from dsgen.doctor.npu_smi import explain_failure, parse_count, parse_info, parse_map, parse_process_memory

from .conftest import SAMPLES

WIDE = """\
+------------------------------------------------------------------------------------------------------------------+
| npu-smi 26.0.rc2                         Version: 26.0.rc2                                                        |
+--------------------------------+------------------+---------------------------------------------------------------+
| NPU     Name                   | Health           | Power(W)     Temp(C)               Hugepages-Usage(page)      |
| Chip    Phy-ID                 | Bus-Id           | AICore(%)    Memory-Usage(MB)      HBM-Usage(MB)              |
+================================+==================+===============================================================+
| 3       Ascend910              | Warning          | 176.4        36                    0     / 0                  |
| 0       6                      | 0000:9D:00.0     | 12           0     / 0             9128  / 65536              |
+--------------------------------+------------------+---------------------------------------------------------------+
+--------------------------------+------------------+----------------------+--------------------+-------------------+
| NPU     Chip                   | Process id       | Process id in container | Process name    | Process memory(MB)|
+================================+==================+=========================+=================+===================+
| 3       0                      | 3011             | 17                      | python3         | 6044              |
+================================+==================+=========================+=================+===================+
"""


@pytest.mark.parametrize(
    ("sample", "version", "count", "name", "first", "total_mb"),
    [
        ("910prob-23.0", "23.0.0", 8, "910ProB", (0, 0, None, 0), 32768),
        ("a2-910b3-idle", "24.1.rc3", 8, "910B3", (0, 0, None, 3318), 65536),
        ("a2-910b3-training", "24.1.rc3", 8, "910B3", (0, 0, None, 58990), 65536),
        ("a2-910b4-1-64g", "25.0.rc1", 8, "910B4-1", (0, 0, None, 2868), 65536),
        ("a2-910b4-32g", "24.1.0", 8, "910B4", (0, 0, None, 2847), 32768),
        ("a3-16dies", "25.2.0", 16, "Ascend910", (0, 0, 0, 3128), 65536),
    ],
)
def test_layouts(
    sample: str, version: str, count: int, name: str, first: tuple[int, int, int | None, int], total_mb: int
) -> None:
    info = parse_info((SAMPLES / f"npu-smi-info-{sample}.txt").read_text())
    assert info is not None
    assert info.version == version
    assert info.unread == ()
    assert len(info.chips) == count
    assert {(chip.name, chip.health, chip.total_mb) for chip in info.chips} == {(name, "OK", total_mb)}
    chip = info.chips[0]
    assert (chip.npu, chip.chip, chip.physical, chip.used_mb) == first


def test_processes() -> None:
    old = parse_info((SAMPLES / "npu-smi-info-910prob-23.0.txt").read_text())
    assert old is not None
    assert [(p.npu, p.chip, p.pid, p.name, p.memory_mb) for p in old.processes] == [(2, 0, 221034, "python", 30650)]
    dies = parse_info((SAMPLES / "npu-smi-info-a3-16dies.txt").read_text())
    assert dies is not None
    assert [(p.npu, p.chip, p.pid, p.memory_mb) for p in dies.processes] == [(0, 0, 3011, 12044), (0, 1, 3012, 12040)]
    assert [(chip.npu, chip.chip, chip.physical) for chip in dies.chips[:4]] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 2),
        (1, 1, 3),
    ]


def test_a_wider_layout_with_one_more_column() -> None:
    info = parse_info(WIDE)
    assert info is not None
    assert info.unread == ()
    (chip,) = info.chips
    assert (chip.npu, chip.physical, chip.health, chip.used_mb, chip.total_mb) == (3, 6, "Warning", 9128, 65536)
    (process,) = info.processes
    assert (process.pid, process.name, process.memory_mb) == (3011, "python3", 6044)


def test_columns_in_another_order_are_found_by_their_headings() -> None:
    text = (
        (SAMPLES / "npu-smi-info-a2-910b3-idle.txt")
        .read_text()
        .replace("AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        ", "HBM-Usage(MB)  AICore(%)   Memory-Usage(MB)")
    )
    for used in range(3318, 3400):
        text = text.replace(f"0           0    / 0          {used} / 65536", f"{used} / 65536    0    0 / 0")
    info = parse_info(text)
    assert info is not None
    assert [chip.used_mb for chip in info.chips] == [3318, 3321, 3324, 3327, 3330, 3333, 3336, 3339]


def test_a_line_in_an_unknown_form_is_kept() -> None:
    text = (SAMPLES / "npu-smi-info-a2-910b3-idle.txt").read_text()
    info = parse_info(text.replace("0           0    / 0          3321 / 65536", "0           ?             65536"))
    assert info is not None
    assert len(info.chips) == 7
    assert len(info.unread) == 1
    assert "65536" in info.unread[0]


@pytest.mark.parametrize("text", ["", "|||", "| NPU |", "bash: npu-smi: command not found", "+---+\n| a | b |\n+---+"])
def test_other_text_is_no_table(text: str) -> None:
    assert parse_info(text) is None


def test_map_count_and_process_memory() -> None:
    two = parse_map((SAMPLES / "npu-smi-info-m.txt").read_text())
    assert two is not None
    assert [(row.npu, row.chip, row.logic, row.name) for row in two[:2]] == [
        (0, 0, 0, "Ascend 910B3"),
        (1, 0, 1, "Ascend 910B3"),
    ]
    assert len(two) == 8
    dies = parse_map((SAMPLES / "npu-smi-info-m-a3.txt").read_text())
    assert dies is not None
    assert [(row.npu, row.chip, row.logic) for row in dies[-2:]] == [(7, 0, 14), (7, 1, 15)]
    assert parse_count((SAMPLES / "npu-smi-info-l.txt").read_text()) == 8
    assert parse_count("Total Count : 8\nChip Count : 1\n") is None
    rows = parse_process_memory((SAMPLES / "npu-smi-info-t-proc-mem.txt").read_text())
    assert rows is not None
    assert [(row.npu, row.chip, row.pid, row.name, row.memory_mb) for row in rows] == [
        (0, 0, 907864, "python3.11", 55640),
        (0, 0, 907990, "", 134),
    ]


def test_failures_are_explained() -> None:
    texts = (SAMPLES / "npu-smi-errors.txt").read_text().split("#")[1:]
    explained = [explain_failure(text) for text in texts]
    assert [found[0].split(":")[0].split(" (")[0] for found in explained if found] == [
        "npu-smi is not there",
        "npu-smi does not find the driver's library libdrvdsmi_host.so",
        "npu-smi does not reach the driver",
    ]
    assert explain_failure("something else") is None


def test_nvidia_smi() -> None:
    text = "0, GPU-5f, 143771, 5, 550.54.15, NVIDIA H200\n1, GPU-6f, 143771, [N/A], 550.54.15, NVIDIA H200, odd\n"
    devices = nvidia_smi.parse_devices(text)
    assert devices is not None
    assert [(gpu.index, gpu.used_mib, gpu.name) for gpu in devices] == [
        (0, 5, "NVIDIA H200"),
        (1, None, "NVIDIA H200, odd"),
    ]
    assert nvidia_smi.parse_devices("No devices were found\n") is None
    assert nvidia_smi.parse_devices("") is None
    (process,) = nvidia_smi.parse_processes("GPU-5f, 4242, 80000, python, -u\nnothing\n")
    assert (process.uuid, process.pid, process.memory_mib, process.name) == ("GPU-5f", 4242, 80000, "python, -u")
