"""The launchers that people use: deepspeed and torchrun, as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runtime.conftest import StageRuns, buffers, ds_config, settings, write_job
from tests.runtime.rank_server import free_port

pytestmark = pytest.mark.train

LAUNCHERS = {
    "deepspeed": ["-m", "deepspeed.launcher.runner", "--num_gpus", "2", "--master_port"],
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"],
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launcher(stage_runs: StageRuns, environment: dict[str, str], tmp_path: Path, launcher: str) -> None:
    """The same losses as ranks started in any other way; a quiet console; nothing left in shared memory."""
    job = settings(model={"dtype": "bf16"}, steps=3)
    script = write_job(tmp_path, job, ds_config(job, 2))
    port = free_port()
    run_dir = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, *LAUNCHERS[launcher], str(port), str(script)],
        env={**environment, "DSGEN_RUN_DIR": str(run_dir), "DSGEN_CONSOLE": "quiet"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert "loss" not in done.stdout
    losses = [json.loads(line)["loss"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert losses == stage_runs.get("bf16", "2").losses[:3]
    assert json.loads((run_dir / "report.json").read_text())["status"] == "finished"
    assert not [path for path in buffers() if f"_{port}_" in path.name]


def test_killed_under_deepspeed(environment: dict[str, str], tmp_path: Path) -> None:
    """SIGKILL of a rank: the launcher ends with an error, and the shared memory of the job is not left behind."""
    job = settings(steps=10000)
    script = write_job(tmp_path, job, ds_config(job, 1))
    port = free_port()
    metrics = tmp_path / "run" / "metrics.jsonl"
    with subprocess.Popen(
        [sys.executable, *LAUNCHERS["deepspeed"], str(port), str(script), "--run-dir", str(tmp_path / "run")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as launched:
        try:
            deadline = time.monotonic() + 120
            while not (metrics.exists() and metrics.stat().st_size) and launched.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            log = (tmp_path / "run" / "logs" / "rank-1.log").read_text()
            os.kill(int(log.split("process ")[1].split()[0]), signal.SIGKILL)
            assert launched.wait(timeout=60) != 0
        finally:
            if launched.poll() is None:
                os.killpg(launched.pid, signal.SIGKILL)
    assert json.loads((tmp_path / "run" / "errors" / "rank-0.json").read_text())["rank"] == 0
    assert not [path for path in buffers() if f"_{port}_" in path.name]
