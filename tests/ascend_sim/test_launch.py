"""The rendered launch.sh, as a user starts it, with nothing of Ascend on the machine but the simulated CANN."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ascend_sim.conftest import Runs, plain_environment, rendered

pytestmark = pytest.mark.train


def test_launch_script(runs: Runs, toolkit: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """It sources the simulated set_env.sh as it would CANN's, and says what the result is worth."""
    rendered(tmp_path, "tiny-npu.yaml", length={"steps": 2})
    kept = {name: environment[name] for name in ("TORCH_EXTENSIONS_DIR", "DSGEN_CACHE_DIR")}
    done = subprocess.run(
        ["bash", str(tmp_path / "out" / "launch.sh")],
        env={
            **plain_environment(),
            **kept,
            "ASCEND_TOOLKIT_HOME": str(toolkit),
            "PYTHON": sys.executable,
            "DSGEN_RUN_DIR": str(tmp_path / "run"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "simulated NPU" in done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["status"], report["accelerator"], report["backend"]) == ("finished", "npu", "hccl")
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    # The rate is 0 in the first step, so that its length does not matter yet to the second.
    assert losses == runs.npu("stage 2").losses[:2]
