"""The list of checks, and running them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dsgen.catalog.devices import Kind
from dsgen.doctor.accelerator import check_accelerator
from dsgen.doctor.builds import check_builds
from dsgen.doctor.cann import check_cann
from dsgen.doctor.check import Check, State, Subject, not_understood, skipped
from dsgen.doctor.container import check_container
from dsgen.doctor.devices import check_devices
from dsgen.doctor.disk import check_disk
from dsgen.doctor.hosts import check_hosts
from dsgen.doctor.inputs import check_inputs
from dsgen.doctor.links import check_links
from dsgen.doctor.mask import check_mask
from dsgen.doctor.memory import check_memory
from dsgen.doctor.ports import check_ports
from dsgen.doctor.shared_memory import check_shared_memory
from dsgen.doctor.versions import check_packages, check_python


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Checks that belong together; their names begin with the theme's."""

    name: str
    run: Callable[[Subject], Iterable[Check]]
    kinds: tuple[Kind, ...] = ("npu", "cuda", "cpu")
    """The kinds of device that it is about."""
    live: bool = False
    """Whether it looks at this very machine, and so has nothing to say about captured outputs."""
    apart: bool = False
    """Whether it waits for other programs, and so runs beside the others."""
    of_hardware: bool = False
    """Whether it looks at the devices themselves, which a simulated NPU does not have."""
    slow: bool = False
    """Whether --quick leaves it out."""
    of_packages: bool = False
    """Whether it looks at packages of the training side."""


THEMES = (
    Theme(name="python", run=check_python, live=True),
    Theme(name="inputs", run=check_inputs, live=True),
    Theme(name="packages", run=check_packages, of_packages=True),
    Theme(name="cann", run=check_cann, kinds=("npu",)),
    Theme(name="accelerator", run=check_accelerator, apart=True, of_packages=True),
    Theme(name="devices", run=check_devices, kinds=("npu", "cuda"), of_hardware=True),
    Theme(name="mask", run=check_mask, kinds=("npu", "cuda")),
    Theme(name="links", run=check_links, kinds=("npu",), apart=True, of_hardware=True),
    Theme(name="builds", run=check_builds, live=True),
    Theme(name="shared_memory", run=check_shared_memory, live=True),
    Theme(name="memory", run=check_memory, live=True),
    Theme(name="ports", run=check_ports, live=True),
    Theme(name="disk", run=check_disk, live=True),
    Theme(name="container", run=check_container, live=True),
    Theme(name="hosts", run=check_hosts, live=True, apart=True, slow=True),
)


def examine(subject: Subject) -> tuple[Check, ...]:
    """Every check of `subject`, in the order of THEMES. Never raises."""
    with ThreadPoolExecutor(len(THEMES)) as pool:
        apart = {theme.name: pool.submit(_judge, theme, subject) for theme in THEMES if theme.apart}
        checks: list[Check] = []
        for theme in THEMES:
            checks += apart[theme.name].result() if theme.apart else _judge(theme, subject)
    return tuple(checks)


def is_fine(checks: Iterable[Check]) -> bool:
    """Whether nothing is wrong."""
    return not any(check.state is State.ERROR for check in checks)


def _judge(theme: Theme, subject: Subject) -> list[Check]:
    why = _why_not(theme, subject)
    if why:
        return [skipped(theme.name, why)]
    try:
        return list(theme.run(subject))
    except Exception as fault:
        # A check that fails must not take the others with it.
        remedy = "please report this line"
        return [not_understood(theme.name, f"a fault of dsgen itself: {type(fault).__name__}: {fault}", remedy)]


def _why_not(theme: Theme, subject: Subject) -> str:
    if subject.kind not in theme.kinds:
        if subject.plan is not None:
            return f"the recipe is for {subject.plan.kind}"
        return "no NPU here" if theme.kinds == ("npu",) else "no NPU and no CUDA device here"
    if theme.of_hardware and subject.simulated:
        return "simulated NPU: there is no hardware to look at"
    if theme.live and not subject.probe.live:
        return "needs the machine itself; captured outputs do not tell"
    if theme.slow and subject.quick:
        return "left out by --quick"
    if theme.of_packages and subject.installs:
        return "packages are installed before the job starts"
    return ""
