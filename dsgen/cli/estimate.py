"""`dsgen estimate RECIPE`: will it fit, and where is memory highest?"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from dsgen.cli.options import recipe_argument, set_option
from dsgen.findings import ExitCode


@click.command("estimate")
@recipe_argument
@set_option
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
def command(recipe: Path, overrides: tuple[str, ...], form: str) -> int:
    """Say how much device and host memory RECIPE needs, phase by phase and part by part.

    Exit code 1 when it does not fit its devices or its hosts.
    """
    from dsgen.report.findings import json_errors

    with json_errors() if form == "json" else nullcontext():
        from dsgen.memory.estimate import estimate
        from dsgen.recipe.check import check_recipe
        from dsgen.recipe.load import load_recipe
        from dsgen.recipe.resolve import resolve
        from dsgen.report.estimate import show_estimate

        plan = resolve(check_recipe(load_recipe(recipe, overrides)))
        report = estimate(plan)
        show_estimate(report, plan, form=form)
        return int(ExitCode.FINDINGS if report.verdict == "does not fit" else ExitCode.OK)
