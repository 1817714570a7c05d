"""Installing what training needs into the environment that the repository's launch.sh made."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dsgen
from dsgen.findings import DsgenError

TORCH = "torch==2.13.0"
NEEDED_BYTES = 14 * 2**30
"""Disk space that the environment and pip's downloads take where torch is a CUDA build, with room to spare."""

LOCK = ".dsgen-bootstrap.lock"
_GIB = 2**30

Say = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """One call of pip."""

    what: str
    packages: tuple[str, ...]
    options: tuple[str, ...] = ()


def repository() -> Path:
    """The checkout that this dsgen runs from. Raises DsgenError when it does not run from one."""
    folder = Path(dsgen.__file__).resolve().parent.parent
    if not (folder / "setup.cfg").is_file() or not (folder / "constraints.txt").is_file():
        raise DsgenError(
            "only a checkout of the repository can install itself",
            help="pip install 'dsgen[train]', plus [npu] on Ascend",
        )
    return folder


def steps(kind: str, checkout: Path) -> list[Step]:
    """The calls of pip for a job of `kind`; torch comes first, because DeepSpeed's own set-up looks for it."""
    constraints = ("-c", str(checkout / "constraints.txt"))
    extras = "train,npu" if kind == "npu" else "train"
    return [
        Step(f"torch ({TORCH})", (TORCH,), constraints),
        Step("DeepSpeed, transformers and the rest", ("-e", f"{checkout}[{extras}]"), constraints),
    ]


def is_complete() -> bool:
    """Whether everything that training needs is there."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "deepspeed", "transformers"))


def bootstrap(kind: str, say: Say) -> None:
    """Install torch, DeepSpeed and the rest for a job of `kind` into this Python's environment.

    A second bootstrap waits for the first and then finds the work done; an interrupted one is done again, and pip
    keeps what it has. Raises DsgenError when there is no room on the disk or pip fails.
    """
    checkout = repository()
    with _alone(Path(sys.prefix) / LOCK, say):
        importlib.invalidate_caches()
        marker = Path(sys.prefix) / f".dsgen-{kind}-installed"
        if marker.exists() and is_complete():
            return
        _check_room(Path(sys.prefix), NEEDED_BYTES)
        plan = steps(kind, checkout)
        for number, step in enumerate(plan, 1):
            say(f"[{number}/{len(plan)}] installing {step.what} into {sys.prefix}")
            try:
                _pip(step)
            except KeyboardInterrupt:
                say(f"interrupted while installing {step.what}: start launch.sh again, it goes on where it was")
                raise
            if kind == "npu" and number == 1:
                _check_no_cuda()
        marker.touch()


def relaunch(arguments: Sequence[str]) -> None:
    """Replace this process by `dsgen launch` with `arguments`, in the environment that is complete now."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "dsgen", "launch", *arguments])


@contextmanager
def _alone(lock: Path, say: Say) -> Iterator[None]:
    with lock.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another launch.sh is installing into this environment: waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _check_room(folder: Path, need: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < need:
        raise DsgenError(
            f"torch, DeepSpeed and the rest take about {need / _GIB:.0f} GiB, and {folder} has {free / _GIB:.1f} free",
            help="make room, or set PYTHON to a Python that has DeepSpeed",
        )


def _check_no_cuda() -> None:
    """torch_npu ends with an error where torch is a CUDA build: say so before it is installed."""
    program = "import torch; print(torch.version.cuda or '')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.stdout.strip():
        raise DsgenError(
            f"pip chose a build of torch for CUDA {done.stdout.strip()}, beside which torch_npu does not load",
            help="set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds, remove the environment, and start again",
        )


def _pip(step: Step) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", *step.options, *step.packages]
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        raise DsgenError(
            f"pip could not install {step.what} (its message is above)",
            help="check the network, a proxy (HTTPS_PROXY) or a mirror (PIP_INDEX_URL), and start launch.sh again: it "
            "goes on where it was",
        )
