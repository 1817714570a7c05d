"""`dsgen models`: the model presets that recipes can name."""

from __future__ import annotations

import click

from dsgen.findings import ExitCode


@click.command("models")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
def command(form: str) -> int:
    """List the model presets and plain sizes that recipes can name, with exact parameter counts."""
    from dsgen.catalog.models import load_preset, preset_names, sizes
    from dsgen.report.catalog import show_models

    show_models([load_preset(name) for name in preset_names()], sizes(), form=form)
    return int(ExitCode.OK)
