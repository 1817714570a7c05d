"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def recipe_argument(function: F) -> F:
    """The argument RECIPE."""
    return click.argument("recipe", type=click.Path(path_type=Path))(function)


def set_option(function: F) -> F:
    """`--set PATH=VALUE`, any number of times."""
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="PATH=VALUE",
        help="Change a value of the recipe, e.g. --set zero.stage=3; may be given more than once.",
    )(function)
