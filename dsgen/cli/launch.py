"""`dsgen launch RECIPE|FOLDER`: train."""

from __future__ import annotations

from pathlib import Path

import click

from dsgen.cli.options import FOLDER, set_option
from dsgen.findings import ExitCode, FindingsError


@click.command("launch")
@click.argument("recipe", metavar="RECIPE|FOLDER", type=click.Path(path_type=Path))
@set_option
@click.option("--run-dir", type=FOLDER, help="Folder of the run, instead of a new runs/NAME/NNN.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint of the last run, if there is one.")
@click.option("--dry-run", is_flag=True, help="Print the environment and the command; start and write nothing.")
@click.option("--bootstrap", is_flag=True, hidden=True)
def command(
    recipe: Path, overrides: tuple[str, ...], run_dir: Path | None, resume: bool, dry_run: bool, bootstrap: bool
) -> int:
    """Render a recipe into a new run folder and train.

    RECIPE is a YAML file; FOLDER is one that was rendered before, or an earlier run. Runs stand in runs/NAME/NNN under
    the current folder and are never overwritten. Ctrl-C saves a checkpoint and stops; a second one stops at once.
    """
    from dsgen.launch.command import Request, check, install_and_relaunch, launch, prepare
    from dsgen.report.findings import show_findings

    prepared = prepare(Request(path=recipe, overrides=overrides, run_dir=run_dir, resume=resume))
    if dry_run:
        from dsgen.launch.run import dry_run as describe

        click.echo(describe(prepared.source, prepared.place))
        try:
            show_findings(check(prepared), sources=prepared.source.document.sources)
        except FindingsError as error:
            show_findings(error.findings, sources=error.sources)
            click.echo("so it would be refused on this machine", err=True)
        return int(ExitCode.OK)
    findings = check(prepared, packages=not bootstrap)
    if bootstrap:
        install_and_relaunch(prepared, click.echo)
    show_findings(findings, sources=prepared.source.document.sources)
    return launch(prepared)
