"""`dsgen doctor [RECIPE]`: is this machine fit to train?"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsgen.cli.options import FOLDER, set_option
from dsgen.findings import DsgenError, ExitCode

if TYPE_CHECKING:
    from dsgen.doctor.probe import Captured


@click.command("doctor")
@click.argument("recipe", required=False, type=click.Path(path_type=Path))
@set_option
@click.option("--quick", is_flag=True, help="Only what takes a moment: no hosts, no hccn_tool, nothing imported.")
@click.option("--captured", type=FOLDER, help="Judge outputs captured on another machine, in this folder.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
def command(recipe: Path | None, overrides: tuple[str, ...], quick: bool, captured: Path | None, form: str) -> int:
    """Check versions, CANN, devices, links, builds, memory, ports, disk and hosts; say what is wrong and what to do.

    With RECIPE the machine is judged for that job, else as it is. Exit code 1 when something is wrong. The names of
    captured outputs stand in docs/doctor.md.
    """
    from dsgen.report.findings import json_errors

    with json_errors() if form == "json" else nullcontext():
        if overrides and recipe is None:
            raise DsgenError("--set changes a recipe, and none was given", help="dsgen doctor RECIPE --set PATH=VALUE")
        from dsgen.doctor.check import Subject
        from dsgen.doctor.examine import examine, is_fine
        from dsgen.doctor.probe import Machine, Probe
        from dsgen.report.doctor import show_verdict

        plan = None
        if recipe is not None:
            from dsgen.recipe.check import check_recipe
            from dsgen.recipe.load import load_recipe
            from dsgen.recipe.resolve import resolve

            plan = resolve(check_recipe(load_recipe(recipe, overrides)))
        probe: Probe = Machine() if captured is None else _captured(captured)
        folder = recipe.absolute().parent if recipe is not None else None
        subject = Subject(probe=probe, plan=plan, folder=folder, quick=quick)
        checks = examine(subject)
        fine = is_fine(checks)
        show_verdict(checks, subject, fine=fine, form=form)
        return int(ExitCode.OK if fine else ExitCode.FINDINGS)


def _captured(folder: Path) -> Captured:
    from dsgen.doctor.probe import Captured

    if folder.is_file():
        raise DsgenError(
            f"--captured {folder}: is a file, not a folder",
            help="put it into a folder, under the name of the command that printed it (docs/doctor.md has all names)",
        )
    if not folder.is_dir():
        raise DsgenError(f"--captured {folder}: there is no such folder")
    probe = Captured(folder)
    if not probe.holds_something:
        raise DsgenError(
            f"--captured {folder}: holds no file of a known name",
            help="for example npu-smi-info.txt, hccn_tool.txt, environment.txt; docs/doctor.md has all names",
        )
    return probe
