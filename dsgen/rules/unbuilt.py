"""Fields that are in the recipe's language and whose run is not built yet."""

from __future__ import annotations

from collections.abc import Iterator

from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View

INSTEAD = {"launcher": "write deepspeed or torchrun"}


@rule("NYB001")
def field_is_built(view: View) -> Iterator[Problem]:
    """A field whose run is not built yet.

    It is refused, since ignoring it would train something else.

    Example (recipe):
        launcher: slurm

    Instead:
        launcher: torchrun

    Since: dsgen 0.1
    """
    for path, reason in view.unbuilt.items():
        yield Problem(
            path=path,
            message=f"{view.spell(path)} is not built yet: {reason}",
            help=INSTEAD.get(path, "remove it for now"),
            on_key=True,
        )
