"""The schema of ds_config.json, and that the parser of the installed DeepSpeed agrees with it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from dsgen.catalog.deepspeed_keys import DEFAULT_VERSION, Key, load_keys
from dsgen.cli.schema import command
from dsgen.dsconfig.json_schema import ds_config_json_schema

TESTS = Path(__file__).resolve().parent.parent
KEYS = load_keys()

Ask = Callable[[dict[str, Any]], str | None]


def errors(config: dict[str, Any], version: str = DEFAULT_VERSION) -> set[str]:
    """Paths of what the schema finds wrong."""
    return {error.json_path for error in VALIDATORS[version].iter_errors(config)}


VERSIONS = ("0.14.0", "0.17.0", "0.19.6", DEFAULT_VERSION)
VALIDATORS = {
    version: jsonschema.Draft202012Validator(json.loads(json.dumps(ds_config_json_schema(version))))
    for version in VERSIONS
}


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_a_schema(version: str) -> None:
    jsonschema.Draft202012Validator.check_schema(VALIDATORS[version].schema)
    assert VALIDATORS[version].schema["title"] == f"ds_config.json of DeepSpeed {version}"


@pytest.mark.parametrize(
    "file", sorted(TESTS.glob("render/golden/*/ds_config.json")), ids=lambda file: file.parent.name
)
def test_rendered_configs_fit(file: Path) -> None:
    assert errors(json.loads(file.read_text(encoding="utf-8"))) == set()


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"$schema": "ds_config.schema.json", "train_batch_size": 8},
        {"zero_optimization": True},
        {"zero_optimization": {"offload_optimizer": None}},
        {"zero_optimization": {"max_live_parameters": 5, "cpu_offload": True}},
        {"bfloat16": {"enabled": True}},
        {"bf16": {"enabled": "auto"}, "gradient_clipping": "auto", "train_micro_batch_size_per_gpu": "auto"},
        {"zero_optimization": {"stage": 2.0, "reduce_bucket_size": 5e8}},
        {"steps_per_print": None, "communication_data_type": "FP16"},
        {"compile": {"passes": ["z1", "autotp"]}},
        {"data_types": {"keep_in_fp32_modules": ["inv_freq"]}},
        {"tensor_parallel": {"partition_config": {"whatever": {"a": 1}}}},
        {"optimizer": {"type": "adamw", "params": {"lr": 1e-4, "torch_adam": True, "fused": True}}},
        {"optimizer": {"type": "SGD", "params": {"lr": 1e-4, "nesterov": True}}},
        {"optimizer": {"type": "MuSGD", "params": {"lr": 1e-4}}},
        {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}},
        {"scheduler": {"type": "StepLR", "params": {"step_size": 10}}},
    ],
    ids=json.dumps,
)
def test_what_fits(config: dict[str, Any]) -> None:
    assert errors(config) == set()


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({"zero_optimisation": {}}, "$"),
        ({"amp": {"enabled": False}}, "$"),
        ({"aio": {"thread_count": 1}}, "$.aio"),
        ({"bfloat16": {"enabledd": True}}, "$.bfloat16"),
        ({"zero_optimization": {"offload_param": {"devise": "cpu"}}}, "$.zero_optimization.offload_param"),
        ({"zero_optimization": {"stage": 4}}, "$.zero_optimization.stage"),
        ({"zero_optimization": {"stage": "auto"}}, "$.zero_optimization.stage"),
        ({"zero_optimization": {"reduce_bucket_size": 0}}, "$.zero_optimization.reduce_bucket_size"),
        ({"zero_optimization": {"max_live_parameters": -1}}, "$.zero_optimization.max_live_parameters"),
        ({"zero_optimization": {"offload_optimizer": {"ratio": 1.5}}}, "$.zero_optimization.offload_optimizer.ratio"),
        ({"zero_optimization": None}, "$.zero_optimization"),
        ({"tensor_parallel": {"dtype": "bf16"}}, "$.tensor_parallel"),
        ({"train_batch_size": 1.5}, "$.train_batch_size"),
        ({"communication_data_type": "bfloat16"}, "$.communication_data_type"),
        ({"data_types": {"keep_in_fp32_modules": "inv_freq"}}, "$.data_types.keep_in_fp32_modules"),
        ({"compile": {"passes": ["z2"]}}, "$.compile.passes[0]"),
        ({"optimizer": {"type": "AdmaW"}}, "$.optimizer.type"),
        ({"optimizer": {"type": "OneBitAdam"}}, "$.optimizer.type"),
        ({"optimizer": {"type": "ADAMW", "params": {"momentum": 0.9}}}, "$.optimizer.params"),
        ({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}}, "$.optimizer.params"),
        ({"optimizer": {"type": "Adam", "params": {"lr": "1e-4"}}}, "$.optimizer.params.lr"),
        ({"scheduler": {"type": "warmuplr", "params": {}}}, "$.scheduler.type"),
        ({"scheduler": {"type": "WarmupCosineLR", "params": {}}}, "$.scheduler.params"),
        ({"scheduler": {"type": "OneCycle"}}, "$.scheduler"),
    ],
    ids=lambda value: json.dumps(value),
)
def test_what_does_not_fit(config: dict[str, Any], where: str) -> None:
    assert errors(config) == {where}


def test_it_follows_the_version() -> None:
    assert errors({"aio": {"thread_count": 1}}, "0.14.0") == set()
    assert errors({"aio": {"intra_op_parallelism": 1}}, "0.14.0") == {"$.aio"}
    assert errors({"optimizer": {"type": "onebitadam", "params": {"freeze_step": 10}}}, "0.19.6") == set()
    assert errors({"communication_data_type": "bf16"}, "0.14.0") == {"$.communication_data_type"}
    # DeepSpeed ignored it in this version, and refuses it in later ones.
    assert errors({"fp16": {"loss_scal": 1}}, "0.17.0") == {"$.fp16"}
    assert errors({"steps_per_print": None}, "0.14.0") == {"$.steps_per_print"}


def test_descriptions() -> None:
    zero = VALIDATORS[DEFAULT_VERSION].schema["properties"]["zero_optimization"]["properties"]
    live = zero["stage3_max_live_parameters"]
    assert live["default"] == 1_000_000_000
    assert live["description"] == (
        "zero_optimization.stage3_max_live_parameters. Default: 1000000000. At least 0. "
        "Also called max_live_parameters."
    )
    assert zero["max_live_parameters"]["description"] == "Another name of stage3_max_live_parameters."
    assert zero["cpu_offload"]["deprecated"] is True
    assert zero["cpu_offload"]["description"].endswith("Deprecated: write zero_optimization.offload_optimizer.")
    assert zero["zenflow"]["properties"]["topk_ratio"]["description"].endswith("More than 0 and less than 1.")
    assert zero["reduce_bucket_size"]["description"].endswith("Transformers fills in auto.")
    assert "default" not in zero["offload_param"]


def test_command() -> None:
    run = CliRunner().invoke(command, ["ds_config", "--deepspeed", "0.16"], standalone_mode=False)
    assert json.loads(run.output) == json.loads(json.dumps(ds_config_json_schema("0.16.9")))
    assert json.loads(CliRunner().invoke(command, ["ds_config"]).output)["title"].endswith(DEFAULT_VERSION)
    wrong = CliRunner().invoke(command, ["recipe", "--deepspeed", "0.16"])
    assert wrong.exit_code == 2 and "--deepspeed is for ds_config" in wrong.output


# ---- the parser of DeepSpeed


@pytest.fixture(scope="module")
def refusal() -> Iterator[Ask]:
    """Asks DeepSpeed's parser about a config: why it refuses it, or None."""
    if find_spec("deepspeed") is None:
        pytest.skip("the real parser is asked; install the extra `train`")
    with subprocess.Popen(
        [sys.executable, str(TESTS / "render" / "deepspeed_worker.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def ask(config: dict[str, Any]) -> str | None:
            request = {"config": {"train_batch_size": 1} | config, "world_size": 1}
            process.stdin.write(json.dumps(request) + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            answer: dict[str, str] = json.loads(process.stdout.readline())  # type: ignore[union-attr]
            return answer.get("error")

        yield ask
        process.stdin.close()


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def in_files(key: Key) -> bool:
    return "python" not in key.types and not key.path.startswith(("optimizer.", "scheduler."))


def test_both_take_every_default(refusal: Ask) -> None:
    checked = 0
    for key in KEYS:
        # Where null is no value that can be written, there being none is the default.
        written = key.has_default and (key.default is not None or "null" in key.types)
        if written and in_files(key) and key.path != "train_batch_size":
            config = nested(key.path, key.default)
            assert errors(config) == set(), config
            assert refusal(config) is None, config
            checked += 1
    assert checked > 250


def test_both_refuse_what_a_checked_section_refuses(refusal: Ask) -> None:
    wrong = []
    for key in KEYS:
        section = key.path.rpartition(".")[0]
        if not in_files(key) or KEYS.section_policy(section) != "refused":
            continue
        if key.minimum is not None:
            wrong.append(nested(key.path, key.minimum - 1))
        if key.exclusive_minimum is not None:
            wrong.append(nested(key.path, key.exclusive_minimum))
        if key.maximum is not None:
            wrong.append(nested(key.path, key.maximum + 1))
        if key.choices:
            wrong.append(nested(key.path, ["no such"] if "list" in key.types else "no such"))
        if "null" not in key.types:
            wrong.append(nested(key.path, None))
        if "list" not in key.types:
            wrong.append(nested(key.path, [[]]))
    for section in KEYS.known_sections:
        if KEYS.section_policy(section) == "refused" and not section.startswith(("optimizer", "scheduler")):
            wrong.append(nested(f"{section}.no_such_key", 1))
    assert len(wrong) > 200
    for config in wrong:
        assert errors(config) != set(), config
        assert refusal(config) is not None, config
