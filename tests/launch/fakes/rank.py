"""A rank that trains nothing. FAKE_DO says what it does, one word for each rank or one for all."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

parser = argparse.ArgumentParser()
parser.add_argument("--run-dir", type=Path, required=True)
parser.add_argument("--base-dir", required=True)
parser.add_argument("--resume")
given = parser.parse_args()
rank = int(os.environ["RANK"])
words = os.environ.get("FAKE_DO", "finish").split(",")
word = words[rank % len(words)]
stopped = False


def on_term(number: int, frame: FrameType | None) -> None:
    global stopped
    stopped = True


def note(name: str) -> None:
    (given.run_dir / f"{name}-{rank}").write_text(str(os.getpid()))


def report(status: str) -> None:
    if rank == 0:
        steps = {"status": status, "steps": 3, "planned_steps": 9, "first_loss": 5.0, "last_loss": 2.0}
        (given.run_dir / "report.json").write_text(json.dumps(steps, indent=2))


def emit(name: str, row: dict[str, object]) -> None:
    if rank == 0:
        with (given.run_dir / name).open("a") as stream:
            stream.write(json.dumps(row) + "\n")


if word == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif word != "import":
    signal.signal(signal.SIGTERM, on_term)
if word == "build":
    operator = Path(os.environ["TORCH_EXTENSIONS_DIR"]) / "fused_adam"
    operator.mkdir(parents=True, exist_ok=True)
    lock = os.open(operator / "lock", os.O_CREAT | os.O_EXCL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
elif word == "loader":
    helper = "import signal, sys, time; signal.signal(15, lambda *_: open(sys.argv[1], 'w')); time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", helper, str(given.run_dir / "loader-termed")])

emit("events.jsonl", {"event": "phase", "phase": "train"})
emit("events.jsonl", {"event": "plan", "steps": 9})
print(f"rank {rank} is up", flush=True)
note("up")
if word == "finish":
    for step in range(1, 4):
        emit("metrics.jsonl", {"step": step, "loss": 5.0 - step, "lr": 0.1, "tokens_per_second": 100.0})
    report("finished")
elif word.startswith("exit"):
    time.sleep(0.3)
    errors = given.run_dir / "errors"
    errors.mkdir(exist_ok=True)
    message = {"rank": rank, "time": time.time(), "type": "ValueError", "message": f"rank {rank} is unhappy"}
    (errors / f"rank-{rank}.json").write_text(json.dumps({**message, "traceback": ""}))
    sys.exit(int(word.removeprefix("exit")))
elif word == "die":
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
elif word == "silent":
    sys.exit(0)
else:
    until = time.monotonic() + 60
    while not stopped and time.monotonic() < until:
        time.sleep(0.02)
    if stopped:
        time.sleep(float(os.environ.get("FAKE_SAVE_SECONDS", "0")))
        note("saved")
        report("stopped")
