"""One recipe at every ZeRO stage, with and without offload and recomputation, side by side."""

from __future__ import annotations

from dataclasses import dataclass

from dsgen.documents.errors import DocumentError
from dsgen.findings import FindingsError, Severity
from dsgen.memory.calibration import Calibration
from dsgen.planner.variant import Variant, variant
from dsgen.recipe.load import LoadedRecipe
from dsgen.rules.view import lookup

OFFLOADS: dict[str, tuple[int, ...]] = {"none": (0, 1, 2, 3), "optimizer": (1, 2, 3), "optimizer + parameters": (3,)}
"""What is offloaded to host memory, and the stages that can."""
CHECKPOINTING = ("none", "full")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A stage, an offload, a kind of activation checkpointing, and the job with them."""

    stage: int
    offload: str
    checkpointing: str
    same: bool
    """Whether the recipe itself says so."""
    variant: Variant | None
    """None where that is no sound recipe."""
    refused: str = ""
    """Why it is not."""


def compare_stages(loaded: LoadedRecipe, base: Variant) -> tuple[Row, ...]:
    """Every stage with every offload and checkpointing that it has; all else as the recipe says.

    What the recipe leaves open is decided anew for each, as are gradient sums at stage 0, which has only one kind.
    """
    plan = base.plan
    places = {("none", "none"): "none", ("cpu", "none"): "optimizer", ("cpu", "cpu"): "optimizer + parameters"}
    offloaded = places.get((plan.offload_optimizer, plan.offload_parameters), "other")
    checkpointing = {0: "none", 1: "full"}.get(plan.checkpoint_every_layers, "other")
    recipe = loaded.document.value
    rows = []
    for stage in range(4):
        for offload, stages in OFFLOADS.items():
            if stage not in stages:
                continue
            for recompute in CHECKPOINTING:
                overrides = [f"zero.stage={stage}", f"activation_checkpointing={recompute}"]
                for name in ("optimizer", "parameters"):
                    wanted = "cpu" if name in offload else "none"
                    if wanted != (plan.offload_optimizer if name == "optimizer" else plan.offload_parameters):
                        overrides.append(f"zero.offload.{name}={wanted}")
                if stage == 0 and lookup(recipe, "precision.accumulate") is not None:
                    overrides.append("precision.accumulate=null")
                found, refused = _variant(loaded, overrides, base.report.calibration)
                same = (stage, offload, recompute) == (plan.stage, offloaded, checkpointing)
                rows.append(
                    Row(
                        stage=stage,
                        offload=offload,
                        checkpointing=recompute,
                        same=same,
                        variant=found,
                        refused=refused,
                    )
                )
    return tuple(rows)


def _variant(loaded: LoadedRecipe, overrides: list[str], calibration: Calibration | None) -> tuple[Variant | None, str]:
    try:
        return variant(loaded, overrides, calibration), ""
    except FindingsError as error:
        first = next(each for each in error.findings if each.severity is Severity.ERROR)
        return None, f"{first.code}: {first.message}"
    except DocumentError as error:
        return None, error.message
