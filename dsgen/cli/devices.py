"""`dsgen devices`: the devices that recipes can name."""

from __future__ import annotations

import click

from dsgen.findings import ExitCode


@click.command("devices")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
def command(form: str) -> int:
    """List the devices that recipes can name."""
    from dsgen.catalog.devices import device_ids, load_device
    from dsgen.report.catalog import show_devices

    show_devices([load_device(name) for name in device_ids()], form=form)
    return int(ExitCode.OK)
