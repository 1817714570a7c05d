"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click


class _Folder(click.Path):
    """A path that may not be empty: an empty one would silently mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name of the folder is empty", param, ctx)
        return super().convert(value, param, ctx)


FOLDER = _Folder(path_type=Path)

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


def profile_option(function: F) -> F:
    """`--profile FILE|none`."""
    return click.option(
        "--profile",
        metavar="FILE|none",
        help="Device profile of `dsgen calibrate` to estimate with, instead of your own of the device; or none.",
    )(function)
