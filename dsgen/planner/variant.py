"""A recipe with some values changed: checked, resolved and estimated like any other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsgen.findings import Finding, FindingsError, Severity
from dsgen.memory.calibration import Calibration
from dsgen.memory.estimate import estimate
from dsgen.memory.report import MemoryReport
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import LoadedRecipe, overridden
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve import resolve

_DEAD_KEY = "ZRO001"
"""The code of a key of ZeRO's that does nothing at the stage."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A recipe with overrides, its plan and its memory."""

    overrides: tuple[str, ...]
    """`PATH=VALUE`, as --set takes them."""
    plan: Plan
    report: MemoryReport


def variant(loaded: LoadedRecipe, overrides: Iterable[str], calibration: Calibration | None = None) -> Variant:
    """The recipe with these values, on the same device; `calibration` holds measured figures of it.

    Keys of ZeRO's that do nothing at the stage of the variant are taken out, by overrides with null.
    Raises FindingsError when the variant is no sound recipe, DocumentError when a value has no place in it.
    """
    overrides = tuple(overrides)
    try:
        plan = resolve(check_recipe(overridden(loaded, overrides), to_run=False))
    except FindingsError as error:
        errors = [each for each in error.findings if each.severity is Severity.ERROR]
        if not all(map(_is_dead_key, errors)):
            raise
        overrides += tuple(sorted({f"{each.path}=null" for each in errors}))
        plan = resolve(check_recipe(overridden(loaded, overrides), to_run=False))
    return Variant(overrides=overrides, plan=plan, report=estimate(plan, calibration))


def _is_dead_key(finding: Finding) -> bool:
    return finding.code == _DEAD_KEY and finding.path.startswith("zero.")
