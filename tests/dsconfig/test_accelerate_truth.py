"""The findings about accelerate configs against accelerate itself: what it refuses, and the ds_config that it makes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsgen.documents.yaml_reader import read_yaml_text
from dsgen.dsconfig.accelerate import accelerates_config
from dsgen.lint.lint import lint_bytes
from dsgen.lint.options import Options
from dsgen.rules.accelerate import DISTRIBUTED_TYPES, KEYS, LAUNCHERS, TOP_KEYS
from dsgen.rules.auto import FILLED_BY_TRAINER

FILE = "deepspeed_config_file: '{\"zero_optimization\": {}}'"
HEAD = "distributed_type: DEEPSPEED\nnum_processes: 4\nmain_process_port: 0\n"

SOUND = {
    "stage 3": "deepspeed_config: {zero_stage: 3, zero3_init_flag: true, zero3_save_16bit_model: true}\n",
    "quoted": "deepspeed_config: {zero_stage: '2', gradient_accumulation_steps: 4}\nmixed_precision: 'no'\n",
    "offload": "deepspeed_config: {zero_stage: 3, offload_optimizer_device: CPU, offload_param_device: nvme,\n"
    "  offload_param_nvme_path: /nvme, gradient_clipping: 0.5}\nmixed_precision: bf16\n",
    "inside": "deepspeed_config: {zero_stage: 1, mixed_precision: fp16}\n",
    "empty": "deepspeed_config: {}\n",
    "no clipping": "deepspeed_config: {zero_stage: 2, gradient_clipping: 0.0}\n",
    "unknown": "deepspeed_config: {zero_stage: 2, offload_params_device: cpu}\n",
    "dropped path": "deepspeed_config: {zero_stage: 2, offload_optimizer_nvme_path: /nvme}\n",
    "file": f"deepspeed_config: {{{FILE}, zero3_init_flag: false}}\n",
}
REFUSED = {
    "other type": ("distributed_type: deepspeed\ndeepspeed_config: {zero_stage: 2}\n", "ACC001"),
    "no type": ("deepspeed_config: {zero_stage: 2}\n", "ACC001"),
    "top": (f"{HEAD}deepspeed_config: {{zero_stage: 2}}\nzero3_init_flag: true\n", "ACC003"),
    "clash": (f"{HEAD}deepspeed_config: {{{FILE}, zero_stage: 2}}\n", "ACC005"),
    "precision beside a file": (f"{HEAD}mixed_precision: 'no'\ndeepspeed_config: {{{FILE}}}\n", "ACC005"),
    "stage": (f"{HEAD}deepspeed_config: {{zero_stage: 2.0}}\n", "ACC007"),
    "accumulation": (f"{HEAD}deepspeed_config: {{zero_stage: 2, gradient_accumulation_steps: 2.0}}\n", "ACC007"),
    "clipping": (f"{HEAD}deepspeed_config: {{zero_stage: 2, gradient_clipping: none}}\n", "ACC007"),
    "flag": (f"{HEAD}deepspeed_config: {{zero_stage: 2, zero3_init_flag: maybe}}\n", "ACC007"),
    "unquoted": (f"{HEAD}deepspeed_config: {{zero_stage: 2}}\nmixed_precision: no\n", "ACC007"),
    "off": (f"{HEAD}deepspeed_config: {{zero_stage: 2}}\nmixed_precision: off\n", "ACC007"),
    "precision": (f"{HEAD}deepspeed_config: {{zero_stage: 2}}\nmixed_precision: fp32\n", "ACC007"),
    "section": (f"{HEAD}deepspeed_config: [1]\n", "ACC007"),
    "no zero": (f"{HEAD}deepspeed_config: {{deepspeed_config_file: '{{\"fp16\": {{}}}}'}}\n", "ACC014"),
}
MISSING = f"{HEAD}deepspeed_config: {{deepspeed_config_file: no-such-file.json}}\n"

ASK = """
import dataclasses, json, os, sys
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DeepSpeedPlugin, DistributedType
from accelerate.utils.constants import DEEPSPEED_MULTINODE_LAUNCHERS
from accelerate.utils.launch import prepare_deepspeed_cmd_env
asked = json.load(sys.stdin)
parser = launch_command_parser()
names = {action.dest for action in parser._actions}
told = {
    "top": [field.name for field in dataclasses.fields(ClusterConfig)],
    "arguments": sorted(names),
    "types": [each.value for each in DistributedType],
    "launchers": DEEPSPEED_MULTINODE_LAUNCHERS,
    "configs": {},
}
for name, text in asked.items():
    with open("config.yaml", "w") as stream:
        stream.write(text)
    for variable in [each for each in os.environ if each.startswith("ACCELERATE")]:
        del os.environ[variable]
    try:
        args = parser.parse_args(["--config_file", "config.yaml", "train.py"])
        args, config, precision = _validate_launch_command(args)
        fields = list(config.deepspeed_config.keys()) + (["mixed_precision"] if precision else [])
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = prepare_deepspeed_cmd_env(args)
        os.environ.update({each: value for each, value in environment.items() if each.startswith("ACCELERATE")})
        plugin = DeepSpeedPlugin()
        plugin.set_mixed_precision(os.environ["ACCELERATE_MIXED_PRECISION"])
        int(os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 1))  # Accelerator.__init__ does
        told["configs"][name] = {**plugin.deepspeed_config, "steps_per_print": None}
    except Exception as error:
        told["configs"][name] = f"{type(error).__name__}: {error}"
json.dump(told, open("told", "w"))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if importlib.util.find_spec("accelerate") is None or importlib.util.find_spec("deepspeed") is None:
        pytest.skip("the real accelerate is asked; install the extra `train`")
    folder = tmp_path_factory.mktemp("accelerate")
    asked = {name: HEAD + text for name, text in SOUND.items()}
    asked.update({name: text for name, (text, _) in REFUSED.items()}, missing=MISSING)
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps(asked),
        env={**os.environ, "DS_ACCELERATOR": "cpu", "HF_HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads((folder / "told").read_text())
    return answer


def test_the_names_are_accelerates(told: dict[str, Any]) -> None:
    assert set(told["top"]) == TOP_KEYS
    assert set(told["types"]) == set(DISTRIBUTED_TYPES)
    assert set(told["launchers"]) <= set(LAUNCHERS)
    prefixes = ("deepspeed_", "zero", "offload_", "gradient_")
    known = {name for name in told["arguments"] if name.startswith(prefixes)}
    assert known == KEYS


def test_every_type_is_known_here(told: dict[str, Any]) -> None:
    assert len(told["types"]) == len(DISTRIBUTED_TYPES)


@pytest.mark.parametrize("name", REFUSED)
def test_what_accelerate_refuses_is_an_error(name: str, told: dict[str, Any], tmp_path: Path) -> None:
    assert isinstance(told["configs"][name], str), told["configs"][name]
    text, code = REFUSED[name]
    linted = lint_bytes(text.encode(), str(tmp_path / "config.yaml"), Options())
    assert linted is not None
    assert code in {each.code for each in linted.findings if each.severity.value == "error"}


@pytest.mark.parametrize("name", SOUND)
def test_what_accelerate_takes_is_no_error(name: str, told: dict[str, Any], tmp_path: Path) -> None:
    assert isinstance(told["configs"][name], dict), told["configs"][name]
    linted = lint_bytes((HEAD + SOUND[name]).encode(), str(tmp_path / "config.yaml"), Options())
    assert linted is not None
    errors = {each.code for each in linted.findings if each.severity.value == "error"}
    # What accelerate ignores is no error to it, which is why it is one here.
    assert not {code for code in errors if code.startswith("ACC")} - {"ACC004", "ACC010"}


@pytest.mark.parametrize("name", [name for name in SOUND if name != "file"])
def test_the_config_is_the_one_that_accelerate_makes(name: str, told: dict[str, Any]) -> None:
    made = told["configs"][name]
    document = read_yaml_text(HEAD + SOUND[name], "config.yaml")
    ours = accelerates_config(document.value)
    for path in ("stage", "offload_optimizer.device", "offload_param.device", "offload_param.nvme_path"):
        theirs, mine = made["zero_optimization"], ours["zero_optimization"]
        for part in path.split("."):
            theirs, mine = (theirs or {}).get(part), (mine or {}).get(part)
        assert mine == theirs or (mine is None and theirs == "none"), path
    assert ours["gradient_accumulation_steps"] == made["gradient_accumulation_steps"]
    assert ours["gradient_clipping"] == made.get("gradient_clipping", 0.0)
    for precision in ("fp16", "bf16"):
        assert ours[precision]["enabled"] in ("auto", made[precision]["enabled"])


def test_a_missing_file_is_refused_where_it_is_missing(told: dict[str, Any]) -> None:
    assert told["configs"]["missing"].startswith("ValueError: Expected a string path to an existing deepspeed config")


AUTOS: dict[str, dict[str, Any]] = {
    "filled": {"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}},
    "accelerates own": {
        "zero_optimization": {"stage": "auto", "offload_param": {"device": "auto", "nvme_path": "auto"}}
    },
    "gathering": {"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": "auto"}},
    "printing": {"zero_optimization": {}, "steps_per_print": "auto"},
    "left": {"zero_optimization": {"overlap_comm": "auto"}},
    "left below": {"zero_optimization": {"offload_optimizer": {"device": "none", "pin_memory": "auto"}}},
    "another name": {"zero_optimization": {"gather_16bit_weights_on_model_save": "auto"}},
    "old name": {"zero_optimization": {}, "bfloat16": {"enabled": "auto"}},
    "deepspeeds own": {"zero_optimization": {}, "data_types": {"keep_in_fp32_modules": "auto"}},
    "parameter": {"zero_optimization": {}, "optimizer": {"type": "AdamW", "params": {"torch_adam": "auto"}}},
    "section": {"zero_optimization": {"offload_optimizer": "auto"}},
    "switch": {"zero_optimization": True},
    "no zero": {},
}
ASK_AUTO = """
import json, sys
from accelerate.utils import DeepSpeedPlugin
asked, filled = json.load(sys.stdin)
told = {}
for name, config in asked.items():
    try:
        # as Accelerator and its prepare do
        plugin = DeepSpeedPlugin(hf_ds_config=config)
        plugin.set_mixed_precision("no")
        plugin.deepspeed_config_process(must_match=False, **dict.fromkeys(filled, 1))
        told[name] = None
    except Exception as error:
        told[name] = f"{type(error).__name__}: {error}"
json.dump(told, open("told", "w"))
"""


def test_autos_that_are_left_stop_accelerate(tmp_path: Path) -> None:
    if importlib.util.find_spec("accelerate") is None or importlib.util.find_spec("deepspeed") is None:
        pytest.skip("the real accelerate is asked; install the extra `train`")
    asked = {
        name: {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": "auto", **config}
        for name, config in AUTOS.items()
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK_AUTO],
        input=json.dumps([asked, sorted(FILLED_BY_TRAINER)]),
        env={**os.environ, "DS_ACCELERATOR": "cpu", "HF_HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, answer in json.loads((tmp_path / "told").read_text()).items():
        linted = lint_bytes(json.dumps(asked[name]).encode(), "ds_config.json", Options())
        assert linted is not None
        errors = {each.code for each in linted.findings if each.severity.value == "error"}
        assert errors <= {"AUT002", "ACC014", "ZRO006"}
        assert bool(errors) == (answer is not None), (name, answer, errors)
