"""The documentation of codes, as text of 80 columns or JSON."""

from __future__ import annotations

import itertools
import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from dsgen.findings import Severity
from dsgen.report.console import printable, say
from dsgen.rules.documentation import KINDS, Documentation, about_family

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
_WIDTH = 80


def show_explained(chosen: Sequence[Documentation | tuple[Documentation, ...]], *, form: str) -> None:
    """Print what is known of each code, and of each family (a tuple of codes) the codes and their first lines."""
    if form == "json":
        pages = [each for part in chosen for each in ((part,) if isinstance(part, Documentation) else part)]
        found = [documentation_json(each) for each in dict.fromkeys(pages)]
        alone = len(chosen) == 1 and isinstance(chosen[0], Documentation)
        say(json.dumps(found[0] if alone else found, indent=2))
        return
    for index, part in enumerate(chosen):
        if isinstance(part, Documentation):
            _show_page(part)
            if index + 1 < len(chosen):
                say()
        else:
            _show_index(part)
    if not all(isinstance(part, Documentation) for part in chosen):
        say("`dsgen explain CODE` says more.")


def _show_page(each: Documentation) -> None:
    say(f"{each.code}  {severities(each)}", style=_STYLE[each.severity])
    for paragraph in (each.summary, *each.text.split("\n\n")):
        say(_wrapped(paragraph))
        say()
    for title, sample in ((f"Example ({KINDS[each.kind]})", each.example), ("Instead", each.instead)):
        if sample.text:
            say(f"{title}:")
            for line in sample.text.splitlines():
                say(f"    {printable(line)}")
            say()
    if each.options:
        say(f"Found with {each.options}")
    say(f"Since {each.since}")


def _show_index(found: Sequence[Documentation]) -> None:
    for family, members in by_family(found):
        say(_wrapped(f"{family}: {about_family(family)}"), style="cyan")
        for each in members:
            head = f"  {each.code}  {each.severity.value:7}  "
            say(_wrapped(head + each.summary, indent=len(head)))
        say()


def by_family(found: Sequence[Documentation]) -> Iterator[tuple[str, list[Documentation]]]:
    """Families in their order, each with its codes."""
    for family, members in itertools.groupby(found, key=lambda each: each.family):
        yield family, list(members)


def severities(each: Documentation) -> str:
    """`error`, or `error; warning in a ds_config.json`."""
    if each.in_ds_config is each.severity:
        return each.severity.value
    return f"{each.severity.value}; {each.in_ds_config.value} in a ds_config.json"


def documentation_json(each: Documentation) -> dict[str, Any]:
    """The documentation of a code as a JSON object."""
    return {
        "code": each.code,
        "family": each.family,
        "severity": each.severity.value,
        "severity_in_ds_config": each.in_ds_config.value,
        "summary": each.summary,
        "text": each.text,
        "kind": each.kind,
        "example": each.example.text,
        "instead": each.instead.text,
        "options": each.options,
        "since": each.since,
    }


def _wrapped(text: str, indent: int = 0) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
