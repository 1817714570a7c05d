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


def test_a_stage_that_is_set_brings_its_own_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What DeepSpeed's defaults wrote for stage 2 is not held against stage 3."""
    path = tmp_path / "ds_config.json"
    there = run(path, {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}, capsys)
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    before, after = run(path, config, capsys), run(path, config, capsys, "--set", "zero.stage=3")
    assert (before["stage"], after["stage"]) == (2, 3)
    assert after["device"] == there["device"] != before["device"]
    nothing = run(path, {"bf16": {"enabled": True}}, capsys, "--set", "zero.stage=3")
    assert nothing["device"] == there["device"]


def test_a_micro_batch_that_the_global_batch_is_no_multiple_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text('{"bf16": {"enabled": true},\n "train_batch_size": 64}')
    assert main_code(["estimate", "--ds-config", str(path), *NPUS, "--micro-batch", "3"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path}:2:") and "--micro-batch 3 does not divide train_batch_size: 64 on 8" in said
    assert said.endswith("possible with this train_batch_size: 1, 2, 4, 8\n")
    words = ["estimate", "--ds-config", str(path), *NPUS, "--micro-batch"]
    assert main_code([*words, "8"]) in (0, 1)
    assert main_code([*words, "3", "--set", "batch.global=48"]) in (0, 1)
    path.write_text(json.dumps({"bf16": {"enabled": True}, "train_batch_size": 64, "sequence_parallel_size": 2}))
    capsys.readouterr()
    assert main_code([*words, "3"]) == 2
    assert "64 on 4 data-parallel ranks is 16" in capsys.readouterr().err


def test_a_section_of_activation_checkpointing_recomputes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, config = tmp_path / "ds_config.json", {"bf16": {"enabled": True}}
    without = run(path, config, capsys)
    with_ = run(path, config | {"activation_checkpointing": {"partition_activations": True}}, capsys)
    assert without["device"] == with_["device"]
    assert without["assumed"][0].startswith("activation_checkpointing: none: no config says it; ")
    assert "only configures deepspeed.checkpointing, which the script itself must call" in with_["assumed"][0]


@pytest.mark.parametrize(
    ("zero", "more", "words"),
    [
        ({"offload_optimizer": {"device": "cpu"}}, (), "AdamW as DeepSpeedCPUAdam"),
        ({}, ("--set", "zero.offload.optimizer=cpu"), "AdamW as DeepSpeedCPUAdam"),
        ({}, (), "AdamW"),
        ({"offload_optimizer": {"device": "cpu"}}, ("--client-optimizer", "DeepSpeedCPUAdam"), None),
    ],
)
def test_which_optimizer_is_assumed(
    zero: dict[str, Any],
    more: tuple[str, ...],
    words: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, **zero}}
    assumed = run(tmp_path / "ds_config.json", config, capsys, *more)["assumed"]
    said = [line.split(": ")[1] for line in assumed if line.startswith("optimizer.type: ")]
    assert said == ([words] if words else [])


def test_lion_of_the_script_is_lion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It keeps one state where Adam keeps two."""
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    states = [
        run(tmp_path / "ds_config.json", config, capsys, "--client-optimizer", name)["host"]["parts"][
            "optimizer states"
        ]
        for name in ("DeepSpeedCPUAdam", "DeepSpeedCPULion")
    ]
    assert states[0] == 2 * states[1]


@pytest.mark.parametrize("text", ["", "\n", "// nothing\n"])
def test_an_empty_file_is_no_config(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(text)
    assert main_code(["estimate", "--ds-config", str(path), *NPUS]) == 2
    assert f"error: {path}:1:1: is empty" in capsys.readouterr().err
    path.write_text("{}")
    assert main_code(["estimate", "--ds-config", str(path), *NPUS]) in (0, 1)
