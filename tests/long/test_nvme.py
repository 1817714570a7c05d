"""Optimizer states and parameters on a disk, through DeepSpeed's async_io, really written and read.

Needs libaio with its header (Debian: libaio-dev); the first run builds async_io and pin_memory, some minutes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.long.launched import RECIPE, STEPS, Job, write_recipe

IS_COMPATIBLE = (
    "import sys; from deepspeed.ops.op_builder import AsyncIOBuilder; "
    "sys.exit(not AsyncIOBuilder().is_compatible(verbose=False))"
)
KILLED_AFTER = 10
CASES: dict[str, tuple[tuple[str, ...], dict[str, Any], bool]] = {
    # what is on the disk, more settings of ZeRO, PyTorch's own AdamW instead of DeepSpeed's CPU one
    "optimizer": (("optimizer",), {}, False),
    "optimizer-torch": (("optimizer",), {}, True),
    "both": (("optimizer", "parameters"), {}, False),
    # The second part of each rank, less than 1 MiB, gets no swap file.
    "small-part": (("optimizer",), {"sub_group_size": 600_000}, False),
}
WIDE = {**RECIPE["model"], "hidden_size": 512, "intermediate_size": 2304}
"""A rank's half of a matrix of the MLP has more than 1 MiB in bf16; smaller parameters get no swap file."""


@pytest.fixture(scope="module", autouse=True)
def async_io(environment: dict[str, str]) -> None:
    if subprocess.run([sys.executable, "-c", IS_COMPATIBLE], env=environment, capture_output=True).returncode != 0:
        pytest.skip("DeepSpeed's async_io cannot be built here: install libaio-dev")


@pytest.mark.parametrize("case", CASES)
def test_nvme(environment: dict[str, str], tmp_path: Path, case: str) -> None:
    """The losses of host-memory offload, also when a rank is killed and the run goes on from its checkpoint."""
    parts, more, torch_adam = CASES[case]
    fast = tmp_path / "fast"
    fast.mkdir()
    optimizer = {"type": "AdamW", "lr": 4e-3, "weight_decay": 0.01, "torch_adam": torch_adam}
    runs: dict[str, Job] = {}
    for device in ("cpu", "nvme"):
        place = {"device": device, **({"path": str(fast)} if device == "nvme" else {})}
        offload: dict[str, Any] = {part: dict(place) for part in parts}
        changes: dict[str, Any] = {}
        if "parameters" in parts:
            changes["model"] = WIDE
            if device == "nvme":
                # The default, 100 million elements for each of 5 buffers, is 1 GB on each rank.
                offload["parameters"]["buffer_size"] = 2_000_000
        zero = {"stage": 3, "offload": offload, **more}
        recipe = write_recipe(tmp_path / f"{device}.yaml", zero=zero, optimizer=optimizer, **changes)
        runs[device] = Job(recipe, tmp_path / device, environment).run()
    files = sorted(path.relative_to(fast).as_posix() for path in fast.rglob("*.swp"))
    assert {path.split("/")[1] for path in files} == {"optimizer", *(["bfloat16params"] if len(parts) == 2 else [])}
    expected = runs["cpu"].rows()
    assert len(expected) == STEPS
    assert runs["nvme"].rows() == expected

    killed = Job(tmp_path / "nvme.yaml", tmp_path / "killed", environment)
    killed.start()
    assert killed.wait_for(lambda: killed.lines() >= KILLED_AFTER)
    os.kill(killed.pids()[1], signal.SIGKILL)
    assert killed.wait() != 0
    killed.run()
    assert killed.rows() == expected
    megabytes = sum((fast / file).stat().st_size for file in files) / 1e6
    print(
        f"  {case}: {len(files)} swap files, {megabytes:.1f} MB; equal to offload to cpu, also after SIGKILL and resume"
    )
