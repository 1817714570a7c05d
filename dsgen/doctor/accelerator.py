"""Which accelerator DeepSpeed will choose, and why: told from facts, and asked of DeepSpeed in a process of its own.

Source of the order: DeepSpeed 0.19.8, accelerator/real_accelerator.py, get_accelerator.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from dsgen.doctor.cann import import_problem, script_to_source
from dsgen.doctor.check import Check, Subject, error, not_captured, not_understood, ok, skipped, warning
from dsgen.doctor.probe import Probe
from dsgen.doctor.versions import torch_build

SECONDS = 60.0
"""Importing torch and DeepSpeed takes seconds, and more from a network folder."""

_SUPPORTED = ("cuda", "cpu", "xpu", "npu", "mps", "hpu", "mlu", "sdaa", "supa", "klxpu")
_EARLY = (("sdaa", "torch_sdaa"),)
_LATE = (("hpu", "habana_frameworks"), ("mlu", "torch_mlu"), ("supa", "torch_supa"), ("klxpu", "torch_xmlir"))
"""Accelerators that are taken when their package can be imported: before CUDA, in this order, npu before them all."""

_NOT_INSTALLED = "torch_npu is not installed"
_MARK = "dsgen-doctor"
_ASK = (
    "from deepspeed.accelerator import get_accelerator; chosen = get_accelerator(); "
    f"print('{_MARK}', chosen.device_name(), chosen.communication_backend_name(), chosen.device_count())"
)
_KEYWORDS = re.compile(r"\w*(Error|Exception|Interrupt)\b.*")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What DeepSpeed does: `kind`, or a failure of which `why` tells."""

    kind: str
    why: str
    fails: bool = False


def check_accelerator(subject: Subject) -> Iterator[Check]:
    """The accelerator that DeepSpeed takes, against the one that the recipe or the machine is for."""
    name, probe = "accelerator", subject.probe
    for file, known in (("packages.txt", probe.knows_packages), ("environment.txt", probe.knows_environment)):
        if not known:
            yield not_captured(probe, name, file)
            return
    missing = [package for package in ("torch", "deepspeed") if probe.version(package) is None]
    if missing:
        yield skipped(name, f"{' and '.join(missing)} not installed: nothing chooses")
        return
    expected = predict(subject)
    if not probe.live or subject.quick or (_NOT_INSTALLED in expected.why and expected.fails):
        yield _verdict(subject, expected)
        return
    yield _asked(subject, expected)


def predict(subject: Subject) -> Choice:
    """What DeepSpeed will choose, as far as that can be told without importing anything."""
    said = subject.probe.variable("DS_ACCELERATOR")
    problem = _npu_problem(subject)
    if problem is not None and _loaded_by_torch(subject):
        kind = subject.plan.kind if subject.plan is not None else said or "npu"
        found = f"`import torch` loads torch_npu by itself, and that fails (RuntimeError): {problem[0]}"
        return Choice(kind=kind, why=found, fails=True)
    if subject.plan is not None:
        return _named(subject, subject.plan.kind, f"launch.sh sets DS_ACCELERATOR={subject.plan.kind}")
    if said is not None:
        return _named(subject, said, f"DS_ACCELERATOR={said} is set")
    return _found(subject)


def _loaded_by_torch(subject: Subject) -> bool:
    """Whether torch imports torch_npu when it is imported itself: from torch 2.5 on, by an entry point."""
    probe = subject.probe
    if probe.version("torch_npu") is None or (probe.variable("TORCH_DEVICE_BACKEND_AUTOLOAD") or "1") != "1":
        return False
    if probe.live:
        return any(point.name == "torch_npu" for point in importlib.metadata.entry_points(group="torch.backends"))
    numbers = re.match(r"(\d{1,4})\.(\d{1,4})", probe.version("torch") or "")
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (2, 5)


def _named(subject: Subject, kind: str, why: str) -> Choice:
    if kind not in _SUPPORTED:
        return Choice(kind=kind, why=f"{why}, which DeepSpeed does not know (ValueError)", fails=True)
    problem = _npu_problem(subject) if kind == "npu" else None
    if problem is not None:
        return Choice(kind=kind, why=f"{why}, and `import torch_npu` fails: {problem[0]}", fails=True)
    return Choice(kind=kind, why=why)


def _found(subject: Subject) -> Choice:
    """DeepSpeed's own search: xpu, npu, the others, CUDA, CPU. Only an ImportError lets it go on."""
    passed = ""
    problem = _npu_problem(subject)
    if problem is None:
        return Choice(kind="npu", why="DS_ACCELERATOR is not set, and torch_npu can be imported")
    if problem[0] != _NOT_INSTALLED:
        if not problem[1]:
            return Choice(
                kind="npu", why=f"`import torch_npu` fails: {problem[0]}; DeepSpeed ends with that", fails=True
            )
        passed = f"; torch_npu is installed, but {problem[0]}, and DeepSpeed goes on without a word"
    for kind, package in (*_EARLY, *_LATE):
        if _installed(subject.probe, package):
            return Choice(kind=kind, why=f"DS_ACCELERATOR is not set, and {package} is installed{passed}")
    build = torch_build() if subject.probe.live else None
    if build not in (None, "cpu") and subject.kind == "cuda":
        return Choice(kind="cuda", why=f"DS_ACCELERATOR is not set, torch is a build for {build}{passed}")
    return Choice(kind="cpu", why=f"DS_ACCELERATOR is not set, and nothing else was found{passed}")


def _npu_problem(subject: Subject) -> tuple[str, bool] | None:
    """Why torch_npu cannot be imported, and whether that is an ImportError; None when it can."""
    probe = subject.probe
    if probe.version("torch_npu") is None:
        return _NOT_INSTALLED, True
    build = torch_build() if probe.live else None
    if build not in (None, "cpu"):
        return f"torch is a build for {build}, and two accelerators at once are refused (RuntimeError)", False
    if subject.plan is not None and subject.plan.kind == "npu" and script_to_source(probe):
        return None
    return import_problem(probe)


def _installed(probe: Probe, package: str) -> bool:
    if probe.version(package) is not None:
        return True
    return probe.live and importlib.util.find_spec(package) is not None


def _asked(subject: Subject, expected: Choice) -> Check:
    name = "accelerator"
    words = [sys.executable, "-c", _ASK]
    script = script_to_source(subject.probe) if subject.plan is not None and subject.plan.kind == "npu" else None
    if script:
        words = ["bash", "-c", 'source "$1" >/dev/null 2>&1; shift; exec "$@"', "bash", script, *words]
    if subject.plan is not None:
        words = ["env", f"DS_ACCELERATOR={subject.plan.kind}", *words]
    output = subject.probe.run(*words, seconds=SECONDS)
    answer = re.search(rf"^{_MARK} (\w+) (\w+) (\d+)\s*$", output.text, re.MULTILINE)
    if answer is not None:
        kind, backend, devices = answer.groups()
        why = expected.why if kind == expected.kind and not expected.fails else f"not {expected.kind} ({expected.why})"
        return _verdict(subject, Choice(kind=kind, why=f"{why}; asked, it says backend {backend}, {devices} device(s)"))
    reasons = [line.strip() for line in output.text.splitlines() if _KEYWORDS.match(line.strip())]
    if reasons:
        # A chain of errors: the first is the cause, the last what ended it.
        cause = f", from {reasons[0][:300]}" if reasons[0] != reasons[-1] else ""
        why = f"asked, it ends with {reasons[-1][:300]}{cause}"
        return _verdict(subject, Choice(kind=expected.kind, why=why, fails=True))
    return not_understood(
        name,
        f"DeepSpeed was asked and gave no answer ({output.problem or 'it printed something else'}); expected: "
        f"{expected.kind}, since {expected.why}",
        "python -c 'from deepspeed.accelerator import get_accelerator as get; print(get().device_name())'",
    )


def _verdict(subject: Subject, choice: Choice) -> Check:
    name = "accelerator"
    wanted = subject.plan.kind if subject.plan is not None else None
    if choice.fails:
        kind = "npu" if "torch_npu" in choice.why else choice.kind
        return subject.wrong(name, f"DeepSpeed cannot start: {choice.why}", _remedy(kind))
    found = f"DeepSpeed chooses {choice.kind}: {choice.why}"
    if wanted is not None and choice.kind != wanted:
        return error(name, f"{found}; the recipe is for {wanted}", _remedy(wanted))
    if wanted is None and choice.kind == "cpu" and subject.kind == "npu":
        return warning(name, f"{found}; there are traces of an NPU here", _remedy("npu"))
    return ok(name, found)


def _remedy(kind: str) -> str:
    if kind == "npu":
        return (
            "source CANN's set_env.sh, install the torch_npu of torch's version beside a CPU build of torch, and see "
            "that `python -c 'import torch_npu'` works"
        )
    if kind not in _SUPPORTED:
        return f"unset DS_ACCELERATOR, or take one of {', '.join(_SUPPORTED)}"
    return f"see that `python -c 'import torch, deepspeed'` works, and export DS_ACCELERATOR={kind}"
