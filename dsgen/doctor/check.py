"""What a check says, and what it is said about."""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from pathlib import Path

from dsgen.catalog.devices import Kind
from dsgen.doctor.probe import Probe
from dsgen.recipe.plan import Plan


class State(str, enum.Enum):
    """How a check ended; only errors make the verdict a bad one."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    SKIPPED = "skipped"
    """It does not apply here, was left out, or has nothing to look at."""
    NOT_UNDERSTOOD = "not understood"
    """There is an answer in a form that dsgen does not know: neither good nor bad."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at. `name` is stable: `THEME` or `THEME.DETAIL`."""

    name: str
    state: State
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Check:
    """All is well."""
    return Check(name=name, state=State.OK, found=found)


def warning(name: str, found: str, remedy: str) -> Check:
    """It may hurt, or is known to be slower or untested."""
    return Check(name=name, state=State.WARNING, found=found, remedy=remedy)


def error(name: str, found: str, remedy: str) -> Check:
    """The job cannot run, or would not do what it should."""
    return Check(name=name, state=State.ERROR, found=found, remedy=remedy)


def skipped(name: str, why: str) -> Check:
    """Not judged, and why."""
    return Check(name=name, state=State.SKIPPED, found=why)


def not_understood(name: str, found: str, remedy: str) -> Check:
    """An answer in an unknown form."""
    return Check(name=name, state=State.NOT_UNDERSTOOD, found=found, remedy=remedy)


_CAPTURED = {"environment.txt": ("NAME=VALUE", "env"), "packages.txt": ("NAME==VERSION", "pip list --format freeze")}
"""Captured files that hold many things: the form of their lines, and the command that prints them."""


def not_captured(probe: Probe, name: str, file: str) -> Check:
    """Why a captured file tells nothing: it was left out, or is there in another form."""
    lines, command = _CAPTURED[file]
    if probe.read(file) is None:
        return skipped(name, f"no {file} was captured ({command})")
    return not_understood(name, f"{file} is there and holds no line {lines}", f"capture it with `{command}`")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A machine, and the job that it is judged for."""

    probe: Probe
    plan: Plan | None = None
    """None: the machine as it is."""
    folder: Path | None = None
    """Where relative paths of the recipe count from."""
    run_dir: Path | None = None
    """Where the run's folder is or will be; None: under `runs` of the current folder."""
    quick: bool = False
    """Leave out what takes more than a moment."""
    installs: bool = False
    """Packages of the training side are installed before the job starts: that they are missing is no fault."""

    def wrong(self, name: str, found: str, remedy: str) -> Check:
        """What stops a job: an error for a recipe, a warning where no job is asked about."""
        return error(name, found, remedy) if self.plan is not None else warning(name, found, remedy)

    @functools.cached_property
    def kind(self) -> Kind:
        """The kind of device that is judged: the recipe's; else the one whose devices, or at least traces, are here."""
        if self.plan is not None:
            return self.plan.kind
        probe = self.probe
        if probe.glob("/dev/davinci[0-9]*"):
            return "npu"
        if probe.glob("/dev/nvidia[0-9]*"):
            return "cuda"
        if (
            probe.has_program("npu-smi")
            or probe.has_program("hccn_tool")
            or probe.variable("ASCEND_HOME_PATH")
            or probe.glob("/usr/local/Ascend/*")
            or probe.version("torch_npu")
        ):
            return "npu"
        return "cuda" if probe.has_program("nvidia-smi") else "cpu"

    @property
    def simulated(self) -> bool:
        """Whether the NPU is the one that dsgen simulates (its set_env.sh is sourced)."""
        return self.kind == "npu" and bool(self.probe.variable("DSGEN_SIMULATED_NPU"))

    def job_variable(self, name: str) -> str | None:
        """A variable as the job will have it: a value of the user's shell wins over the recipe's, as in launch.sh."""
        said = self.probe.variable(name)
        if said is None and self.plan is not None:
            return next((v.value for v in self.plan.environment if v.name == name), None)
        return said
