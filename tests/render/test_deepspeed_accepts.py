"""Every rendered ds_config.json is taken by the real DeepSpeedConfig, and every key in it makes a difference there."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsgen.render.files import render_recipe
from dsgen.rules.zero import STAGE_OF_KEY

from ..conftest import RECIPES

pytest.importorskip("deepspeed", reason="the real parser is asked; install the extra `train`")

Ask = Callable[[dict[str, Any], int], dict[str, Any]]
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    worker = Path(__file__).with_name("deepspeed_worker.py")
    with subprocess.Popen(
        [sys.executable, str(worker)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def parse(config: dict[str, Any], world_size: int) -> dict[str, Any]:
            process.stdin.write(json.dumps({"config": config, "world_size": world_size}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield parse
        process.stdin.close()


def leaves(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def changed(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The config with another value at `path` that is valid on its own."""
    other: Any
    if isinstance(value, bool):
        other = not value
    elif isinstance(value, (int, float)):
        other = value * 2 + 2
    elif isinstance(value, list):
        other = [0.5, 0.5]
    else:
        choices = {"fp32": "bf16", "bf16": "fp32", "fp16": "fp32", "cpu": "none", "linear": "log"}
        other = choices.get(value, "SGD" if path[0] == "optimizer" else "WarmupLR")
    out = copy.deepcopy(config)
    at = out
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = other
    return out


@pytest.mark.parametrize("name", NAMES)
def test_parsed_as_written_and_no_key_is_dead(name: str, ask: Ask) -> None:
    plan = render_recipe(RECIPES / f"{name}.yaml").plan
    config = json.loads(render_recipe(RECIPES / f"{name}.yaml").files["ds_config.json"])
    answer = ask(config, plan.data_parallel)
    assert "error" not in answer, answer
    parsed = answer["parsed"]
    assert parsed["train_batch_size"] == plan.global_batch
    assert parsed["train_micro_batch_size_per_gpu"] == plan.micro_batch
    assert parsed["gradient_accumulation_steps"] == plan.accumulation
    assert parsed["zero_optimization_stage"] == plan.stage
    assert parsed["gradient_clipping"] == config["gradient_clipping"]
    assert parsed["float16_config"]["enabled"] is (plan.precision == "fp16")
    assert parsed["bfloat16_config"]["enabled"] is (plan.precision == "bf16")

    dead = [
        ".".join(path)
        for path, value in leaves(config)
        if ask(changed(config, path, value), plan.data_parallel) == answer
    ]
    assert dead == []


@pytest.mark.parametrize("name", NAMES)
def test_only_keys_that_the_stage_reads_are_written(name: str) -> None:
    plan = render_recipe(RECIPES / f"{name}.yaml").plan
    for key in plan.ds_config["zero_optimization"]:
        if key not in ("stage", "offload_optimizer", "offload_param"):
            assert plan.stage in STAGE_OF_KEY[key], key


def test_a_dead_key_would_be_seen(ask: Ask) -> None:
    """The comparison above does find a key without effect."""
    config = json.loads(render_recipe(RECIPES / "13b-zero2.yaml").files["ds_config.json"])
    answer = ask(config, 8)
    assert ask({**config, "zero_optimisation": {"stage": 3}}, 8) == answer
    assert ask({**config, "activation_checkpointing": {"partitioned_activations": True}}, 8) == answer


def test_world_size_matters(ask: Ask) -> None:
    config = json.loads(render_recipe(RECIPES / "13b-zero2.yaml").files["ds_config.json"])
    assert "AssertionError" in ask(config, 7)["error"]
