"""Says what the real DeepSpeed makes of a config: imports it once, then forks two ranks that train two steps with it.

Reads one JSON object a line, `{"config": PATH, "folder": PATH, "client_optimizer": NAME or null, "timeout": SECONDS}`,
and answers with one line, the report of rank 0, or of rank 1 where only that one failed:

    {"state": "refused", "where": "DeepSpeedConfig" | "initialize" | "train", "error": "TypeError: ..."}
    {"state": "trained", "parsed": {...}, "facts": {...}}
    {"state": "died", "error": "..."}    the rank was killed, or ran out of time

`parsed` is the whole parsed config as plain data, `facts` what the engine works with and what the training gave. What
the ranks print goes to `folder/rank-N.txt`. Every CPU is said to have fp16: all compute it, and DeepSpeed refuses it on
most.
"""

from __future__ import annotations

import enum
import gc
import json
import math
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

RANKS = 2
STEPS = 2
GRACE_S = 5.0
"""How long a rank may go on when the other one has failed: it often waits for that one in a collective."""

_OWN_PARTS = ("_param_dict", "mesh_device")
"""Attributes of a parsed config that DeepSpeed did not read from a key."""
_RUN_TO_RUN = ("fork", "pid", "port", "time", "timer")
"""Parts of names of attributes whose values differ between two runs of one config."""


def plain(value: Any, depth: int = 0) -> Any:
    """A value as comparable JSON: every attribute of every parsed section."""
    if isinstance(value, enum.Enum):
        return plain(value.value, depth)
    if isinstance(value, dict):
        return {str(key): plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner, depth + 1) for inner in value]
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if depth < 8 and hasattr(value, "__dict__") and not isinstance(value, type):
        return {key: plain(inner, depth + 1) for key, inner in vars(value).items() if key not in _OWN_PARTS}
    return str(value)


def settings_of(thing: Any) -> dict[str, Any]:
    """The plain attributes of an object: the settings that it was made with."""
    return {
        name: value
        for name, value in vars(thing).items()
        if (isinstance(value, (bool, int, float, str)) or value is None)
        and not any(part in name.lower() for part in _RUN_TO_RUN)
    }


def train(job: dict[str, Any]) -> dict[str, Any]:
    """One rank's report."""
    import deepspeed
    import deepspeed.comm
    import torch
    from deepspeed.runtime.config import DeepSpeedConfig

    where = "DeepSpeedConfig"
    try:
        parsed = plain(DeepSpeedConfig(job["config"]))
        where = "initialize"
        torch.manual_seed(7)
        model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
        optimizer = None
        if job["client_optimizer"]:
            optimizer = getattr(torch.optim, job["client_optimizer"])(model.parameters(), lr=1e-3)
        engine, _, _, scheduler = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), optimizer=optimizer, config=job["config"]
        )
        if "activation_checkpointing" in engine._config._param_dict:
            deepspeed.checkpointing.configure(None, deepspeed_config=job["config"])
        where = "train"
        dtype = next(engine.module.parameters()).dtype
        losses, rates = [], []
        rows = int(engine.train_micro_batch_size_per_gpu())
        draw = torch.Generator().manual_seed(11 + engine.global_rank)
        for _ in range(STEPS):
            for _ in range(int(engine.gradient_accumulation_steps())):
                batch = torch.randn(rows, 16, generator=draw).to(dtype)
                loss = (engine(batch) - 1).float().pow(2).mean()
                engine.backward(loss)
                engine.step()
                losses.append(loss.item())
            rates.append([float(rate) for rate in engine.get_lr()])
        with torch.no_grad():
            losses.append(engine(torch.ones(rows, 16, dtype=dtype)).float().sum().item())
        basic = engine.basic_optimizer
        group = basic.param_groups[0]
        return {
            "state": "trained",
            "parsed": parsed,
            "facts": {
                "stage": engine.zero_optimization_stage(),
                "dtype": str(dtype),
                "communication_dtype": str(engine.communication_data_type),
                "accumulation_dtype": str(engine.get_data_types()[1]),
                "optimizer": type(basic).__name__,
                "wrapper": type(engine.optimizer).__name__,
                "scheduler": type(scheduler).__name__ if scheduler is not None else None,
                "micro_batch": engine.train_micro_batch_size_per_gpu(),
                "accumulation": engine.gradient_accumulation_steps(),
                "global_batch": engine.train_batch_size(),
                "clipping": engine.gradient_clipping(),
                "steps": engine.global_steps,
                "skipped_steps": engine.skipped_steps,
                "losses": losses,
                "finite": all(math.isfinite(loss) for loss in losses),
                "rates": rates,
                "monitor": engine.monitor.enabled if engine.monitor is not None else False,
                "group": plain({key: value for key, value in group.items() if key != "params"}),
                "engine_settings": settings_of(engine),
                "wrapper_settings": settings_of(engine.optimizer),
                "scheduler_settings": settings_of(scheduler) if scheduler is not None else {},
            },
        }
    except Exception as error:
        return {"state": "refused", "where": where, "error": f"{type(error).__name__}: {error}"}


def become_rank(job: dict[str, Any], rank: int, port: int) -> None:
    """Turn this forked process into one rank; never returns."""
    folder = Path(job["folder"])
    output = os.open(folder / f"rank-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(RANKS),
        LOCAL_WORLD_SIZE=str(RANKS),
        # As DeepSpeed's launcher does.
        LOCAL_SIZE=str(RANKS),
        CROSS_RANK="0",
        CROSS_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    import deepspeed
    import deepspeed.comm

    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    report = train(job)
    unfinished = folder / f"rank-{rank}.unfinished"
    unfinished.write_text(json.dumps(report))
    unfinished.rename(folder / f"rank-{rank}.json")
    if report["state"] == "trained":
        # A rank that failed has no business in a collective: the other one may be anywhere.
        deepspeed.comm.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def refuse_to_build(builder: Any, verbose: bool = True) -> None:
    raise RuntimeError(f"{builder.name} would have to be built, and no case is to need that")


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """What both ranks made of a job."""
    folder = Path(job["folder"])
    port = free_port()
    pids = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            try:
                become_rank(job, rank, port)
            finally:
                os._exit(1)
        pids.append(pid)
    ends = time.monotonic() + job["timeout"]
    codes: dict[int, int] = {}
    while len(codes) < RANKS:
        for rank, pid in enumerate(pids):
            if rank not in codes and os.waitpid(pid, os.WNOHANG)[0]:
                codes[rank] = rank
                if report_of(folder, rank)["state"] != "trained":
                    ends = min(ends, time.monotonic() + GRACE_S)
        if time.monotonic() > ends:
            for rank, pid in enumerate(pids):
                if rank not in codes:
                    os.kill(pid, signal.SIGKILL)
            ends = float("inf")
        time.sleep(0.005)
    reports = [report_of(folder, rank) for rank in range(RANKS)]
    # The rank that says why comes before one that was ended because of it.
    return min(reports, key=lambda report: ("refused", "died", "trained").index(report["state"]))


def report_of(folder: Path, rank: int) -> dict[str, Any]:
    file = folder / f"rank-{rank}.json"
    if not file.exists():
        return {"state": "died", "error": (folder / f"rank-{rank}.txt").read_text(errors="replace")[-2000:]}
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def main() -> None:
    # DeepSpeed writes its log to standard output; the answers need a channel of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # Muon compiles its update, which takes longer than all its steps here.
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    import cpuinfo
    import deepspeed
    import deepspeed.ops
    import deepspeed.ops.op_builder
    import deepspeed.runtime.superoffload.superoffload_stage3
    import deepspeed.runtime.zero.muon.muon_optimizer
    import deepspeed.runtime.zero.stage3
    import torch
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops.op_builder.builder import OpBuilder

    torch.set_num_threads(1)
    # Its own collectives in shared memory leave 69 MB a rank in /dev/shm.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.ops.op_builder.CPUAdamBuilder().load(verbose=False)
    # DeepSpeedCPUAdam asks anew for every optimizer, and a second passes until it is told.
    processor = cpuinfo.get_cpu_info()
    cpuinfo.get_cpu_info = lambda: processor
    # A rank that is ended while it builds an operator leaves a lock that stops every later build.
    OpBuilder.jit_load = refuse_to_build
    get_accelerator().is_fp16_supported = lambda: True
    print(json.dumps({"ready": deepspeed.__version__}), file=answers)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers)


if __name__ == "__main__":
    main()
