"""`dsgen explain [CODE|FAMILY]...`: what codes mean."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from dsgen.findings import DsgenError, ExitCode

if TYPE_CHECKING:
    from dsgen.rules.documentation import Documentation


@click.command("explain")
@click.argument("what", metavar="[CODE|FAMILY]...", nargs=-1)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
def command(what: tuple[str, ...], form: str) -> int:
    """Say what codes mean: what is wrong, what really happens, an example, and what to write instead.

    With a family (zero, or the beginning of its codes, ZRO) or with nothing: the codes there are.
    """
    from dsgen.report.explain import show_explained
    from dsgen.report.findings import json_errors
    from dsgen.rules.documentation import all_documentation

    with json_errors() if form == "json" else nullcontext():
        show_explained([_chosen(word) for word in what] or [all_documentation()], form=form)
    return int(ExitCode.OK)


def _chosen(what: str) -> Documentation | tuple[Documentation, ...]:
    """The code or the codes of the family that a word names. Raises DsgenError."""
    from dsgen.rules.documentation import documentation, documented

    found = documentation(what) or documented(what)
    if not found:
        raise _unknown(what)
    return found


def _unknown(what: str) -> DsgenError:
    from dsgen.catalog.lookup import nearest
    from dsgen.rules.documentation import all_documentation, families

    near = nearest(what, (*families(), *(each.code for each in all_documentation())))
    return DsgenError(
        f"no code or family is called {what!r}",
        help=f"did you mean {' or '.join(near)}?" if near else "`dsgen explain` lists them all",
    )
