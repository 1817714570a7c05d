"""Quick checks of this machine before a job is started: everything that is wrong, at once, in well under a second.

Packages are looked for, never imported.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dsgen.ascend_sim.environment import is_simulated, simulated_devices
from dsgen.doctor import shared_memory
from dsgen.doctor.builds import missing_tools
from dsgen.doctor.disk import LEAST_BYTES, checkpoint_bytes, existing_parent
from dsgen.doctor.mask import MASKS
from dsgen.doctor.versions import torch_build as _torch_build
from dsgen.documents.document import Document
from dsgen.documents.positions import undotted
from dsgen.findings import Finding, Severity
from dsgen.launch.source import Job
from dsgen.recipe.load import is_path

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where the checks look; tests give them other places."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")

    def devices(self, pattern: str) -> list[Path]:
        """Device nodes such as `davinci[0-9]*`."""
        return list((self.root / "dev").glob(pattern))


def check_machine(
    job: Job, document: Document, run_dir: Path, machine: Machine | None = None, *, packages: bool = True
) -> tuple[Finding, ...]:
    """Every reason why `job` cannot run here, and what may hurt it, at the places of `document` that decide it.

    `run_dir` is where the run folder is or will be. `packages=False` leaves out what is installed later.
    """
    machine = machine or Machine()
    problems: list[_Problem] = []
    if job.kind == "npu":
        problems += _ascend(job, machine, packages)
    elif job.kind == "cuda":
        problems += _cuda(job, machine, packages)
    elif job.nodes == 1:
        problems += _shared_memory()
    if packages:
        problems += _packages()
        problems += _foreign_npu(job, machine)
    if job.kind == "cpu":
        problems += _build_tools(packages)
    problems += _inputs(job)
    problems += _disk(job, run_dir)
    return tuple(
        Finding(
            code=problem.code,
            severity=problem.severity,
            message=problem.message,
            position=document.at(undotted(problem.path)),
            path=problem.path,
            help=problem.help,
        )
        for problem in problems
    )


@dataclass(frozen=True)
class _Problem:
    code: str
    message: str
    help: str
    severity: Severity = Severity.ERROR
    path: str = ""


def cann_scripts(machine: Machine) -> list[Path]:
    """The set_env.sh files that the rendered launch.sh would look at."""
    roots = [machine.root / "usr/local/Ascend"]
    if machine.environ.get("HOME"):
        roots.append(Path(machine.environ["HOME"]) / "Ascend")
    found = []
    for root in roots:
        toolkit = Path(machine.environ.get("ASCEND_TOOLKIT_HOME") or root / "ascend-toolkit")
        candidates = [toolkit / "set_env.sh", toolkit.parent / "set_env.sh", *sorted(root.glob("cann*/set_env.sh"))]
        found += [path for path in candidates if path.is_file()]
    return found


def _ascend(job: Job, machine: Machine, packages: bool) -> Iterator[_Problem]:
    home = machine.environ.get("ASCEND_HOME_PATH")
    if not home:
        if not cann_scripts(machine):
            yield _Problem(
                "LCH101",
                "this recipe is for Ascend NPUs, and there is no CANN here: ASCEND_HOME_PATH is not set, and no "
                "set_env.sh stands under /usr/local/Ascend or ~/Ascend",
                "run it on an Ascend machine or in an Ascend container; with CANN installed elsewhere, source its "
                "set_env.sh first",
                path="hardware.device",
            )
    else:
        for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH"):
            folder = machine.environ.get(name)
            if not folder or not Path(folder).is_dir():
                state = f"{name}={folder}, which is no folder" if folder else f"{name} is not set"
                yield _Problem(
                    "LCH102", f"the CANN environment is incomplete: {state}", "source CANN's set_env.sh again"
                )
    if job.nodes == 1:
        yield from _mask(job, machine, ordered=True)
        simulated = is_simulated(machine.environ)
        present = simulated_devices(machine.environ) if simulated else len(machine.devices("davinci[0-9]*"))
        if present < job.per_node:
            yield _Problem(
                "LCH103",
                f"the job needs {job.per_node} NPUs and this machine shows {present} (/dev/davinci*)",
                "check `npu-smi info`; a container needs --device /dev/davinci0 ..., /dev/davinci_manager, "
                "/dev/devmm_svm and /dev/hisi_hdc",
                path="hardware.per_node",
            )
    if packages:
        if importlib.util.find_spec("torch_npu") is None:
            yield _Problem("LCH104", f"torch_npu is not installed in {sys.executable}", "pip install 'dsgen[npu]'")
        if _torch_build() not in (None, "cpu"):
            yield _Problem(
                "LCH105",
                f"torch is a build for {_torch_build()}, beside which torch_npu refuses to load",
                "install the CPU build of the same version of torch",
            )


def _cuda(job: Job, machine: Machine, packages: bool) -> Iterator[_Problem]:
    if job.nodes == 1:
        yield from _mask(job, machine, ordered=False)
        if not machine.devices("nvidia[0-9]*") and not machine.devices("dxg"):
            yield _Problem(
                "LCH111",
                "this recipe is for CUDA, and this machine shows no CUDA device (/dev/nvidia*)",
                "check `nvidia-smi`; a container needs --gpus all",
                path="hardware.device",
            )
    if packages and _torch_build() == "cpu":
        yield _Problem("LCH112", "torch is a CPU build, and this recipe is for CUDA", "install a CUDA build of torch")


def _mask(job: Job, machine: Machine, *, ordered: bool) -> Iterator[_Problem]:
    name = MASKS[job.kind]
    mask = machine.environ.get(name)
    if mask is None:
        return
    if not re.fullmatch(r"[0-9]+(,[0-9]+)*", mask) and (ordered or not mask):
        yield _Problem("LCH106", f"{name}={mask!r} is no list of device numbers", "write them as 4,5, or unset it")
        return
    devices = mask.split(",")
    if ordered and [int(device) for device in devices] != sorted({int(device) for device in devices}):
        yield _Problem("LCH106", f"{name}={mask}: the numbers must ascend", f"unset {name}, or write them in order")
    elif ordered and (absent := [number for number in devices if not _is_there(machine, number)]):
        yield _Problem(
            "LCH108",
            f"{name}={mask} names device {', '.join(absent)}, which this machine does not have",
            "name devices that `npu-smi info` shows, or unset it",
        )
    elif len(devices) < job.per_node:
        yield _Problem(
            "LCH107",
            f"{name}={mask} shows {len(devices)} devices, and the job needs {job.per_node}",
            f"show more, or --set hardware.per_node={len(devices)}",
            path="hardware.per_node",
        )


def _is_there(machine: Machine, number: str) -> bool:
    """Whether the machine may have an NPU of that number: containers with some of the NPUs may count from 0 again."""
    if is_simulated(machine.environ):
        return int(number) < simulated_devices(machine.environ)
    return bool(machine.devices(f"davinci{int(number)}")) or int(number) < len(machine.devices("davinci[0-9]*"))


def _packages() -> Iterator[_Problem]:
    missing = [name for name in ("torch", "deepspeed", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        yield _Problem(
            "LCH120", f"{', '.join(missing)} not installed in {sys.executable}", "pip install 'dsgen[train]'"
        )


def _foreign_npu(job: Job, machine: Machine) -> Iterator[_Problem]:
    if job.kind == "npu" or machine.environ.get("ASCEND_HOME_PATH"):
        return
    spec = importlib.util.find_spec("torch_npu")
    # Its compiled part is what needs the libraries of CANN.
    if not any(next(Path(folder).glob("_C*.so"), None) for folder in (spec and spec.submodule_search_locations) or ()):
        return
    yield _Problem(
        "LCH123",
        "torch_npu is installed here and CANN is not sourced: torch and transformers load torch_npu in every process, "
        "and its import fails, also for this job, which needs no NPU",
        "use another virtual environment for it, or source CANN's set_env.sh",
        path="hardware.device",
    )


def _build_tools(packages: bool) -> Iterator[_Problem]:
    # On CPU DeepSpeed builds operators for every job, once on each machine.
    lacking = missing_tools(ninja=packages)
    if lacking:
        yield _Problem(
            "LCH121", "DeepSpeed builds its CPU operators here and lacks a tool for it", "install " + ", ".join(lacking)
        )


def _inputs(job: Job) -> Iterator[_Problem]:
    inputs = job.inputs
    if inputs is None:
        return
    for index, name in enumerate(inputs.data_files):
        if not _matches(job.base_dir, name):
            yield _Problem(
                "LCH131",
                f"no file matches {name!r}, looked for in {job.base_dir}",
                "relative paths count from the recipe's folder",
                path=f"data.files[{index}]",
            )
    if inputs.entrypoint is not None and not (job.base_dir / Path(inputs.entrypoint).expanduser()).is_file():
        yield _Problem(
            "LCH133",
            f"the entrypoint {inputs.entrypoint!r} is no file, looked for in {job.base_dir}",
            "relative paths count from the recipe's folder",
            path="entrypoint",
        )
    named = (("weights", inputs.weights), ("tokenizer", inputs.tokenizer))
    for path, value in named:
        if value and is_path(value) and not (job.base_dir / Path(value).expanduser()).exists():
            yield _Problem(
                "LCH132",
                f"{value!r} does not exist, looked for in {job.base_dir}",
                "relative paths count from the recipe's folder",
                path=path,
            )


def _matches(folder: Path, pattern: str) -> bool:
    path = str(folder / Path(pattern).expanduser())
    return os.path.exists(path) or next(glob.iglob(path, recursive=True), None) is not None  # noqa: PTH110, PTH207


def _disk(job: Job, run_dir: Path) -> Iterator[_Problem]:
    folder = existing_parent(run_dir)
    free = shutil.disk_usage(folder).free
    checkpoint = checkpoint_bytes(job.parameters, job.trainable_parameters)
    if free < LEAST_BYTES:
        yield _Problem(
            "LCH141", f"{free / _GIB:.1f} GiB are free in {folder}", "make room, or start in another folder (--run-dir)"
        )
    elif free < checkpoint:
        yield _Problem(
            "LCH142",
            f"{free / _GIB:.1f} GiB are free in {folder}, and one checkpoint takes about {checkpoint / _GIB:.1f} GiB: "
            "the run would train and could not save",
            "make room, or start in another folder (--run-dir)",
        )


def _shared_memory() -> Iterator[_Problem]:
    leaked = shared_memory.leaked_buffers()
    size = 0
    for path in leaked:
        size += path.stat().st_size if path.exists() else 0
    if leaked:
        yield _Problem(
            "LCH151",
            f"{len(leaked)} buffers of killed DeepSpeed runs hold {size / _GIB:.1f} GiB of memory in /dev/shm",
            f"rm {leaked[0].parent}/deepspeed_allreduce_buffer_* when no other job runs here",
            Severity.WARNING,
        )
