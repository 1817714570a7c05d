"""`dsgen rehearse RECIPE`: an Ascend job in small, on a machine without NPUs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from dsgen.cli.options import recipe_argument, set_option
from dsgen.findings import ExitCode


@click.command("rehearse")
@recipe_argument
@set_option
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the verdict.")
def command(recipe: Path, overrides: tuple[str, ...], form: str) -> int:
    """Run an Ascend job in small on the simulated NPU: real torch_npu and DeepSpeed on stub libraries of CANN.

    Two processes train a small model of the same family with the recipe's command, environment, ds_config.json,
    offload and precision, save a checkpoint and go on from it. Needs torch_npu and g++, and a minute or two.
    Everything stands in rehearsals/NAME/NNN under the current folder.
    """
    from dsgen.report.findings import json_errors

    with json_errors() if form == "json" else nullcontext():
        from dsgen.rehearse.rehearsal import make_folder, prepare, rehearse
        from dsgen.report.findings import show_findings
        from dsgen.report.rehearsal import as_json, show_outcome, show_plan

        prepared = prepare(recipe, overrides)
        folder = make_folder(prepared)
        show_findings(prepared.checked.findings, sources=prepared.checked.loaded.document.sources)
        if form == "text":
            show_plan(prepared)
        outcome = rehearse(prepared, folder, quiet=form == "json")
        if form == "text":
            show_outcome(prepared, outcome)
        else:
            click.echo(as_json(prepared, outcome))
        return int(ExitCode.OK if outcome.well else ExitCode.FINDINGS)
