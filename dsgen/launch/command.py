"""`dsgen launch` step by step: what is asked for, what would run where, and running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dsgen.findings import DsgenError, Finding, FindingsError, has_errors
from dsgen.launch.bootstrap import bootstrap, relaunch
from dsgen.launch.checks import check_machine
from dsgen.launch.console import choose_display
from dsgen.launch.expected import Expected, expect, keep, refuse
from dsgen.launch.run import Place, choose_place, make_place, run
from dsgen.launch.source import Source, read_source
from dsgen.launch.summary import resumes

CONTAINER = "container.sh"
RUNS = Path("runs")
"""Where run folders stand, under the current folder."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for on the command line."""

    path: Path
    """A recipe or a rendered folder."""
    overrides: tuple[str, ...] = ()
    run_dir: Path | None = None
    resume: bool = False
    profile: str | None = None
    """File of a device profile, or `none`; None: the user's own, where there is one."""
    force: bool = False
    """Start a job that does not fit, too."""

    def arguments(self) -> list[str]:
        """The command line of this request."""
        words = [f"--set={override}" for override in self.overrides]
        if self.run_dir is not None:
            words.append(f"--run-dir={self.run_dir}")
        if self.resume:
            words.append("--resume")
        if self.profile is not None:
            words.append(f"--profile={self.profile}")
        if self.force:
            words.append("--force")
        return [*words, "--", str(self.path)]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A job that is rendered in memory, and the place of its run."""

    request: Request
    source: Source
    place: Place
    expected: Expected | None
    """Its memory; None where a rendered folder does not tell."""


def prepare(request: Request) -> Prepared:
    """Render or read what was asked for and choose the run's folder; nothing is written.

    Raises DsgenError, DocumentError or FindingsError.
    """
    source = read_source(request.path, request.overrides)
    place = choose_place(source, request.path, _run_root(), request.run_dir, resume=request.resume)
    if request.profile is not None and source.plan is None:
        raise DsgenError(
            f"--profile is for estimating a recipe, and {request.path} is a rendered folder", help="leave it out"
        )
    expected = expect(source, request.path, request.profile)
    return Prepared(request=request, source=source, place=place, expected=expected)


def check(prepared: Prepared, *, packages: bool = True) -> tuple[Finding, ...]:
    """Warnings and infos of the recipe and of this machine.

    `packages=False` leaves out what a bootstrap will install. Raises FindingsError with everything that is wrong when
    the job cannot run here.
    """
    source = prepared.source
    findings = source.findings
    # A rendered folder has no recipe to judge the machine for; its launch.sh refuses what it cannot do without.
    if source.plan is not None:
        folder, run_dir = source.job.base_dir, prepared.place.folder
        findings += check_machine(source.plan, source.document, folder, run_dir, packages=packages)
    if has_errors(findings):
        raise FindingsError(findings, sources=source.document.sources)
    return findings


def check_memory(prepared: Prepared) -> None:
    """Raise DoesNotFit when the job needs more memory than there is, and nobody asked to start it anyway."""
    if not prepared.request.force:
        refuse(prepared.expected, prepared.source)


def install_and_relaunch(prepared: Prepared, say: Callable[[str], None]) -> None:
    """Install what the job needs into this environment and start again in it; returns only by an exception."""
    bootstrap(prepared.source.job.kind, say)
    relaunch(prepared.request.arguments())


def launch(prepared: Prepared) -> int:
    """Make the run's folder, train, and return the exit code. Raises DsgenError when the folder cannot be made."""
    request, source = prepared.request, prepared.source
    place = make_place(source, prepared.place, _run_root(), named=request.run_dir is not None)
    if prepared.expected is not None:
        keep(prepared.expected, source, place.folder)
    display = choose_display()
    if request.resume:
        display.note(resumes(place.earlier, own_script=source.job.own_script))
    if CONTAINER in source.files:
        display.note(f"this runs outside the recipe's container; {place.folder / CONTAINER} starts it inside")
    ranks = source.job.nodes * source.job.per_node
    display.note(f"{source.job.name}: {ranks} rank{'s' if ranks > 1 else ''}, run folder {place.folder}")
    return run(source, place, display)


def _run_root() -> Path:
    return Path.cwd() / RUNS
