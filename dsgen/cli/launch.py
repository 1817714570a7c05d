"""`dsgen launch RECIPE|FOLDER`: train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsgen.cli.options import FOLDER, profile_option, set_option
from dsgen.findings import DsgenError, ExitCode, FindingsError

if TYPE_CHECKING:
    from dsgen.launch.command import Prepared


@click.command("launch")
@click.argument("recipe", metavar="RECIPE|FOLDER", type=click.Path(path_type=Path))
@set_option
@click.option("--run-dir", type=FOLDER, help="Folder of the run, instead of a new runs/NAME/NNN.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint of the last run, if there is one.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print environment, command and what would refuse them here; start nothing.",
)
@profile_option
@click.option("--force", is_flag=True, help="Start although the memory estimate says that the job does not fit.")
@click.option("--bootstrap", is_flag=True, hidden=True)
def command(
    recipe: Path,
    overrides: tuple[str, ...],
    run_dir: Path | None,
    resume: bool,
    dry_run: bool,
    profile: str | None,
    force: bool,
    bootstrap: bool,
) -> int:
    """Render a recipe into a new run folder and train.

    RECIPE is a YAML file; FOLDER is one that was rendered before, or an earlier run. Runs stand in runs/NAME/NNN under
    the current folder and are never overwritten. Ctrl-C saves a checkpoint and stops; a second one stops at once.
    A job that does not fit its devices or hosts by the memory estimate is refused.
    """
    from dsgen.launch.command import Request, check, check_memory, install_and_relaunch, launch, prepare
    from dsgen.launch.expected import lines
    from dsgen.report.findings import show_findings

    prepared = prepare(
        Request(path=recipe, overrides=overrides, run_dir=run_dir, resume=resume, profile=profile, force=force)
    )
    if dry_run:
        return _dry_run(prepared)
    findings = check(prepared, packages=not bootstrap)
    check_memory(prepared)
    if bootstrap:
        install_and_relaunch(prepared, click.echo)
    show_findings(findings, sources=prepared.source.document.sources)
    for line in lines(prepared.expected):
        click.echo(line)
    return launch(prepared)


def _dry_run(prepared: Prepared) -> int:
    """Print what would be started; the exit code is that of a refusal where this machine would refuse it."""
    from dsgen.launch.command import check, check_memory
    from dsgen.launch.expected import DoesNotFit, lines
    from dsgen.launch.run import dry_run
    from dsgen.report.findings import show_findings

    refused: FindingsError | None = None
    too_large: DoesNotFit | None = None
    for line in lines(prepared.expected):
        click.echo(f"# {line}")
    try:
        findings = check(prepared)
    except FindingsError as error:
        refused, findings = error, error.findings
    try:
        click.echo(dry_run(prepared.source, prepared.place))
    except DsgenError:
        # launch.sh refuses by its own checks what the findings say better.
        if refused is None:
            raise
    show_findings(findings, sources=prepared.source.document.sources)
    try:
        check_memory(prepared)
    except DoesNotFit as error:
        too_large = error
        click.echo(f"error: {error.message}\n  help: {error.help}", err=True)
    if refused is None and too_large is None:
        return int(ExitCode.OK)
    click.echo("so it would be refused" + (" on this machine" if refused else ""), err=True)
    return int(ExitCode.FINDINGS)
