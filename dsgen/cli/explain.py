"""`dsgen explain [CODE|FAMILY]`: what a code means."""

from __future__ import annotations

from contextlib import nullcontext

import click

from dsgen.findings import DsgenError, ExitCode


@click.command("explain")
@click.argument("what", metavar="[CODE|FAMILY]", required=False)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
def command(what: str | None, form: str) -> int:
    """Say what a code means: what is wrong, what really happens, an example, and what to write instead.

    With a family (zero, or the beginning of its codes, ZRO) or with nothing: the codes there are.
    """
    from dsgen.report.explain import show_documentation, show_index
    from dsgen.report.findings import json_errors
    from dsgen.rules.documentation import all_documentation, documentation, documented

    with json_errors() if form == "json" else nullcontext():
        if what is None:
            show_index(all_documentation(), form=form)
        elif (one := documentation(what)) is not None:
            show_documentation(one, form=form)
        elif found := documented(what):
            show_index(found, form=form)
        else:
            raise _unknown(what)
    return int(ExitCode.OK)


def _unknown(what: str) -> DsgenError:
    from dsgen.catalog.lookup import nearest
    from dsgen.rules.documentation import all_documentation, families

    near = nearest(what, (*families(), *(each.code for each in all_documentation())))
    return DsgenError(
        f"no code or family is called {what!r}",
        help=f"did you mean {' or '.join(near)}?" if near else "`dsgen explain` lists them all",
    )
