"""Starts ranks of training jobs quickly: imports torch, DeepSpeed and transformers once, then forks.

Reads one JSON object a line, `{"script", "argv", "env", "world_size", "output", "timeout", "kill"}`, runs the script in
`world_size` forked processes, and answers with one line, `{"codes": [...], "seconds": ...}`. What the ranks print goes
to `output/rank-N.txt`. `kill` is `{"rank", "when"}`: send SIGKILL to that rank once the file `when` has as many lines
as `lines` says.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def become_rank(job: dict[str, Any], rank: int, port: int) -> None:
    """Turn this forked process into one rank; never returns."""
    code = 0
    try:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(job["world_size"]),
            LOCAL_WORLD_SIZE=str(job["world_size"]),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        for name, value in job["env"].items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        output = Path(job["output"])
        output.mkdir(parents=True, exist_ok=True)
        file = os.open(output / f"rank-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.argv = [job["script"], *job["argv"]]
        runpy.run_path(job["script"], run_name="__main__")
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
        if isinstance(leave.code, str):
            print(leave.code, file=sys.stderr)
    except BaseException:
        # As Python itself does at the end of a script.
        sys.excepthook(*sys.exc_info())
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking an interpreter with all these modules apart costs more than the job; the launchers' tests have whole exits.
    os._exit(code)


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def run(job: dict[str, Any]) -> dict[str, Any]:
    """The answer to a job."""
    begun = time.monotonic()
    port = free_port()
    pids: list[int] = []
    for rank in range(job["world_size"]):
        pid = os.fork()
        if pid == 0:
            become_rank(job, rank, port)
        pids.append(pid)
    codes: dict[int, int] = {}
    kill = job.get("kill")
    while len(codes) < len(pids):
        for rank, pid in enumerate(pids):
            if rank not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[rank] = os.waitstatus_to_exitcode(status)
        if kill and kill["rank"] not in codes and lines_in(Path(kill["when"])) >= kill["lines"]:
            os.kill(pids[kill["rank"]], kill.get("signal", signal.SIGKILL))
            kill = None
        if time.monotonic() - begun > job["timeout"]:
            for rank, pid in enumerate(pids):
                if rank not in codes:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return {"codes": [codes[rank] for rank in range(len(pids))], "seconds": round(time.monotonic() - begun, 2)}


def main() -> None:
    import deepspeed
    import deepspeed.ops.op_builder.cpu as builders
    import deepspeed.runtime.zero.muon.original_muon
    import peft  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    # What a build prints must not get among the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    builders.CPUAdamBuilder().load(verbose=False)

    print(json.dumps({"ready": deepspeed.__version__}), file=answers)
    # What is shared with the forked ranks stays shared when they collect garbage.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers)


if __name__ == "__main__":
    main()
