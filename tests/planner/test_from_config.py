"""A ds_config.json without a recipe: the same memory as that of the recipe that it was rendered from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsgen.cli.main import main_code
from dsgen.memory.estimate import estimate
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.resolve import resolve

from ..conftest import RECIPES

AUTO: dict[str, Any] = {
    "bf16": {"enabled": "auto"},
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 3},
}
NPUS = ("--model", "llama-2-7b", "--device", "ascend-910b3-64g", "--world-size", "8")


@pytest.mark.parametrize("name", ["13b-zero2", "70b-zero3-offload", "7b-24g-single-gpu", "1b-fp32-baseline"])
def test_as_the_recipe_that_it_comes_from(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = resolve(check_recipe(load_recipe(RECIPES / f"{name}.yaml", ())))
    (tmp_path / "ds_config.json").write_text(json.dumps(dict(plan.ds_config)))
    words = ["estimate", "--ds-config", str(tmp_path / "ds_config.json"), "--model", plan.architecture.name]
    words += ["--device", plan.device.id, "--world-size", str(plan.world_size), "--per-node", str(plan.per_node)]
    words += ["--sequence-length", str(plan.sequence_length), "--format", "json"]
    if plan.checkpoint_every_layers:
        words += ["--set", "activation_checkpointing=full"]
    if plan.loss_chunk_tokens:
        words += ["--set", "loss=chunked"]
    main_code(words)
    said = json.loads(capsys.readouterr().out)
    report = estimate(plan)
    assert said["device"]["total_peak_bytes"] == report.device.total_peak_bytes
    assert said["host"]["peak_bytes"] == report.host.peak_bytes
    assert said["assumed"] == ([] if plan.checkpoint_every_layers else [said["assumed"][0]])


def run(path: Path, config: dict[str, Any], capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    path.write_text(json.dumps(config))
    main_code(["estimate", "--ds-config", str(path), *NPUS, "--format", "json", *more])
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_what_nobody_says_is_assumed_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds_config.json"
    open_ = run(path, AUTO, capsys)["assumed"]
    paths = [line.partition(":")[0] for line in open_]
    assert set(paths) >= {"activation_checkpointing", "precision.type", "batch.micro", "batch.sequence_length"}
    assert any(line.startswith("batch.sequence_length: 2048: ") for line in open_)
    said = run(
        path,
        AUTO,
        capsys,
        *("--micro-batch", "2", "--sequence-length", "4096", "--set", "activation_checkpointing=full"),
    )["assumed"]
    left = {line.partition(":")[0] for line in said}
    assert left.isdisjoint({"activation_checkpointing", "batch.micro", "batch.sequence_length"})
    assert "precision.type" in left


@pytest.mark.parametrize(
    "batch",
    [
        {},
        {"train_micro_batch_size_per_gpu": 4},
        {"train_batch_size": 64},
        {"train_batch_size": 64, "gradient_accumulation_steps": 2},
        {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
    ],
)
def test_the_micro_batch_wins(batch: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, **batch}
    sizes = [
        run(tmp_path / "ds_config.json", config, capsys, "--micro-batch", str(micro))["device"]["phases"]
        for micro in (2, 8)
    ]
    losses = [{phase["name"]: phase["parts"] for phase in phases}["loss"]["logits and loss"] for phases in sizes]
    assert losses[1] == 4 * losses[0] == 12 * 8 * 2048 * 32000


def test_wrong_use_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text("{}")
    recipe = str(RECIPES / "13b-zero2.yaml")
    for words, message in [
        ([], "give a RECIPE, or a config"),
        ([recipe, "--ds-config", str(path)], "give a RECIPE, or a config"),
        ([recipe, "--micro-batch", "2"], "--micro-batch is for --ds-config"),
        (["--ds-config", str(path), "--model", "7b"], "give --model and --device"),
        (["--ds-config", str(path), *NPUS, "--per-node", "3"], "not a multiple of --per-node"),
        (["--ds-config", str(path), "--model", "7c", "--device", "cpu"], "unknown model '7c'"),
        (["--ds-config", str(tmp_path / "none.json"), *NPUS], "cannot be read"),
    ]:
        assert main_code(["estimate", *words]) == 2
        assert message in capsys.readouterr().err


def test_a_config_with_errors_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text('{"zero_optimisation": {"stage": 3}, "train_batch_size": 8}')
    assert main_code(["estimate", "--ds-config", str(path), *NPUS]) == 1
    assert "KEY001" in capsys.readouterr().err
