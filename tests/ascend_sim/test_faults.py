"""Faults of the device in the middle of a training: what dsgen's runtime leaves behind for the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsgen.launch.outcome import find_failure
from tests.ascend_sim.conftest import NpuRanks, rendered
from tests.runtime.conftest import Result

pytestmark = pytest.mark.train

COLLECTIVE = 40
"""One in the middle of the training."""

TIME_OUT = "ACL stream synchronize failed, error code:507048"
"""What torch_npu makes of it where a tensor's value is read; CANN's text (EI0002) is only in the log then."""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    rendered(tmp_path, "tiny-npu.yaml", length={"steps": 20}, schedule={"warmup_num_steps": 2})
    return tmp_path / "out" / "train.py"


def steps(result: Result) -> int:
    return len(result.rows)


def test_rank_that_dies(ranks: NpuRanks, script: Path, tmp_path: Path) -> None:
    """The survivor waits as long as HCCL does, and then has torch_npu's error."""
    result = ranks.run_script(
        script,
        tmp_path / "run",
        env={"HCCL_EXEC_TIMEOUT": "3", "DSGEN_SIMULATED_NPU_FAULTS": f"die:rank=1,collective={COLLECTIVE}"},
    )
    assert result.codes == [1, -9]
    assert 0 < steps(result) < 20
    assert TIME_OUT in result.errors[0]["message"]
    assert "has not received the Notify record from remote rank [1]" in result.log(0)
    told = find_failure(result.run_dir, 1)
    assert told.message.startswith("a collective waited longer than HCCL_EXEC_TIMEOUT for another rank")
    assert told.help.startswith("rank 1 left no message")


def test_rank_that_hangs(ranks: NpuRanks, script: Path, tmp_path: Path) -> None:
    """Only the rank that waits notices; the launcher then has to end the other."""
    report = tmp_path / "run" / "errors" / "rank-0.json"
    result = ranks.run_script(
        script,
        tmp_path / "run",
        env={"HCCL_EXEC_TIMEOUT": "3", "DSGEN_SIMULATED_NPU_FAULTS": f"hang:rank=1,collective={COLLECTIVE}"},
        kill={"rank": 1, "when": str(report), "lines": 1},
    )
    assert result.codes == [1, -9]
    assert TIME_OUT in result.errors[0]["message"]
    assert 1 not in result.errors


def test_device_too_small(ranks: NpuRanks, script: Path, tmp_path: Path) -> None:
    """Another process holds nearly all of device 1."""
    # Room for what the model needs, not for the optimizer's states.
    room = 45 << 20
    result = ranks.run_script(
        script,
        tmp_path / "run",
        env={
            "HCCL_BUFFSIZE": "1",
            "HCCL_CONNECT_TIMEOUT": "3",
            "HCCL_EXEC_TIMEOUT": "3",
            "DSGEN_SIMULATED_NPU_FAULTS": f"full:device=1,bytes={65452113920 - room}",
        },
    )
    assert result.codes == [1, 1]
    assert result.errors[1]["type"] == "OutOfMemoryError"
    assert "NPU out of memory. Tried to allocate" in result.errors[1]["message"]
    assert "507048" in result.errors[0]["message"]
    told = find_failure(result.run_dir, 1)
    # Rank 0 only waited; rank 1 is the one to look at.
    assert told.rank == 1
    assert told.message.startswith("NPU 1 has no room for")
    assert "other processes hold the rest" in told.message and "npu-smi info" in told.help


def test_device_error(ranks: NpuRanks, script: Path, tmp_path: Path) -> None:
    result = ranks.run_script(
        script,
        tmp_path / "run",
        env={
            "HCCL_EXEC_TIMEOUT": "3",
            "DSGEN_SIMULATED_NPU_FAULTS": "acl:rank=0,call=aclrtSynchronizeDeviceWithTimeout,number=2000,code=507015",
        },
    )
    assert result.codes[0] == 1
    assert "error code is 507015" in result.errors[0]["message"]
    told = find_failure(result.run_dir, 1)
    assert (told.rank, told.message.split(" (")[0]) == (0, "an operator failed on the NPU")
    assert "ASCEND_LAUNCH_BLOCKING" in told.help
