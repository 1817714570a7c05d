"""The process group: brought up after every check, taken down at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsgen.runtime.arguments import Ranks
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Settings


def check_world_size(settings: Settings, ranks: Ranks) -> None:
    """Raise RuntimeProblem when the job has another number of ranks than the recipe."""
    if ranks.world_size != settings.world_size:
        raise RuntimeProblem(
            f"the recipe is for {settings.world_size} ranks, but the launcher started {ranks.world_size}",
            "start as many ranks as the recipe says, or render the recipe for other hardware",
        )


def connect(settings: Settings, ranks: Ranks) -> None:
    """Bring up the process group with the recipe's backend, by the environment alone.

    Raises RuntimeProblem when the group does not come up.
    """
    import deepspeed

    if settings.accelerator == "cpu":
        _avoid_shared_memory()
    try:
        deepspeed.init_distributed(dist_backend=settings.backend, auto_mpi_discovery=False, verbose=False)
    except Exception as error:
        raise RuntimeProblem(
            f"rank {ranks.rank} could not join the process group at {ranks.address}:{ranks.port}: {error}",
            "another job may use this port, another rank may have died before it came here (see the other logs), "
            "or the hosts do not reach each other",
        ) from error
    deepspeed.comm.barrier()


def _avoid_shared_memory() -> None:
    """Leave collectives on CPU to gloo alone.

    DeepSpeed's own shared-memory op (ops/csrc/cpu/comm/shm.cpp) takes a minute to compile, leaves a file of 69 MB per
    rank in /dev/shm, and spins for ever in its set-up when such a file is cleared away too early.
    """
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def disconnect() -> None:
    """Take the process group down. Without this one finished run in fourteen aborts at exit (seen with gloo)."""
    import deepspeed.comm
    import torch.distributed

    if torch.distributed.is_initialized():
        deepspeed.comm.destroy_process_group()


def gather(values: Sequence[Any], device: Any) -> list[list[float]]:
    """The `values` of every rank, by rank. A collective: all ranks call it with equally many values, as float32.

    Values may be numbers or scalar tensors on `device`; those are read only once, all together, at the end.
    """
    import torch
    import torch.distributed

    numbers = [0.0 if torch.is_tensor(value) else float(value) for value in values]
    own = torch.tensor([numbers], dtype=torch.float32, device=device)
    for place, value in enumerate(values):
        if torch.is_tensor(value):
            own[0, place] = value
    every = torch.empty((torch.distributed.get_world_size(), len(values)), dtype=torch.float32, device=device)
    torch.distributed.all_gather_into_tensor(every, own)
    rows: list[list[float]] = every.tolist()
    return rows
