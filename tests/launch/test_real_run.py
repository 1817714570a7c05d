"""Two real ranks of DeepSpeed on CPU, started by `dsgen launch`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.conftest import REPOSITORY, alive, wait_for

pytestmark = pytest.mark.train

TINY = REPOSITORY / "recipes" / "tiny-cpu.yaml"
# The first run on a machine builds operators.
SECONDS = 900


class Runs:
    """Runs of a small recipe in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        recipe = folder / "small.yaml"
        recipe.write_text(
            f"extends: {TINY}\nname: small\nprecision: fp32\nlength: {{steps: 400}}\n"
            "schedule: {warmup_num_steps: 1}\nbatch: {sequence_length: 32, micro: 1, accumulation: 1}\n"
        )
        self.environ = {key: value for key, value in os.environ.items() if key != "DS_ACCELERATOR"}
        self.environ["PYTHONPATH"] = str(REPOSITORY)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "dsgen", "launch", *arguments],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def steps(self, run: str) -> int:
        path = self.folder / "runs" / "small" / run / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def ranks(self, run: str) -> list[int]:
        """Processes that run train.py of a run."""
        script = f"{self.folder}/runs/small/{run}/train.py".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().split(b"\0")
                environ = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if script in command and any(line.startswith(b"LOCAL_RANK=") for line in environ):
                found.append(int(process.name))
        return found


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    runs = Runs(tmp_path)
    yield runs
    for process in runs.started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
        process.communicate()


def test_stop_go_on_finish(runs: Runs) -> None:
    process = runs.start("small.yaml")
    wait_for(lambda: runs.steps("001") >= 3 or process.poll() is not None, SECONDS)
    ranks = runs.ranks("001")
    assert len(ranks) == 2, process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "stopped after step" in out
    assert not any(alive(pid) for pid in ranks)
    folder = runs.folder / "runs" / "small" / "001"
    report = json.loads((folder / "report.json").read_text())
    assert report["status"] == "stopped"

    # A new run from the old one, of a recipe that now trains a few steps only.
    steps = report["steps"] + 2
    process = runs.start("small.yaml", "--resume", "--set", f"length.steps={steps}")
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err
    assert f"finished: {steps} steps" in out
    again = json.loads((folder.with_name("002") / "report.json").read_text())
    assert again["resumed_after"] == report["steps"]

    # The CPU counts no tensors, so only the node's resident memory stands beside the estimate.
    assert again["memory"]["device"] is None
    (row,) = again["memory"]["compared"]
    estimate = json.loads((folder.with_name("002") / "estimate.json").read_text())
    assert row == {
        "what": "node",
        "estimated_bytes": estimate["host_peak_bytes"],
        "measured_bytes": again["host_peak_bytes"],
    }
    shown = [line.split() for line in out.splitlines() if line.startswith("  node ")]
    assert len(shown) == 2 and shown[1][0] == "node" and shown[1][2] == shown[1][4] == "GiB"


def test_a_killed_rank_leaves_nothing_behind(runs: Runs) -> None:
    process = runs.start("small.yaml")
    wait_for(lambda: runs.steps("001") >= 1 or process.poll() is not None, SECONDS)
    ranks = runs.ranks("001")
    assert len(ranks) == 2, process.communicate()
    os.kill(ranks[0], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    # The launcher may notice the other rank first, which has lost its peer.
    assert "killed" in err
    assert "host's memory" in err
    assert "Traceback" not in err
    assert not any(alive(pid) for pid in ranks)
    log = (runs.folder / "runs" / "small" / "001" / "logs" / "launcher.log").read_text()
    (port,) = set(re.findall(r"--master_port=(\d+)", log))
    # DeepSpeed's shared-memory op, which leaves 69 MB a rank there, is not used
    assert not list(Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"))
