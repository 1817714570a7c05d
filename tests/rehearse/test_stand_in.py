"""The stand-in of a job: smaller where it must be, the same where it can be, and a recipe without errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsgen.catalog.models import load_preset, preset_names
from dsgen.catalog.parameters import count_parameters
from dsgen.findings import DsgenError
from dsgen.recipe.load import load_recipe
from dsgen.rehearse.rehearsal import prepare, write_stand_in
from dsgen.rehearse.stand_in import STEPS, small_model
from dsgen.render.files import render_recipe

from ..conftest import RECIPES

ASCEND = sorted(path for path in RECIPES.glob("*.yaml") if "ascend" in path.read_text())


def render(recipe: Path, folder: Path, *overrides: str) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """ds_config.json of the recipe and of its stand-in, and the stand-in's plan."""
    folder.mkdir()
    prepared = prepare(recipe, overrides)
    small = render_recipe(write_stand_in(prepared, folder))
    whole = render_recipe(recipe, overrides).files["ds_config.json"]
    return json.loads(whole), json.loads(small.files["ds_config.json"]), small.plan


@pytest.mark.parametrize("recipe", ASCEND, ids=lambda path: path.stem)
def test_shipped_recipes(recipe: Path, tmp_path: Path) -> None:
    """What DeepSpeed is told stays, but for batch, buckets and the length of the schedule."""
    whole, small, plan = render(recipe, tmp_path / "out")
    assert plan.kind == "npu" and plan.world_size == 2 and plan.steps == STEPS
    assert plan.parameters.total < 40e6
    assert set(small) == set(whole)
    for section in ("bf16", "fp16", "optimizer", "data_types", "gradient_clipping"):
        assert small.get(section) == whole.get(section)
    sizes = ("bucket_size", "threshold", "max_live", "max_reuse", "sub_group")
    for key, value in whole["zero_optimization"].items():
        if not any(word in key for word in sizes):
            assert small["zero_optimization"][key] == value, key
    assert small["train_micro_batch_size_per_gpu"] == whole["train_micro_batch_size_per_gpu"]
    assert {v.name: v.value for v in plan.environment if v.name.startswith("HCCL_CONNECT")} == {
        "HCCL_CONNECT_TIMEOUT": "600"
    }


@pytest.mark.parametrize("name", preset_names())
def test_small_models_keep_family_and_groups(name: str) -> None:
    architecture = load_preset(name)
    config = small_model(architecture)
    group = architecture.attention_heads // architecture.key_value_heads
    assert config["model_type"] == architecture.family
    assert config["vocab_size"] == architecture.vocabulary_size
    assert config["num_attention_heads"] == group * config.get("num_key_value_heads", config["num_attention_heads"])
    assert config["hidden_size"] == 16 * config["num_attention_heads"]
    assert count_parameters(architecture).total > 10 * config["vocab_size"] * config["hidden_size"]


def test_what_is_not_here_is_replaced_and_told(tmp_path: Path) -> None:
    recipe = RECIPES / "13b-zero2.yaml"
    prepared = prepare(recipe, ("data.mode=instruction", "data.field=null", "weights=./w", "zero.stage=3"))
    told = " / ".join(prepared.stand_in.changes)
    for words in ("no file matches 'data/*.jsonl'", "no tokenizer at ./tokenizer", "weights: random", "mode: packed"):
        assert words in told
    folder = tmp_path / "out"
    folder.mkdir()
    plan = render_recipe(write_stand_in(prepared, folder)).plan
    assert (plan.data.builtin, plan.data.tokenizer, plan.weights, plan.stage) == ("python-topics", "bytes", None, 3)


def test_what_is_here_stays(tmp_path: Path) -> None:
    """Files of the recipe's folder are found from the rehearsal's."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "a.txt").write_text("text")
    recipe = tmp_path / "job" / "job.yaml"
    recipe.write_text(f"extends: {RECIPES / 'tiny-npu.yaml'}\nname: job\ndata: {{builtin: null, files: a.txt}}\n")
    folder = tmp_path / "out"
    folder.mkdir()
    written = write_stand_in(prepare(recipe, ("seed=7",)), folder)
    plan = render_recipe(written).plan
    assert plan.data.files == ("../job/a.txt",)
    assert plan.seed == 7
    assert load_recipe(folder / "recipe.yaml").document.value["seed"] == 7
    assert yaml.safe_load(written.read_text())["extends"] == "recipe.yaml"


def test_only_ascend(tmp_path: Path) -> None:
    with pytest.raises(DsgenError, match="only jobs for Ascend NPUs are rehearsed"):
        prepare(RECIPES / "tiny-cpu.yaml", ())
