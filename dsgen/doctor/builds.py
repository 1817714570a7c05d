"""Operator builds: DeepSpeed compiles C++ the first time it runs on a machine, for minutes, and says nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dsgen.doctor.check import Check, Subject, ok, skipped, warning
from dsgen.recipe.plan import Plan

LATELY_SECONDS = 300.0
"""A builder that is out of sight (another container or node) has written something within this time."""

_CPU_OPTIMIZERS = {"adam": "cpu_adam", "adamw": "cpu_adam", "adagrad": "cpu_adagrad", "lion": "cpu_lion"}
_BUILDERS = {
    "cpu_adam": "CPUAdamBuilder",
    "cpu_adagrad": "CPUAdagradBuilder",
    "cpu_lion": "CPULionBuilder",
    "fused_adam": "FusedAdamBuilder",
    "async_io": "AsyncIOBuilder",
    "deepspeed_shm_comm": "ShareMemCommBuilder",
}
_AIO_HEADERS = ("/usr/include/libaio.h", "/usr/local/include/libaio.h", "/usr/include/*/libaio.h")


def extensions_root(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder in which torch builds extensions."""
    said = environ.get("TORCH_EXTENSIONS_DIR")
    if said:
        return Path(said)
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".cache"
    return Path(cache) / "torch_extensions"


def operators_in_build(root: Path) -> list[str]:
    """Names of the operators that are being built under `root` now: torch holds a lock file for each."""
    return sorted({lock.parent.name for lock in build_locks(root)})


def build_locks(root: Path) -> list[Path]:
    """Lock files of operator builds under `root`."""
    return sorted(lock for pattern in ("*/lock", "*/*/lock") for lock in root.glob(pattern))


def stale_locks(locks: Sequence[Path], proc: Path = Path("/proc")) -> list[Path]:
    """The locks whose builder is dead: nobody holds them open, and nothing changed beside them lately.

    torch keeps a lock open while it builds (torch.utils.file_baton), and waits for one without an end.
    """
    files = {}
    for lock in locks:
        with contextlib.suppress(OSError):
            if time.time() - max(lock.stat().st_mtime, lock.parent.stat().st_mtime) > LATELY_SECONDS:
                files[(lock.stat().st_dev, lock.stat().st_ino)] = lock
    for link in proc.glob("[0-9]*/fd/*") if files else ():
        with contextlib.suppress(OSError):
            state = link.stat()
            files.pop((state.st_dev, state.st_ino), None)
    return sorted(files.values())


def operators_of(plan: Plan) -> tuple[str, ...]:
    """The operators that DeepSpeed 0.19.8 compiles for a job, as far as they follow from its plan.

    On NPUs the fused optimizers are no C++ of DeepSpeed's (op_builder/npu/fused_adam.py).
    """
    optimizer = plan.ds_config.get("optimizer") or {}
    kind = str(optimizer.get("type", "")).lower()
    of_torch = bool((optimizer.get("params") or {}).get("torch_adam"))
    wanted = []
    if plan.kind == "cpu" and plan.nodes == 1:
        wanted.append("deepspeed_shm_comm")
    if plan.offload_optimizer != "none" and plan.stage > 0 and not of_torch:
        wanted += [_CPU_OPTIMIZERS[kind]] if kind in _CPU_OPTIMIZERS else []
    elif plan.kind != "npu" and kind in ("adam", "adamw") and not of_torch:
        wanted.append("fused_adam")
    if "nvme" in (plan.offload_optimizer, plan.offload_parameters):
        wanted.append("async_io")
    return tuple(wanted)


def check_builds(subject: Subject) -> Iterator[Check]:
    """Locks of killed builds, the operators that the job needs, and the tools to build them."""
    root = extensions_root(_environment(subject))
    yield _locks(root)
    plan = subject.plan
    if plan is None:
        yield skipped("builds.operators", "which operators are needed depends on the recipe")
        yield _tools(subject, needed=False)
        return
    wanted = operators_of(plan)
    missing = [operator for operator in wanted if not is_built(operator, root)]
    if not wanted:
        yield ok("builds.operators", "the job compiles none")
    elif missing:
        first = _BUILDERS[missing[0]]
        yield ok(
            "builds.operators",
            f"{', '.join(missing)} will be compiled at the first start, about a minute each; before it: "
            f'DS_ACCELERATOR={plan.kind} python -c "from deepspeed.ops.op_builder import {first} as B; B().load()"',
        )
    else:
        yield ok("builds.operators", f"{', '.join(wanted)} built in {root}, or with DeepSpeed")
    yield _tools(subject, needed=bool(missing))
    yield _libaio(subject, wanted)


def is_built(operator: str, root: Path) -> bool:
    """Whether an operator's library stands under `root`, or was built when DeepSpeed was installed."""
    if any(root.glob(f"{operator}/{operator}.so")) or any(root.glob(f"*/{operator}/{operator}.so")):
        return True
    spec = importlib.util.find_spec("deepspeed")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return any(next(Path(folder).glob(f"ops/*/{operator}_op*.so"), None) for folder in folders)


def _environment(subject: Subject) -> dict[str, str]:
    names = ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "HOME")
    return {name: value for name in names if (value := subject.job_variable(name))}


def _locks(root: Path) -> Check:
    name, locks = "builds.locks", build_locks(root)
    stale = stale_locks(locks)
    if stale:
        return warning(
            name,
            f"{len(stale)} locks of killed operator builds ({stale[0]}): torch waits for them for ever, silently",
            "rm " + " ".join(str(lock) for lock in stale) + " (launch.sh does it by itself)",
        )
    if locks:
        return ok(name, f"{', '.join(operators_in_build(root))} being built just now in {root}")
    return ok(name, f"no lock in {root}")


def _tools(subject: Subject, *, needed: bool) -> Check:
    name = "builds.tools"
    lacking = missing_tools(ninja=not subject.installs)
    if not lacking:
        return ok(name, "C++ compiler, ninja and Python.h are there")
    found = f"not here: {', '.join(lacking)}; DeepSpeed compiles operators with them"
    remedy = "install " + ", ".join(lacking)
    return subject.wrong(name, found, remedy) if needed else warning(name, found, remedy)


def missing_tools(*, ninja: bool) -> list[str]:
    """What DeepSpeed lacks to compile operators, each with the command that installs it; `ninja`: ask for it too."""
    lacking = []
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        lacking.append("a C++ compiler (apt-get install g++)")
    beside = Path(sys.executable).with_name("ninja")
    if ninja and importlib.util.find_spec("ninja") is None and shutil.which("ninja") is None and not beside.exists():
        lacking.append("ninja (pip install ninja)")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        lacking.append("Python.h (apt-get install python3-dev)")
    return lacking


def _libaio(subject: Subject, wanted: Sequence[str]) -> Check:
    name = "builds.libaio"
    if "async_io" not in wanted:
        return skipped(name, "nothing is offloaded to a disk")
    for pattern in _AIO_HEADERS:
        if subject.probe.glob(pattern):
            return ok(name, f"libaio.h is there ({subject.probe.glob(pattern)[0]})")
    return subject.wrong(
        name,
        "libaio.h is not here, and offloading to a disk needs the operator async_io",
        "apt-get install libaio-dev, or yum install libaio-devel",
    )
