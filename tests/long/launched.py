"""Jobs of two CPU ranks, started from a recipe by the launcher that dsgen renders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEPS = 24
SAVE_EVERY = 4
SECONDS = 600
"""A job may build operators first."""

RECIPE: dict[str, Any] = {
    "schema": 1,
    "name": "small",
    "model": {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 688,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 257,
        "max_position_embeddings": 128,
    },
    "precision": "bf16",
    "batch": {"sequence_length": 32, "micro": 2, "accumulation": 2},
    "length": {"steps": STEPS},
    "zero": {"stage": 2},
    "optimizer": {"type": "AdamW", "lr": 4e-3, "weight_decay": 0.01},
    "schedule": {"type": "WarmupLR", "warmup_num_steps": 8},
    "checkpoint": {"every_steps": SAVE_EVERY, "keep": 2, "at_end": False},
    "hardware": {"device": "cpu", "per_node": 2, "nodes": 1, "cores": 2},
    "data": {"builtin": "python-topics"},
    "tokenizer": "bytes",
}


def write_recipe(path: Path, **changes: Any) -> Path:
    """A recipe; YAML reads JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**RECIPE, **changes}))
    return path


@dataclass
class Job:
    """A run folder and the way its launcher is started: by `dsgen launch`, or as `bash launch.sh`."""

    recipe: Path
    run_dir: Path
    environment: dict[str, str]
    by_hand: bool = False
    process: subprocess.Popen[str] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the launcher; a run that was started before goes on."""
        again = (self.run_dir / ".started").exists()
        dsgen = [sys.executable, "-m", "dsgen"]
        environment = {**self.environment, "PYTHON": sys.executable}
        if self.by_hand:
            folder = self.run_dir.with_name(f"{self.run_dir.name}-rendered")
            if not folder.exists():
                rendering = [*dsgen, "render", str(self.recipe), "-o", str(folder)]
                subprocess.run(rendering, env=environment, check=True, capture_output=True)
            command = ["bash", str(folder / "launch.sh"), *(["--resume", "auto"] if again else [])]
            environment["DSGEN_RUN_DIR"] = str(self.run_dir)
        elif again:
            command = [*dsgen, "launch", str(self.run_dir), "--resume"]
        else:
            command = [*dsgen, "launch", str(self.recipe), "--run-dir", str(self.run_dir)]
        with self.output.open("a") as output:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True
            )

    @property
    def output(self) -> Path:
        """What the person who started it saw."""
        return self.run_dir.with_name(f"{self.run_dir.name}-output.txt")

    def wait(self) -> int:
        assert self.process is not None
        try:
            return self.process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=60)
            raise

    def run(self) -> Job:
        """Start it and wait for a good end."""
        self.start()
        code = self.wait()
        assert code == 0, self.output.read_text()[-6000:]
        return self

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait_for(self, condition: Callable[[], object]) -> bool:
        """Whether it came true before the job ended."""
        until = time.monotonic() + SECONDS
        while not condition():
            if not self.running():
                return False
            assert time.monotonic() < until, self.output.read_text()[-6000:]
            time.sleep(0.001)
        return True

    def pids(self) -> dict[int, int]:
        """Rank to process."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().split(b"\0")
                environ = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            rank = [line[5:] for line in environ if line.startswith(b"RANK=")]
            if rank and os.fsencode(self.run_dir) in command:
                found[int(rank[0])] = int(process.name)
        return found

    def rows(self) -> list[dict[str, Any]]:
        """metrics.jsonl without what varies from run to run."""
        varying = ("time", "tokens_per_second", "host_peak_bytes")
        rows = [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]
        return [{name: value for name, value in row.items() if name not in varying} for row in rows]

    def lines(self) -> int:
        path = self.run_dir / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def saving_seconds(self) -> float:
        """The longest time that a checkpoint took."""
        events = [json.loads(line) for line in (self.run_dir / "events.jsonl").read_text().splitlines()]
        begun = [event["time"] for event in events if event.get("phase") == "checkpoint"]
        ended = [event["time"] for event in events if event["event"] == "checkpoint"]
        return max(end - begin for begin, end in zip(begun, ended, strict=True))
