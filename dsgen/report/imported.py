"""What `dsgen import` did: the recipe, and what there is to know about it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dsgen.dsconfig.import_notes import Remark
from dsgen.dsconfig.imported import Import
from dsgen.report.console import printable, say
from dsgen.report.findings import finding_json, show_findings

_HEADINGS = {
    "decided": "auto, decided here (change them in the recipe):",
    "derived": "auto, not needed in a recipe:",
    "default": "DeepSpeed's defaults, written out because dsgen would decide otherwise:",
    "renamed": "old names:",
    "left-out": "left out, because it does nothing:",
}


def show_imported(result: Import, target: Path | None, *, form: str) -> None:
    """Print the recipe when it went into no file, and what was decided; to standard error beside a recipe."""
    if form == "json":
        content = {
            "source": result.source,
            "output": str(target) if target is not None else None,
            "recipe": result.imported.recipe,
            "text": result.text,
            "remarks": [
                {"kind": remark.kind, "path": remark.path, "text": remark.text} for remark in result.imported.remarks
            ],
            "findings": [finding_json(finding) for finding in result.findings],
        }
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return
    if target is None:
        click.echo(result.text, nl=False)
    else:
        say(f"{target} from {printable(result.source)}")
    err = target is None
    for kind, heading in _HEADINGS.items():
        _list(heading, result.imported.of_kind(kind), err=err)
    same = result.imported.of_kind("same")
    if same:
        say(f"said, and so without it: {printable(', '.join(remark.path for remark in same))}", err=err)
    _list("to fill in:", result.imported.of_kind("fill-in"), err=err, style="yellow")
    if result.findings:
        say("dsgen render refuses this recipe until it is changed:", err=True, style="bold red")
        show_findings(result.findings, sources=result.sources)


def _list(heading: str, remarks: tuple[Remark, ...], *, err: bool, style: str = "") -> None:
    if remarks:
        say(heading, err=err, style=style)
    for remark in remarks:
        say(f"  {printable(remark.path)}: {printable(remark.text)}", err=err)
