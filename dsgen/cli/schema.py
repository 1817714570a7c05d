"""`dsgen schema recipe|ds_config`: JSON Schemas for editors, from what checks the files."""

from __future__ import annotations

import click

from dsgen.findings import ExitCode


@click.command("schema")
@click.argument("what", type=click.Choice(["recipe", "ds_config"]))
@click.option(
    "--deepspeed",
    metavar="VERSION",
    help="For ds_config: the version of DeepSpeed, or `installed` (default: newest known).",
)
def command(what: str, deepspeed: str | None) -> int:
    """Print the JSON Schema (2020-12) of a recipe or of a ds_config.json, for editors."""
    import json

    if what == "recipe":
        if deepspeed is not None:
            raise click.UsageError(
                "--deepspeed is for ds_config: the fields of a recipe are the same for every version"
            )
        from dsgen.recipe.json_schema import recipe_json_schema

        schema = recipe_json_schema()
    else:
        from dsgen.dsconfig.job import version_named
        from dsgen.dsconfig.json_schema import ds_config_json_schema

        schema = ds_config_json_schema(version_named(deepspeed))
    click.echo(json.dumps(schema, indent=2))
    return int(ExitCode.OK)
