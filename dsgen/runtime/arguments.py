"""What a rank is told from outside: the command line of `train.py` and the environment of its launcher."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsgen.runtime.problems import RuntimeProblem

RUN_DIR_VARIABLE = "DSGEN_RUN_DIR"
BASE_DIR_VARIABLE = "DSGEN_BASE_DIR"
FOLDER_VARIABLE = "DSGEN_FOLDER"
"""Folder of the rendered files, for the user's own script."""
RESUME_VARIABLE = "DSGEN_RESUME"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The command line of `train.py`, with paths made absolute."""

    run_dir: Path
    """Where the run writes everything."""
    redirect: bool
    """Whether the ranks' output goes to `run_dir/logs`: true when the run folder was named by anyone."""
    base_dir: Path
    """Where relative data paths count from."""
    resume: str | None
    """`auto`, a path, or None for a fresh start."""


def parse_arguments(folder: Path, argv: Sequence[str], environ: MutableMapping[str, str]) -> Arguments:
    """Read the command line; `folder` is where `train.py` stands.

    `--local_rank`, which the deepspeed launcher passes, fills LOCAL_RANK where the launcher did not set it.
    A wrong command line raises SystemExit(2) with a usage line, as argparse does.
    """
    parser = argparse.ArgumentParser(prog="train.py", description="Train as the recipe says.")
    parser.add_argument("--run-dir", type=Path, help=f"folder of this run (default: ${RUN_DIR_VARIABLE} or {folder})")
    parser.add_argument("--base-dir", type=Path, help=f"where relative data paths count from (${BASE_DIR_VARIABLE})")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        metavar="auto|PATH",
        help="auto: go on from the newest complete checkpoint of the run folder, if there is one; "
        "PATH: from that checkpoint or run folder",
    )
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(list(argv))
    if given.local_rank is not None:
        environ.setdefault("LOCAL_RANK", str(given.local_rank))
    named = given.run_dir or (Path(environ[RUN_DIR_VARIABLE]) if environ.get(RUN_DIR_VARIABLE) else None)
    base = given.base_dir or (Path(environ[BASE_DIR_VARIABLE]) if environ.get(BASE_DIR_VARIABLE) else None)
    return Arguments(
        run_dir=(named or folder).absolute(),
        redirect=named is not None,
        base_dir=(base or folder).absolute(),
        resume=given.resume,
    )


def environment_arguments(folder: Path, environ: Mapping[str, str]) -> Arguments:
    """The same from the environment alone: the command line of the user's own script is its own."""
    named, base = environ.get(RUN_DIR_VARIABLE), environ.get(BASE_DIR_VARIABLE)
    return Arguments(
        run_dir=Path(named or folder).absolute(),
        redirect=bool(named),
        base_dir=Path(base or folder).absolute(),
        resume=environ.get(RESUME_VARIABLE) or None,
    )


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Which of how many processes this one is."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    """Ranks on this node; the world size where no launcher says."""
    address: str
    port: int

    @property
    def node(self) -> int:
        """Number of this node, from 0, when ranks are dealt node by node."""
        return self.rank // self.local_world_size


_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def read_ranks(environ: Mapping[str, str]) -> Ranks:
    """Ranks as torchrun and deepspeed announce them in the environment.

    Raises RuntimeProblem when a variable is missing (DeepSpeed would go looking for MPI) or is no number.
    """
    missing = [name for name in _NEEDED if not environ.get(name)]
    if missing:
        raise RuntimeProblem(
            f"this process is not part of a job: {', '.join(missing)} not set in the environment",
            "start it with `bash launch.sh`, `deepspeed train.py` or `torchrun --nproc-per-node N train.py`",
        )
    rank = _number(environ, "RANK")
    world_size = _number(environ, "WORLD_SIZE")
    local_rank = _number(environ, "LOCAL_RANK")
    local_name = next((name for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE") if environ.get(name)), None)
    local_world_size = _number(environ, local_name) if local_name else world_size
    if not 0 <= rank < world_size or not 0 <= local_rank < local_world_size:
        raise RuntimeProblem(
            f"the launcher's numbers contradict each other: RANK={rank} of WORLD_SIZE={world_size}, "
            f"LOCAL_RANK={local_rank} of {local_world_size} on this node"
        )
    return Ranks(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        address=environ["MASTER_ADDR"],
        port=_number(environ, "MASTER_PORT"),
    )


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if text.isdigit():
        return int(text)
    help = ""
    if name in ("LOCAL_RANK", "RANK") and "," in text:
        help = (
            "a cluster operator wrote node-level values: the launch script must translate them "
            "(node rank, processes per node) before it starts torchrun or deepspeed"
        )
    raise RuntimeProblem(f"{name}={text!r} in the environment is not a number", help)


def hand_run_name(environ: Mapping[str, str] = os.environ) -> int | None:
    """RANK as far as it can be read, for messages written before the ranks are known."""
    text = environ.get("RANK", "")
    return int(text) if text.isdigit() else None
