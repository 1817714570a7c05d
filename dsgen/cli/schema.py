"""`dsgen schema recipe`: the JSON Schema of recipes, from the classes that check them."""

from __future__ import annotations

import click

from dsgen.findings import ExitCode


@click.command("schema")
@click.argument("what", type=click.Choice(["recipe"]))
def command(what: str) -> int:
    """Print the JSON Schema (2020-12) of a recipe, for editors."""
    import json

    from dsgen.recipe.json_schema import recipe_json_schema

    click.echo(json.dumps(recipe_json_schema(), indent=2))
    return int(ExitCode.OK)
