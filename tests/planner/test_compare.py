"""Every stage side by side: what is compared, and what it says of the recipe itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsgen.memory.estimate import estimate
from dsgen.planner.compare import Row, compare_stages
from dsgen.planner.variant import Variant
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.resolve import resolve

from ..conftest import RECIPES


def compared(path: Path, *overrides: str) -> tuple[Variant, dict[tuple[int, str, str], Row]]:
    loaded = load_recipe(path, overrides)
    plan = resolve(check_recipe(loaded))
    base = Variant(overrides=(), plan=plan, report=estimate(plan))
    return base, {(row.stage, row.offload, row.checkpointing): row for row in compare_stages(loaded, base)}


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_recipe(path: Path) -> None:
    base, rows = compared(path)
    assert len(rows) == 16
    (same,) = [row for row in rows.values() if row.same]
    assert same.variant is not None
    assert same.variant.report == base.report
    assert [row.refused for row in rows.values() if row.variant is None] == []
    for (stage, offload, checkpointing), row in rows.items():
        assert row.variant is not None
        plan = row.variant.plan
        assert (plan.stage, plan.checkpoint_every_layers) == (stage, int(checkpointing == "full"))
        assert (plan.offload_optimizer == "cpu", plan.offload_parameters == "cpu") == (
            "optimizer" in offload,
            "parameters" in offload,
        )


def test_sharding_and_offload_lower_the_device() -> None:
    _, rows = compared(RECIPES / "13b-zero2.yaml")

    def device(stage: int, offload: str, checkpointing: str = "full") -> int:
        variant = rows[stage, offload, checkpointing].variant
        assert variant is not None
        return variant.report.device.total_peak_bytes

    assert device(0, "none") > device(1, "none") > device(2, "none") > device(3, "none")
    assert device(3, "none") > device(3, "optimizer") > device(3, "optimizer + parameters")
    assert device(3, "none", "none") > device(3, "none")


def test_keys_of_other_stages_are_taken_out(write_recipe: Callable[..., Path]) -> None:
    _, rows = compared(write_recipe(zero={"stage": 3, "stage3_max_live_parameters": 5e8, "sub_group_size": 1e8}))
    variant = rows[2, "none", "none"].variant
    assert variant is not None
    assert {"zero.stage3_max_live_parameters=null", "zero.sub_group_size=null"} <= set(variant.overrides)
    assert "sub_group_size" not in variant.plan.ds_config["zero_optimization"]


def test_what_is_refused_says_why(write_recipe: Callable[..., Path]) -> None:
    """A raw key is not taken out: the recipe says it in DeepSpeed's own words."""
    raw = {"zero_optimization": {"round_robin_gradients": True}}
    _, rows = compared(write_recipe(deepspeed=raw))
    refused = {row.stage: row.refused for row in rows.values() if row.variant is None}
    assert set(refused) == {0, 3}
    assert refused[3].startswith("ZRO001: round_robin_gradients does nothing at stage 3")


@pytest.mark.parametrize(
    "said", ["zero.offload.optimizer={device: nvme, path: /nvme/job}", "activation_checkpointing=sqrt"]
)
def test_a_recipe_that_is_none_of_them_is_not_taken_for_one(said: str) -> None:
    _, rows = compared(RECIPES / "7b-24g-single-gpu.yaml", said)
    assert not any(row.same for row in rows.values())
    assert all(row.variant for row in rows.values())
