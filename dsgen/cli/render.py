"""`dsgen render RECIPE`: write the rendered files, or check that they are still what the recipe renders to."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from pathlib import Path

import click

from dsgen.cli.options import FOLDER, recipe_argument, set_option
from dsgen.findings import DsgenError, ExitCode


@click.command("render")
@recipe_argument
@click.option("-o", "--output", type=FOLDER, help="Folder to write into (default: ./NAME of the recipe).")
@set_option
@click.option("--templates", type=FOLDER, help="Folder with templates that replace shipped ones.")
@click.option("--deepspeed-version", metavar="VERSION", help="Release of DeepSpeed to write for, from 0.14 on.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 with a diff when the folder differs.")
@click.option("--explain", is_flag=True, help="Show every decided value with its reason.")
@click.option("--force", is_flag=True, help="Overwrite files that dsgen did not render.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
def command(
    recipe: Path,
    output: Path | None,
    overrides: tuple[str, ...],
    templates: Path | None,
    deepspeed_version: str | None,
    check: bool,
    explain: bool,
    force: bool,
    form: str,
) -> int:
    """Write ds_config.json, train.py, launch.sh and dsgen.lock.yaml of RECIPE (and hostfile and .deepspeed_env for
    several nodes)."""
    # The program ends before the memory that cycles hold would matter; looking for them takes a tenth of its time.
    gc.disable()
    from dsgen.report.findings import json_errors

    with json_errors() if form == "json" else nullcontext():
        from dsgen.render.files import render_recipe
        from dsgen.report.rendering import show_check, show_rendered

        version = None
        if deepspeed_version is not None:
            from dsgen.dsconfig.job import version_named

            version = version_named(deepspeed_version)

        if check:
            from dsgen.render.lock import read_lock
            from dsgen.render.output import differences

            folder = output or Path(render_recipe(recipe, overrides, overlay=templates).plan.name)
            lock = read_lock(folder) if folder.is_dir() else None
            if lock is None:
                raise DsgenError(f"{folder} holds no dsgen.lock.yaml: there is nothing to compare with")
            if templates is None and lock.templates is not None:
                templates = recipe.parent / lock.templates
                if not templates.is_dir():
                    raise DsgenError(
                        f"{folder} was rendered with the templates in {templates}, which is no folder here",
                        help="name the folder with --templates",
                    )
            rendered = render_recipe(
                recipe, overrides or lock.overrides, overlay=templates, deepspeed=version or lock.deepspeed
            )
            found = differences(rendered, folder)
            show_check(found, folder, lock, replayed=() if overrides else lock.overrides, form=form)
            return int(ExitCode.FINDINGS if found else ExitCode.OK)

        from dsgen.catalog.deepspeed_keys import DEFAULT_VERSION
        from dsgen.render.output import write

        rendered = render_recipe(
            recipe, overrides, overlay=templates, deepspeed=version or DEFAULT_VERSION, cached=True
        )
        folder = output or Path(rendered.plan.name)
        written = write(rendered, folder, force=force)
        show_rendered(rendered, written, folder, explain=explain, form=form)
        return int(ExitCode.OK)
