"""Imported configs mean what they meant, by the word of DeepSpeed's own parser."""

from __future__ import annotations

import contextlib
import copy
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dsgen.catalog.deepspeed_keys import load_keys
from dsgen.cli.main import main_code
from dsgen.documents.json_reader import read_json_text
from dsgen.documents.yaml_reader import read_yaml_text
from dsgen.dsconfig.imported import Import, import_config
from dsgen.dsconfig.job import job_named
from dsgen.dsconfig.recipe_from import Surroundings
from dsgen.findings import FindingsError
from dsgen.render.files import render_recipe
from dsgen.rules.view import lookup

from .same_meaning import differences, meaning

Config = dict[str, Any]

MICRO: Config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
BF16: Config = {"bf16": {"enabled": True}}
FP16: Config = {"fp16": {"enabled": True}}
ADAMW: Config = {"optimizer": {"type": "AdamW", "params": {"lr": 2e-5}}}
BASE: Config = {**MICRO, **BF16, **ADAMW}
HF_BATCH = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto"
)


def zero(stage: int, **more: Any) -> Config:
    return {"zero_optimization": {"stage": stage, **more}}


def scheduler(name: str, **params: Any) -> Config:
    return {"scheduler": {"type": name, "params": params}}


CONFIGS: dict[str, Config] = {
    "stage 0, fp32": {**MICRO, **ADAMW},
    "stage 0, bf16": {**BASE},
    "stage 1": {**BASE, **zero(1)},
    "stage 1, fp32 accumulation": {
        **BASE,
        **zero(1, allgather_bucket_size=2e8, reduce_bucket_size=1e8),
        "data_types": {"grad_accum_dtype": "torch.float32"},
    },
    "stage 1, offload, fp32 accumulation": {
        **BASE,
        **zero(1, offload_optimizer={"device": "cpu", "pin_memory": False}),
        "data_types": {"grad_accum_dtype": "fp32"},
    },
    "stage 2, everything left open": {**BASE, **zero(2)},
    "stage 2, everything said": {
        **BASE,
        **zero(
            2,
            contiguous_gradients=False,
            overlap_comm=True,
            reduce_scatter=False,
            reduce_bucket_size=2e8,
            allgather_bucket_size=536870912,
            allgather_partitions=False,
            round_robin_gradients=True,
            ignore_unused_parameters=False,
        ),
        "gradient_clipping": 0.5,
        "steps_per_print": 2000,
        "wall_clock_breakdown": True,
    },
    "stage 2 with keys of stage 3": {
        **BASE,
        **zero(2, stage3_max_live_parameters=1e8, sub_group_size=1e8, offload_param={"device": "cpu"}),
    },
    "stage 2, optimizer on nvme": {**BASE, **zero(2, offload_optimizer={"device": "nvme", "nvme_path": "/nvme"})},
    "stage 3, everything left open": {**BASE, **zero(3)},
    "stage 3, everything said": {
        **BASE,
        **zero(
            3,
            overlap_comm=False,
            sub_group_size=1e7,
            reduce_bucket_size=1000,
            stage3_prefetch_bucket_size=0,
            stage3_param_persistence_threshold=12345,
            stage3_model_persistence_threshold=99999,
            stage3_max_live_parameters=3e7,
            stage3_max_reuse_distance=4e7,
            stage3_gather_16bit_weights_on_model_save=True,
            zero_hpz_partition_size=8,
            memory_efficient_linear=False,
            leaf_module={"classes": ["a.B"], "names": ["gate"]},
        ),
    },
    "stage 3, full offload": {
        **BASE,
        **zero(
            3,
            offload_optimizer={"device": "cpu", "ratio": 0.5, "super_offload": True, "cpuadam_cores_perc": 0.7},
            offload_param={"device": "cpu", "pin_memory": False, "buffer_size": 1e7},
        ),
    },
    "stage 3, nvme": {
        **BASE,
        **zero(
            3,
            offload_optimizer={
                "device": "nvme",
                "nvme_path": "/nvme/a",
                "buffer_count": 8,
                "pipeline_read": True,
                "fast_init": True,
            },
            offload_param={"device": "nvme", "nvme_path": "/nvme/b", "buffer_size": 5e7, "max_in_cpu": 0},
        ),
        "aio": {"block_size": 262144, "queue_depth": 32, "intra_op_parallelism": 4},
    },
    "offload that is off": {
        **BASE,
        **zero(3, offload_optimizer={"device": "none"}, offload_param={"device": "none", "buffer_size": 1000}),
    },
    "old names": {
        **MICRO,
        "bfloat16": {"enabled": True},
        **ADAMW,
        **zero(
            3,
            cpu_offload=True,
            cpu_offload_param=True,
            cpu_offload_use_pin_memory=False,
            stage3_gather_fp16_weights_on_model_save=True,
        ),
    },
    "old switches that are off": {**BASE, **zero(2, cpu_offload=False)},
    "aliases": {
        **BASE,
        **zero(3, prefetch_bucket_size=1e6, max_live_parameters=2e6, gather_16bit_weights_on_model_save=True),
    },
    "a section that is just true": {**BASE, "zero_optimization": True, "allgather_size": 1000000},
    "a section that is just false": {**BASE, "zero_optimization": False},
    "fp16, dynamic": {**MICRO, **FP16, **ADAMW, **zero(2)},
    "fp16, all of the dynamic scale": {
        **MICRO,
        "fp16": {
            "enabled": True,
            "loss_scale": 0,
            "initial_scale_power": 20,
            "loss_scale_window": 500,
            "hysteresis": 4,
            "consecutive_hysteresis": True,
            "min_loss_scale": 128,
            "auto_cast": True,
        },
        **ADAMW,
        **zero(2),
    },
    "fp16, fixed": {**MICRO, "fp16": {"enabled": True, "loss_scale": 1024.0, "hysteresis": 5}, **ADAMW, **zero(3)},
    "bf16 with its switches": {
        **MICRO,
        "bf16": {
            "enabled": True,
            "check_grad_overflow": False,
            "immediate_grad_update": True,
            "bf16_master_weights_and_grads": True,
        },
        "fp16": {"enabled": False, "loss_scale": 5},
        **ADAMW,
        **zero(2, offload_optimizer={"device": "cpu"}),
        "data_types": {"grad_accum_dtype": "bf16", "param_dtype": "bf16"},
    },
    "torch_autocast": {**MICRO, **ADAMW, **zero(1), "torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
    "Adam without its parameters": {**MICRO, **BF16, "optimizer": {"type": "Adam"}, **zero(2)},
    "torch's AdamW": {
        **MICRO,
        **BF16,
        "optimizer": {"type": "adamw", "params": {"torch_adam": True, "betas": [0.8, 0.99], "eps": 1e-7}},
        **zero(2),
    },
    "Adam with L2": {
        **MICRO,
        **BF16,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "adam_w_mode": False, "weight_decay": 0.1}},
        **zero(2),
    },
    "Lion": {**MICRO, **BF16, "optimizer": {"type": "Lion", "params": {"betas": [0.9, 0.99]}}, **zero(2)},
    "Adagrad": {**MICRO, **BF16, "optimizer": {"type": "Adagrad", "params": {}}, **zero(0)},
    "Lamb, untested": {
        **MICRO,
        **FP16,
        "optimizer": {"type": "Lamb", "params": {"lr": 1e-3, "max_coeff": 8.0}, "legacy_fusion": True},
        **zero(2),
        "zero_allow_untested_optimizer": True,
    },
    "no optimizer": {**MICRO, **BF16, **zero(2)},
    "WarmupLR, left open": {**BASE, **zero(2), **scheduler("WarmupLR")},
    "WarmupLR": {
        **BASE,
        **zero(2),
        **scheduler("WarmupLR", warmup_min_lr=1e-7, warmup_max_lr=3e-5, warmup_num_steps=50, warmup_type="linear"),
    },
    "WarmupDecayLR of a type that there is not": {
        **BASE,
        **zero(2),
        **scheduler("WarmupDecayLR", total_num_steps=5000, warmup_type="cosine", last_batch_iteration=-1),
    },
    "WarmupDecayLR, left open": {**BASE, **zero(2), **scheduler("WarmupDecayLR", total_num_steps=5000)},
    "WarmupCosineLR": {
        **BASE,
        **zero(2),
        **scheduler("WarmupCosineLR", total_num_steps=5000, warmup_num_steps=10.0, cos_min_ratio=0.1),
    },
    "OneCycle": {
        **BASE,
        **scheduler("OneCycle", cycle_min_lr=1e-5, cycle_max_lr=1e-4, cycle_first_step_size=100, decay_step_size=10),
    },
    "LRRangeTest": {**BASE, **scheduler("LRRangeTest", lr_range_test_min_lr=1e-5, lr_range_test_step_size=10)},
    "global and micro": {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, **BF16, **ADAMW, **zero(2)},
    "global and accumulation": {"train_batch_size": 64, "gradient_accumulation_steps": 4, **BF16, **ADAMW, **zero(2)},
    "all three, on two nodes": {"train_batch_size": 128, **MICRO, **BF16, **ADAMW, **zero(2)},
    "only global": {"train_batch_size": 6, **BF16, **ADAMW, **zero(2)},
    "only micro": {"train_micro_batch_size_per_gpu": 3, **BF16, **ADAMW, **zero(2)},
    "clipping off": {**BASE, **zero(2), "gradient_clipping": 0.0},
    "what a recipe has no field for": {
        **BASE,
        **zero(2, reduce_scatter=False),
        "communication_data_type": "fp32",
        "prescale_gradients": True,
        "gradient_predivide_factor": 2.0,
        "zero_force_ds_cpu_optimizer": False,
        "tensorboard": {"enabled": True, "output_path": "logs", "job_name": "a b: #1"},
        "wandb": {"enabled": False, "project": "x"},
        "csv_monitor": {"enabled": True, "output_path": "csv"},
        "comms_logger": {"enabled": True, "verbose": True, "prof_ops": ["all_reduce"]},
        "flops_profiler": {"enabled": True, "profile_step": 7, "module_depth": 2},
        "checkpoint": {"tag_validation": "Fail", "load_universal": True, "parallel_write": {"pipeline_stage": True}},
        "timers": {"throughput": {"enabled": False}},
        "memory_breakdown": True,
        "dump_state": False,
    },
    "what does nothing": {
        **BASE,
        **zero(2, allgather_partitions=True),
        "activation_checkpointing": {"partition_activations": True, "number_checkpoints": 4},
        "pipeline": {"stages": 2},
        "flops_profiler": {"enabled": False, "profile_step": 9},
        "compile": {"deepcompile": True},
        "_comment": "made by hand",
        "vocabulary_size": 32000,
        "flash_attention": True,
    },
    "auto, as for the Trainer, stage 2": {
        **HF_BATCH,
        "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16},
        "bf16": {"enabled": "auto"},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        },
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": dict.fromkeys(("total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto"),
        },
        **zero(2, reduce_bucket_size="auto", overlap_comm=True, offload_optimizer={"device": "cpu"}),
        "steps_per_print": 1e5,
    },
    "auto, as for the Trainer, stage 3": {
        **HF_BATCH,
        "fp16": {"enabled": "auto", "initial_scale_power": "auto"},
        **zero(
            3,
            reduce_bucket_size="auto",
            stage3_prefetch_bucket_size="auto",
            stage3_param_persistence_threshold="auto",
            stage3_max_live_parameters=1e9,
            sub_group_size=1e9,
        ),
    },
    "auto, as for accelerate": {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {
            "stage": "auto",
            "offload_optimizer": {"device": "auto"},
            "offload_param": {"device": "auto", "nvme_path": "auto"},
            "stage3_gather_16bit_weights_on_model_save": "auto",
        },
        "torch_autocast": {"enabled": "auto"},
        "wall_clock_breakdown": "auto",
    },
    "auto at stage 1": {**MICRO, "bf16": {"enabled": "auto"}, **ADAMW, **zero(1), "gradient_clipping": "auto"},
    "values of another type": {
        **MICRO,
        "bf16": {"enabled": "true"},
        **ADAMW,
        **zero(2, reduce_bucket_size="5000", contiguous_gradients=0),
    },
}


def imported(config: Config, folder: Path, *, name: str = "job", device: str = "cuda-a100-80g", **job: Any) -> Import:
    document = read_json_text(json.dumps(config), "ds_config.json")
    said = Surroundings(name=name, model="llama-2-7b", device=device)
    return import_config(document, job_named(model="llama-2-7b", device=device, **job), said, folder / "recipe.yaml")


def filled(config: Mapping[str, Any], rendered: Mapping[str, Any]) -> Config:
    """The config with each `auto` as the rendered config has it; an `auto` that it has no need of is taken out."""

    def section(value: Mapping[str, Any], path: str) -> Config:
        out: Config = {}
        for name, inner in value.items():
            here = f"{path}.{name}" if path else name
            if isinstance(inner, Mapping):
                out[name] = section(inner, here)
            elif inner != "auto":
                out[name] = copy.deepcopy(inner)
            elif (known := lookup(rendered, load_keys().canonical(here))) is not None:
                out[name] = known
        return out

    return section(config, "")


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """What DeepSpeed makes of each config, and of the one that its recipe renders to. One process parses them all."""
    pytest.importorskip("deepspeed", reason="the real parser is asked; install the extra `train`")
    requests = []
    for index, config in enumerate(CONFIGS.values()):
        folder = tmp_path_factory.mktemp(f"config{index}")
        result = imported(config, folder)
        (folder / "recipe.yaml").write_text(result.text, encoding="utf-8")
        assert result.findings == ()
        rendered = render_recipe(folder / "recipe.yaml")
        after = json.loads(rendered.files["ds_config.json"])
        for each in (filled(config, after), after):
            requests.append({"config": each, "world_size": rendered.plan.data_parallel})
    worker = Path(__file__).parent.parent / "render" / "deepspeed_worker.py"
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    ran = subprocess.run([sys.executable, str(worker)], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    return {name: (answers[2 * i], answers[2 * i + 1]) for i, name in enumerate(CONFIGS)}


@pytest.mark.parametrize("name", CONFIGS)
def test_means_the_same(name: str, parsed: dict[str, tuple[Any, Any]]) -> None:
    before, after = parsed[name]
    assert "error" not in before, before["error"]
    assert "error" not in after, after["error"]
    one, other = meaning(before["parsed"]), meaning(after["parsed"])
    if one["optimizer_name"] is None:
        # A recipe names an optimizer; the config leaves it to the script.
        for each in (one, other):
            del each["optimizer_name"], each["optimizer_params"]
    assert differences(one, other) == []


def test_a_difference_would_be_seen(parsed: dict[str, tuple[Any, Any]]) -> None:
    """The comparison does tell configs apart that train differently."""
    seen = {name: meaning(after["parsed"]) for name, (_, after) in parsed.items()}
    for one, other, path in (
        ("stage 2, everything left open", "clipping off", "gradient_clipping"),
        ("stage 1", "stage 2, everything left open", "zero_config.stage"),
        ("fp16, dynamic", "fp16, all of the dynamic scale", "float16_config.hysteresis"),
        ("WarmupLR, left open", "WarmupLR", "scheduler_params.warmup_type"),
        ("stage 3, everything left open", "aliases", "zero_config.stage3_max_live_parameters"),
        ("stage 3, full offload", "stage 3, nvme", "zero_config.offload_param.device"),
    ):
        found = differences(seen[one], seen[other])
        assert any(line.startswith((path, path.replace("stage3_", ""))) for line in found), (one, other, found)


def test_recipe_reads_as_a_person_writes_it(tmp_path: Path) -> None:
    result = imported(CONFIGS["stage 2, everything said"], tmp_path, name="mine", world_size=16)
    assert result.text == (Path(__file__).parent / "imported.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CONFIGS)
def test_text_reads_back_as_the_recipe(name: str, tmp_path: Path) -> None:
    result = imported(CONFIGS[name], tmp_path)
    assert read_yaml_text(result.text, "recipe.yaml").value == result.imported.recipe


@pytest.mark.parametrize("name", CONFIGS)
def test_every_comment_stands_in_the_text(name: str, tmp_path: Path) -> None:
    result = imported(CONFIGS[name], tmp_path, device="ascend-910a-32g" if "fp16" in name else "cuda-a100-80g")
    behind = [line.partition("  # ")[2] for line in result.text.splitlines() if not line.startswith("#")]
    assert sorted(filter(None, behind)) == sorted(result.imported.comments.values())
    listed = {remark.path for kind in ("fill-in", "default") for remark in result.imported.of_kind(kind)}
    assert {".".join(map(str, path)) for path in result.imported.comments} >= listed - {"weights", "schedule"}


def test_every_auto_is_accounted_for(tmp_path: Path) -> None:
    for config in CONFIGS.values():
        result = imported(config, tmp_path)
        autos = set(_autos(config))
        listed = {remark.path for kind in ("decided", "derived") for remark in result.imported.of_kind(kind)}
        assert listed == autos


def _autos(config: Config) -> list[str]:
    return [".".join(path) for path in _paths(config) if lookup(config, path) == "auto"]


def test_what_is_left_out_is_listed(tmp_path: Path) -> None:
    result = imported(CONFIGS["what does nothing"], tmp_path)
    left_out = {remark.path for remark in result.imported.of_kind("left-out")}
    assert left_out == {
        "zero_optimization.allgather_partitions",
        "activation_checkpointing",
        "pipeline",
        "flops_profiler",
        "compile",
        "_comment",
        "vocabulary_size",
        "flash_attention",
    }
    assert "deepspeed" not in result.imported.recipe
    assert "# left out: pipeline: the models of train.py are no pipelines\n" in result.text


def test_old_names_are_listed(tmp_path: Path) -> None:
    result = imported(CONFIGS["old names"], tmp_path)
    assert {remark.path: remark.text for remark in result.imported.of_kind("renamed")} == {
        "bfloat16": "is bf16 today",
        "zero_optimization.cpu_offload": "is zero_optimization.offload_optimizer today",
        "zero_optimization.cpu_offload_param": "is zero_optimization.offload_param today",
        "zero_optimization.stage3_gather_fp16_weights_on_model_save": (
            "is zero_optimization.stage3_gather_16bit_weights_on_model_save today"
        ),
    }


def test_defaults_are_those_of_the_version_that_the_config_is_for(tmp_path: Path) -> None:
    config = {**BASE, **zero(2, offload_optimizer={"device": "cpu"})}
    old = imported(config, tmp_path, deepspeed="0.17.6").imported.recipe
    new = imported(config, tmp_path).imported.recipe
    assert (old["gradient_clipping"], new["gradient_clipping"]) == (0.0, 1.0)
    assert old["zero"]["offload"]["optimizer"]["pin_memory"] is False
    assert new["zero"]["offload"]["optimizer"]["pin_memory"] is True
    assert old["deepspeed"] == {"bf16": {"check_grad_overflow": False}}
    assert "deepspeed" not in new


@pytest.mark.parametrize(
    ("device", "sections", "precision"),
    [
        ("ascend-910b3-64g", ("fp16", "bf16"), "bf16"),
        ("ascend-910a-32g", ("fp16", "bf16"), "fp16"),
        ("ascend-910b3-64g", ("fp16",), "fp16"),
        ("cpu", ("fp16", "bf16"), "bf16"),
        ("cpu", ("fp16",), "fp32"),
    ],
)
def test_auto_precision_follows_the_device(
    device: str, sections: tuple[str, ...], precision: str, tmp_path: Path
) -> None:
    config = {**MICRO, **ADAMW, **zero(1), **{name: {"enabled": "auto"} for name in sections}}
    said = imported(config, tmp_path, device=device).imported.recipe["precision"]
    assert (said if isinstance(said, str) else said["type"]) == precision


@pytest.mark.parametrize(
    ("batch", "job", "ranks"),
    [
        ((128, 2, 4), {}, (8, 2)),
        ((24, 2, 4), {}, (3, 1)),
        ((64, 2, None), {}, (8, 1)),
        ((6, None, None), {}, (6, 1)),
        ((None, 2, 4), {"world_size": 32}, (8, 4)),
        ((None, 2, 4), {"world_size": 12}, (6, 2)),
    ],
)
def test_ranks_are_said_or_follow_from_the_batch(
    batch: tuple[int | None, ...], job: Config, ranks: tuple[int, int], tmp_path: Path
) -> None:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    config = {**dict(zip(names, batch, strict=True)), **BF16, **ADAMW, **zero(2)}
    config = {name: value for name, value in config.items() if value is not None}
    result = imported(config, tmp_path, **job)
    hardware = result.imported.recipe["hardware"]
    assert (hardware["per_node"], hardware["nodes"]) == ranks
    listed = {remark.path for remark in result.imported.of_kind("fill-in")}
    assert ("hardware.per_node" in listed) is (not job)


@pytest.mark.parametrize(
    ("config", "codes"),
    [
        ({**BASE, "zero_optimisation": {"stage": 3}}, {"KEY001"}),
        ({**BASE, "offload_optimizer": {"device": "cpu"}}, {"KEY009"}),
        ({**BASE, **zero(2, nonsense=1)}, {"KEY001"}),
        ({**BASE, "amp": {"enabled": False}}, {"KEY002"}),
        ({**BASE, "bfloat16": {"enabled": True}}, {"KEY006"}),
        ({**BASE, **zero(2, reduce_bucket_size=0)}, {"KEY003"}),
        ({**BASE, "train_batch_size": 3}, {"BAT003"}),
    ],
)
def test_bad_configs_are_refused(config: Config, codes: set[str], tmp_path: Path) -> None:
    with pytest.raises(FindingsError) as caught:
        imported(config, tmp_path, world_size=8)
    assert {finding.code for finding in caught.value.findings} == codes


@pytest.mark.parametrize("version", ["0.15.4", "0.19.8"])
def test_renamed_keys_get_the_name_of_today(version: str, tmp_path: Path) -> None:
    result = imported({**BASE, **zero(2), "aio": {"thread_count": 4}}, tmp_path, world_size=8, deepspeed=version)
    assert result.imported.recipe["deepspeed"]["aio"] == {"intra_op_parallelism": 4}
    assert not result.errors


def test_an_old_switch_beside_the_new_section_is_refused(tmp_path: Path) -> None:
    config = {**BASE, "zero_optimization": {"stage": 2, "cpu_offload": True, "offload_optimizer": {"device": "cpu"}}}
    with pytest.raises(FindingsError) as caught:
        imported(config, tmp_path, world_size=8)
    assert {finding.code for finding in caught.value.findings} == {"ZRO011"}


def test_what_a_recipe_cannot_say_is_no_success(tmp_path: Path) -> None:
    result = imported({**BASE, **zero(1), "tensor_parallel": {"autotp_size": 4}}, tmp_path, world_size=8)
    assert result.errors
    assert [finding.code for finding in result.findings] == ["NYB001"]
    assert result.imported.recipe["parallel"] == {"tensor": 4}


@pytest.mark.parametrize("name", ["stage 3, full offload", "auto, as for the Trainer, stage 2", "WarmupLR"])
def test_no_value_of_any_type_is_a_crash(name: str, tmp_path: Path) -> None:
    for path in _paths(CONFIGS[name]):
        for value in (None, True, "x", "auto", 0, -1.5, 10**12, [], {}, [1], {"a": 1}):
            config = copy.deepcopy(CONFIGS[name])
            section = lookup(config, path[:-1]) if path[1:] else config
            section[path[-1]] = value
            with contextlib.suppress(FindingsError):
                result = imported(config, tmp_path)
                assert read_yaml_text(result.text, "recipe.yaml").value == result.imported.recipe


def _paths(config: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in config.items():
        yield (*prefix, name)
        if isinstance(value, Mapping):
            yield from _paths(value, (*prefix, name))


def test_hjson_is_read_as_deepspeed_reads_it(tmp_path: Path) -> None:
    text = """{
      # for the Trainer
      train_micro_batch_size_per_gpu: 4
      gradient_accumulation_steps: auto
      bf16: {enabled: true}  // on A2
      zero_optimization: {stage: 3, sub_group_size: 1e9,},
    }"""
    document = read_json_text(text.replace("auto", '"auto"'), "ds.json")
    said = Surroundings(model="llama-2-7b", device="cpu")
    recipe = import_config(document, job_named(model="llama-2-7b", device="cpu"), said, None).imported.recipe
    assert recipe["batch"] == {"sequence_length": 2048, "micro": 4, "accumulation": 1}
    assert (recipe["zero"]["stage"], recipe["zero"]["sub_group_size"]) == (3, 10**9)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "ds_zero2.json"
    path.write_text(json.dumps({**BASE, **zero(2)}))
    return path


FILLED = ["--model", "llama-2-13b", "--device", "ascend-910b3-64g", "--world-size", "8", "--sequence-length", "1024"]


def test_command_writes_a_recipe_that_renders(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    assert main_code(["import", str(config_file), "-o", str(recipe), *FILLED]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith(f"{recipe} from {config_file}\n")
    assert "  data.files: the text to train on\n" in said.out
    assert "hardware" not in said.out
    assert main_code(["render", str(recipe), "-o", str(tmp_path / "out")]) == 0
    assert (
        json.loads((tmp_path / "out" / "ds_config.json").read_text())["zero_optimization"]["reduce_bucket_size"] == 5e8
    )


def test_command_prints_the_recipe(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["import", str(config_file)]) == 0
    said = capsys.readouterr()
    recipe = read_yaml_text(said.out, "recipe.yaml").value
    assert recipe["name"] == "ds_zero2"
    assert "  device: DEVICE  # please fill in: one of `dsgen devices`\n" in said.out
    assert "to fill in:\n  model: " in said.err


def test_placeholders_for_model_and_device_are_refused(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody trains another model by not looking."""
    recipe = str(tmp_path / "recipe.yaml")
    assert main_code(["import", str(config_file), "-o", recipe]) == 0
    assert main_code(["render", recipe, "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "unknown model 'MODEL'" in said
    assert "unknown device 'DEVICE'" in said
    assert "2 errors" in said


def test_command_overwrites_nothing(config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("mine\n")
    assert main_code(["import", str(config_file), "-o", str(recipe)]) == 2
    assert "exists: nothing was written" in capsys.readouterr().err
    assert recipe.read_text() == "mine\n"
    assert main_code(["import", str(config_file), "-o", str(recipe), "--force"]) == 0
    assert recipe.read_text().startswith("# Imported from ds_zero2.json")


def test_paths_count_from_the_recipe(config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    more = ["--tokenizer", "./tok", "--data", "a/*.jsonl", "--data", "/b.txt", "--weights", "org/name"]
    assert main_code(["import", str(config_file), "-o", "sub/recipe.yaml", *FILLED, *more]) == 0
    recipe = read_yaml_text((tmp_path / "sub" / "recipe.yaml").read_text(), "recipe.yaml").value
    assert recipe["tokenizer"] == "../tok"
    assert recipe["data"]["files"] == ["../a/*.jsonl", "/b.txt"]
    assert recipe["weights"] == "org/name"


def test_bad_config_is_told_as_lint_tells_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_micro_batch_size_per_gpu": 1,\n "zero_optimisation": {"stage": 3}}')
    assert main_code(["import", str(path), "-o", str(tmp_path / "recipe.yaml")]) == 1
    assert f"--> {path}:2:2" in capsys.readouterr().err
    assert not (tmp_path / "recipe.yaml").exists()


def test_json_output(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["import", str(config_file), "--format", "json", *FILLED]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["recipe"]["zero"]["stage"] == 2
    assert content["text"].startswith("# Imported from")
    assert {"kind": "fill-in", "path": "tokenizer", "text": "the model's tokenizer"} in content["remarks"]
    assert content["findings"] == []


@pytest.mark.parametrize(
    ("content", "arguments", "code", "part"),
    [
        ("[1]", [], 2, "is no ds_config.json"),
        ('{"distributed_type": "DEEPSPEED"}', [], 2, "is a config of accelerate"),
        ('{"a": ', [], 2, ""),
        ("{}", ["--world-size", "12", "--per-node", "8"], 2, "is not a multiple of --per-node 8"),
        ("{}", ["--device", "abacus"], 2, "unknown device 'abacus'"),
    ],
)
def test_wrong_use(
    content: str, arguments: list[str], code: int, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(content)
    assert main_code(["import", str(path), *arguments]) == code
    said = capsys.readouterr()
    assert part in said.err
    assert said.out == ""
