from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgen.findings import FindingsError
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve import resolve
from dsgen.recipe.resolve.batch import decide_batch, decide_steps
from dsgen.recipe.resolve.ledger import SAID, Ledger
from dsgen.recipe.resolve.said import as_read
from dsgen.recipe.schema import Batch, Length

from .conftest import Plans

# Llama 2 7B: 32 layers of 4 x 4096 x 4096 + 3 x 4096 x 11008 + 2 x 4096 elements, two matrices of 32000 x 4096
LAYER = 202_383_360
MATRIX = 131_072_000
TOTAL = 6_738_415_616
# rank 8 beside the 7 matrices of each layer: 8 x (4 x 8192 + 3 x 15104) x 32
LORA = 19_988_480

TINY = json.dumps(
    {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 300,
    }
)
# 2 x 300 x 64 + 2 x (4 x 64 x 64 + 3 x 64 x 96 + 2 x 64) + 64
TINY_LAYER = 34_944
TINY_TOTAL = 108_352
SHORT = "{sequence_length: 16, micro: 1, global: 64}"


def reason(plan: Plan, path: str) -> str:
    return next(each.reason for each in plan.decisions if each.path == path)


def leaves(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        inner = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            yield from leaves(value, inner)
        else:
            yield inner, value


VARIETY: list[dict[str, str]] = [
    {},
    {"zero": "{stage: 0}"},
    {"zero": "{stage: 1}"},
    {"zero": "{stage: 1}", "precision": "{type: bf16, accumulate: fp32}"},
    {"zero": "{stage: 3}"},
    {"zero": "{stage: 3, offload: {optimizer: cpu, parameters: {device: nvme, path: /fast}}}"},
    {"zero": "{stage: 2, offload: {optimizer: cpu}, zenflow: null, reduce_bucket_size: 1e6, overlap_comm: null}"},
    {"zero": "{stage: 2, offload: {optimizer: cpu}, offload_optimizer: {pin_memory: false}}"},
    {"precision": "fp16"},
    {"precision": "{type: fp16, loss_scale: 128}"},
    {"precision": "fp32"},
    {"precision": "fp32", "zero": "{stage: 0}"},
    {"schedule": "{type: WarmupCosineLR}"},
    {"schedule": "{type: WarmupDecayLR, warmup_num_steps: 10.0}"},
    {"schedule": "{type: WarmupLR}", "length": "{epochs: 1.5}"},
    {"schedule": "{type: OneCycle, cycle_min_lr: 1e-6, cycle_max_lr: 1e-5, cycle_first_step_size: 50.0}"},
    {"adapter": "{rank: 8}"},
    {"optimizer": "{type: Lion, lr: 1e-5}"},
    {"optimizer": "{type: Muon, lr: 1e-3}"},
    {"hardware": "{device: cpu, per_node: 2}"},
    {"hardware": "{device: ascend-910a-32g}", "precision": "fp16"},
    {
        "hardware": "{device: cuda-a100-80g}",
        "deepspeed": "{wandb: {enabled: true}, bfloat16: {check_grad_overflow: false}}",
    },
]


@pytest.mark.parametrize("fields", VARIETY, ids=str)
def test_every_value_is_written_out_with_its_reason(fields: dict[str, str], plan_of: Plans) -> None:
    plan = plan_of(**fields)
    decisions = {each.path: each for each in plan.decisions}
    assert len(decisions) == len(plan.decisions)
    assert all(each.reason.strip() for each in plan.decisions)
    for path, value in leaves(plan.ds_config):
        assert value is not None and value != "auto", path
        assert decisions[path].value == value
        assert type(decisions[path].value) is type(value)
    json.dumps(plan.ds_config, allow_nan=False)
    for key in ("gradient_clipping", "steps_per_print", "train_batch_size"):
        assert key in plan.ds_config
    for variable in plan.environment:
        assert variable.reason
        assert decisions[f"environment.{variable.name}"].value == variable.value


@pytest.mark.parametrize("fields", VARIETY, ids=str)
def test_the_same_recipe_gives_the_same_plan(fields: dict[str, str], plan_of: Plans) -> None:
    assert plan_of(**fields) == plan_of(**fields)


# ---- batch and length


@given(
    micro=st.integers(1, 64), accumulation=st.integers(1, 64), ranks=st.integers(1, 4096), left_out=st.integers(0, 3)
)
def test_batch_identity(micro: int, accumulation: int, ranks: int, left_out: int) -> None:
    """Whichever is left out comes back; all three are as DeepSpeed computes them."""
    total = micro * accumulation * ranks
    said: list[int | None] = [micro, accumulation, total]
    if left_out < 3:
        said[left_out] = None
    batch = Batch.model_validate({"sequence_length": 8, "micro": said[0], "accumulation": said[1], "global": said[2]})
    ledger = Ledger()
    assert decide_batch(batch, ranks, ledger) == (micro, accumulation, total)
    reasons = [each.reason for each in ledger.decisions()]
    assert sum(each != SAID for each in reasons) == (left_out < 3)


@pytest.mark.parametrize(
    ("batch", "hardware", "expected"),
    [
        ("{sequence_length: 8, micro: 2, global: 64}", "{device: ascend-910b3, per_node: 8}", (2, 4, 64)),
        ("{sequence_length: 8, micro: 2, accumulation: 3}", "{device: ascend-910b3, per_node: 8}", (2, 3, 48)),
        ("{sequence_length: 8, accumulation: 4, global: 256}", "{device: ascend-910b3, nodes: 2}", (4, 4, 256)),
        ("{sequence_length: 8, micro: 1, global: 1}", "{device: cpu}", (1, 1, 1)),
    ],
)
def test_batch_in_the_plan(batch: str, hardware: str, expected: tuple[int, int, int], plan_of: Plans) -> None:
    plan = plan_of(batch=batch, hardware=hardware)
    assert (plan.micro_batch, plan.accumulation, plan.global_batch) == expected
    assert plan.global_batch == plan.micro_batch * plan.accumulation * plan.data_parallel
    config = plan.ds_config
    assert config["train_micro_batch_size_per_gpu"] == expected[0]
    assert config["gradient_accumulation_steps"] == expected[1]
    assert config["train_batch_size"] == expected[2]


@pytest.mark.parametrize(
    ("length", "steps"),
    [
        ({"steps": 7}, 7),
        ({"tokens": "1M"}, 8),  # 131,072 tokens a step: 7.63
        ({"tokens": 131_072}, 1),
        ({"tokens": 131_073}, 2),
        ({"epochs": 2}, None),
    ],
)
def test_steps(length: dict[str, Any], steps: int | None) -> None:
    ledger = Ledger()
    assert decide_steps(Length.model_validate(length), 64 * 2048, ledger) == steps
    assert [each.value for each in ledger.decisions()] == ([] if steps is None else [steps])


# ---- precision


@pytest.mark.parametrize(
    ("precision", "stage", "accumulation", "expected"),
    [
        ("bf16", 0, 8, "bf16"),
        ("bf16", 1, 8, "bf16"),
        ("bf16", 2, 8, "fp32"),
        ("bf16", 2, 1, "fp32"),
        ("bf16", 3, 8, "fp32"),
        ("bf16", 3, 1, "bf16"),
        ("fp16", 0, 8, "fp16"),
        ("fp16", 2, 8, "fp32"),
        ("fp32", 0, 8, "fp32"),
        ("fp32", 3, 1, "fp32"),
        ("{type: bf16, accumulate: bf16}", 2, 8, "bf16"),
        ("{type: bf16, accumulate: fp32}", 3, 1, "fp32"),
    ],
)
def test_accumulation_type(precision: str, stage: int, accumulation: int, expected: str, plan_of: Plans) -> None:
    plan = plan_of(
        precision=precision,
        zero=f"{{stage: {stage}}}",
        batch=f"{{sequence_length: 8, micro: 1, accumulation: {accumulation}}}",
    )
    assert plan.accumulate == expected
    assert plan.ds_config.get("data_types", {}).get("grad_accum_dtype", "fp32") == expected


def test_sums_of_an_offloaded_optimizer_leave_the_device(plan_of: Plans) -> None:
    plan = plan_of(precision="bf16", zero="{stage: 2, offload: {optimizer: cpu}}")
    assert plan.accumulate == "bf16"
    assert "bf16 sums go to host memory" in reason(plan, "data_types.grad_accum_dtype")
    assert plan_of(precision="fp16", zero="{stage: 2, offload: {optimizer: cpu}}").accumulate == "fp16"
    assert plan_of(precision="bf16", zero="{stage: 2, offload: {optimizer: none}}").accumulate == "fp32"


def test_precision_sections(plan_of: Plans) -> None:
    assert plan_of(precision="bf16").ds_config["bf16"] == {"enabled": True, "check_grad_overflow": True}
    fp32 = plan_of(precision="fp32").ds_config
    assert not {"bf16", "fp16", "data_types"} & set(fp32)
    assert plan_of(precision="fp16").ds_config["fp16"] == {
        "enabled": True,
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "min_loss_scale": 1,
    }
    old = plan_of(precision="{type: fp16, hysteresis: 4}", hardware="{device: ascend-910a-32g}").ds_config["fp16"]
    assert (old["initial_scale_power"], old["loss_scale_window"], old["hysteresis"]) == (12, 500, 4)
    fixed = plan_of(precision="{type: fp16, loss_scale: 128}").ds_config["fp16"]
    assert fixed == {"enabled": True, "loss_scale": 128.0}


# ---- zero


def test_stage_0(plan_of: Plans) -> None:
    assert plan_of(zero="{stage: 0}").ds_config["zero_optimization"] == {"stage": 0}


@pytest.mark.parametrize("stage", [1, 2])
def test_stages_1_and_2(stage: int, plan_of: Plans) -> None:
    plan = plan_of(zero=f"{{stage: {stage}}}")
    assert plan.ds_config["zero_optimization"] == {
        "stage": stage,
        "contiguous_gradients": True,
        "overlap_comm": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 50_000_000,
        "allgather_bucket_size": 50_000_000,
    }
    assert "ten times the memory" in reason(plan, "zero_optimization.reduce_bucket_size")


def test_stage_1_in_bf16_with_fp32_accumulation_is_another_optimizer(plan_of: Plans) -> None:
    plan = plan_of(zero="{stage: 1}", precision="{type: bf16, accumulate: fp32}")
    assert plan.ds_config["zero_optimization"] == {"stage": 1, "allgather_bucket_size": 50_000_000}
    offloaded = plan_of(zero="{stage: 1, offload: {optimizer: cpu}}", precision="{type: bf16, accumulate: fp32}")
    assert "reduce_bucket_size" in offloaded.ds_config["zero_optimization"]


def test_stage_3(plan_of: Plans) -> None:
    plan = plan_of(zero="{stage: 3}")
    assert plan.parameters.per_layer == LAYER and plan.parameters.total == TOTAL
    assert plan.ds_config["zero_optimization"] == {
        "stage": 3,
        "contiguous_gradients": True,
        "overlap_comm": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 50_000_000,
        "sub_group_size": 100_000_000,
        "stage3_prefetch_bucket_size": 50_000_000,
        "stage3_param_persistence_threshold": 40_960,
        "stage3_max_live_parameters": 1_000_000_000,
        "stage3_max_reuse_distance": 1_000_000_000,
        "stage3_gather_16bit_weights_on_model_save": True,
    }


def test_stage_3_where_memory_is_short(plan_of: Plans) -> None:
    offloaded = plan_of(zero="{stage: 3, offload: {optimizer: cpu, parameters: cpu}}")
    assert offloaded.ds_config["zero_optimization"]["stage3_max_live_parameters"] == 2 * LAYER + MATRIX
    small = plan_of(zero="{stage: 3}", hardware="{device: cuda-rtx4090-24g, per_node: 8}")
    assert small.ds_config["zero_optimization"]["stage3_max_reuse_distance"] == 2 * LAYER + MATRIX
    assert "cuda-rtx4090-24g is small" in reason(small, "zero_optimization.stage3_max_live_parameters")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sizes_fit_a_small_model(stage: int, plan_of: Plans) -> None:
    plan = plan_of(model=TINY, batch=SHORT, zero=f"{{stage: {stage}}}")
    assert plan.trainable_parameters == plan.parameters.total == TINY_TOTAL
    section = plan.ds_config["zero_optimization"]
    expected = {
        "reduce_bucket_size": TINY_TOTAL,
        "allgather_bucket_size": TINY_TOTAL,
        "sub_group_size": TINY_TOTAL,
        "stage3_prefetch_bucket_size": TINY_LAYER,
        "stage3_param_persistence_threshold": 640,
        "stage3_max_live_parameters": TINY_TOTAL,
        "stage3_max_reuse_distance": TINY_TOTAL,
    }
    for key, value in expected.items():
        if key in section:
            assert section[key] == value
            assert type(section[key]) is int
    assert ("sub_group_size" in section) == (stage == 3)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sizes_fit_an_adapter(stage: int, plan_of: Plans) -> None:
    plan = plan_of(adapter="{rank: 8}", zero=f"{{stage: {stage}}}")
    assert plan.trainable_parameters == LORA
    section = plan.ds_config["zero_optimization"]
    assert section["reduce_bucket_size"] == LORA
    assert section.get("allgather_bucket_size", LORA) == LORA
    assert section.get("sub_group_size", LORA) == LORA
    assert section.get("stage3_max_live_parameters", 10**9) == 10**9
    assert plan.adapter is not None
    assert plan.adapter.alpha == 16.0
    assert plan.adapter.targets == ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize(
    ("hardware", "overlap", "why"),
    [
        ("{device: ascend-910b3, per_node: 8}", True, "while the backward pass goes on"),
        ("{device: ascend-910b3, per_node: 1}", False, "one rank"),
        ("{device: cpu, per_node: 2}", False, "no streams"),
    ],
)
def test_overlap(hardware: str, overlap: bool, why: str, plan_of: Plans) -> None:
    plan = plan_of(hardware=hardware)
    assert plan.ds_config["zero_optimization"]["overlap_comm"] is overlap
    assert why in reason(plan, "zero_optimization.overlap_comm")


def test_what_the_recipe_says_wins_under_the_documented_name(plan_of: Plans) -> None:
    plan = plan_of(zero="{stage: 3, max_live_parameters: 1e8, overlap_comm: false, zenflow: null}")
    section = plan.ds_config["zero_optimization"]
    assert section["stage3_max_live_parameters"] == 100_000_000
    assert type(section["stage3_max_live_parameters"]) is int
    assert section["overlap_comm"] is False
    assert not {"max_live_parameters", "zenflow"} & set(section)
    assert reason(plan, "zero_optimization.stage3_max_live_parameters") == SAID


@pytest.mark.parametrize(
    ("zero", "hardware", "expected"),
    [
        ("{stage: 2, offload: {optimizer: cpu}}", "{device: ascend-910b3}", {"device": "cpu", "pin_memory": True}),
        (
            "{stage: 2, offload: {optimizer: {device: cpu, pin_memory: false}}}",
            "{device: ascend-910b3}",
            {"device": "cpu", "pin_memory": False},
        ),
        ("{stage: 2, offload: {optimizer: cpu}}", "{device: cpu}", {"device": "cpu", "pin_memory": False}),
        (
            "{stage: 3, offload: {optimizer: {device: nvme, path: /fast, buffer_count: 5}}, "
            "offload_optimizer: {fast_init: true}}",
            "{device: ascend-910b3}",
            {"device": "nvme", "pin_memory": True, "nvme_path": "/fast", "buffer_count": 5, "fast_init": True},
        ),
        ("{stage: 2, offload: {optimizer: none}}", "{device: ascend-910b3}", None),
    ],
)
def test_offload(zero: str, hardware: str, expected: dict[str, Any] | None, plan_of: Plans) -> None:
    plan = plan_of(zero=zero, hardware=hardware)
    assert plan.ds_config["zero_optimization"].get("offload_optimizer") == expected
    assert plan.offload_optimizer == (expected["device"] if expected else "none")


# ---- optimizer and schedule


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (
            "{type: adamw, lr: 1e-5}",
            {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}},
        ),
        (
            "{type: Lion, lr: 1e-4, weight_decay: 1}",
            {"type": "Lion", "params": {"lr": 1e-4, "betas": [0.9, 0.999], "weight_decay": 1}},
        ),
        (
            "{type: Adagrad, lr: 1e-2}",
            {"type": "Adagrad", "params": {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0}},
        ),
        ("{type: Muon, lr: 1e-3, momentum: 0.9}", {"type": "Muon", "params": {"lr": 1e-3, "momentum": 0.9}}),
    ],
)
def test_optimizer(optimizer: str, expected: dict[str, Any], plan_of: Plans) -> None:
    assert plan_of(optimizer=optimizer).ds_config["optimizer"] == expected


@pytest.mark.parametrize(
    ("schedule", "length", "params"),
    [
        (
            "{type: WarmupCosineLR}",
            "{steps: 1000}",
            {
                "total_num_steps": 1000,
                "warmup_num_steps": 30,
                "warmup_type": "linear",
                "warmup_min_ratio": 0.0,
                "cos_min_ratio": 0.0001,
            },
        ),
        (
            "{type: WarmupDecayLR, warmup_num_steps: 5.0}",
            "{steps: 100}",
            {
                "total_num_steps": 100,
                "warmup_num_steps": 5,
                "warmup_type": "linear",
                "warmup_min_lr": 0.0,
                "warmup_max_lr": 2e-5,
            },
        ),
        (
            "{type: WarmupLR}",
            "{epochs: 3}",
            {"warmup_num_steps": 100, "warmup_type": "linear", "warmup_min_lr": 0.0, "warmup_max_lr": 2e-5},
        ),
        (
            "{type: WarmupLR, warmup_type: log, warmup_max_lr: 2e-5}",
            "{steps: 3}",
            {"warmup_num_steps": 2, "warmup_type": "log", "warmup_min_lr": 0.0, "warmup_max_lr": 2e-5},
        ),
        (
            "{type: OneCycle, cycle_min_lr: 1e-6, cycle_max_lr: 1e-5, cycle_first_step_size: 50.0}",
            "{steps: 100}",
            {"cycle_min_lr": 1e-6, "cycle_max_lr": 1e-5, "cycle_first_step_size": 50},
        ),
    ],
)
def test_schedule(schedule: str, length: str, params: dict[str, Any], plan_of: Plans) -> None:
    section = plan_of(schedule=schedule, length=length).ds_config["scheduler"]
    assert section["params"] == params
    assert all(type(section["params"][name]) is type(value) for name, value in params.items())


def test_a_constant_rate_has_no_scheduler(plan_of: Plans) -> None:
    assert "scheduler" not in plan_of(schedule="{type: constant}").ds_config
    plan = plan_of()
    assert "scheduler" not in plan.ds_config
    assert reason(plan, "scheduler") == "a constant learning rate"


# ---- the rest of ds_config.json


def test_clipping_and_printing(plan_of: Plans) -> None:
    assert plan_of().ds_config["gradient_clipping"] == 1.0
    assert plan_of(gradient_clipping="0").ds_config["gradient_clipping"] == 0.0
    assert plan_of(deepspeed="{gradient_clipping: 0.5}").ds_config["gradient_clipping"] == 0.5
    assert plan_of().ds_config["steps_per_print"] == 10
    assert plan_of(logging="{every: 50}").ds_config["steps_per_print"] == 50


def test_raw_keys_come_last(plan_of: Plans) -> None:
    plan = plan_of(
        deepspeed="{steps_per_print: 7, zero_optimization: {max_live_parameters: 1e6}, "
        "bfloat16: {check_grad_overflow: false}, tensorboard: {enabled: true}}",
        zero="{stage: 3}",
    )
    config = plan.ds_config
    assert config["steps_per_print"] == 7
    assert config["zero_optimization"]["stage3_max_live_parameters"] == 1_000_000
    assert "max_live_parameters" not in config["zero_optimization"]
    assert config["bf16"] == {"enabled": True, "check_grad_overflow": False}
    assert "bfloat16" not in config
    assert config["tensorboard"] == {"enabled": True}
    for path in ("steps_per_print", "zero_optimization.stage3_max_live_parameters", "tensorboard.enabled"):
        assert reason(plan, path) == "a raw key of the recipe"


def test_keys_as_deepspeed_reads_them() -> None:
    read = as_read(
        {
            "zero_optimization": {"max_live_parameters": 1e6, "sub_group_size": 10},
            "gradient_clipping": 1.0,
            "tensor_parallel": {"partition_config": {"a.b": 1.0}},
            "steps_per_print": None,
        }
    )
    assert read == {
        "zero_optimization": {"stage3_max_live_parameters": 1_000_000, "sub_group_size": 10},
        "gradient_clipping": 1.0,
        "tensor_parallel": {"partition_config": {"a.b": 1.0}},
        "steps_per_print": None,
    }
    assert type(read["gradient_clipping"]) is float
    assert type(read["zero_optimization"]["stage3_max_live_parameters"]) is int
    assert as_read({"warmup_num_steps": 10.0}, "scheduler.params") == {"warmup_num_steps": 10}


# ---- environment


A2 = {
    "CPU_AFFINITY_CONF": "1",
    "DEEPSPEED_TIMEOUT": "35",
    "DS_ACCELERATOR": "npu",
    "HCCL_BUFFSIZE": "200",
    "HCCL_CONNECT_TIMEOUT": "600",
    "HCCL_EVENT_TIMEOUT": "1868",
    "HCCL_EXEC_TIMEOUT": "1836",
    "HCCL_IF_BASE_PORT": "22688",  # 20000 + 32 x (CRC-32 of "job" modulo 375, which is 84)
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "24",  # 192 cores, 8 ranks
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
    "TASK_QUEUE_ENABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
OLD = {key: value for key, value in A2.items() if key not in ("HCCL_EVENT_TIMEOUT", "PYTORCH_NPU_ALLOC_CONF")}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, A2),
        (
            {"hardware": "{device: ascend-910b3, nodes: 2, hosts: [a, b]}"},
            {**A2, "HCCL_CONNECT_TIMEOUT": "1800"},
        ),
        (
            {"hardware": "{device: ascend-910a-32g, cores: 96}", "precision": "fp16"},
            {**OLD, "HCCL_BUFFSIZE": "100", "OMP_NUM_THREADS": "12"},
        ),
        (
            {"hardware": "{device: cuda-a100-80g}"},
            {
                "DS_ACCELERATOR": "cuda",
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "16",
                "PYTORCH_ALLOC_CONF": "expandable_segments:True",
                "TOKENIZERS_PARALLELISM": "false",
            },
        ),
        (
            {"hardware": "{device: cpu, per_node: 2, cores: 5}", "tokenizer": "bytes"},
            {
                "DS_ACCELERATOR": "cpu",
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "2",
                "TOKENIZERS_PARALLELISM": "false",
            },
        ),
        (
            {"hardware": "{device: cpu, per_node: 4, cores: 2}", "tokenizer": "some/hub-name"},
            {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        ),
    ],
)
def test_environment(fields: dict[str, str], expected: dict[str, str], plan_of: Plans) -> None:
    plan = plan_of(**fields)
    assert {each.name: each.value for each in plan.environment} == expected
    assert [each.name for each in plan.environment] == sorted(expected)


def test_weights_from_a_hub_need_the_hub(plan_of: Plans) -> None:
    names = {each.name for each in plan_of(weights="meta/llama").environment}
    assert "HF_HUB_OFFLINE" not in names
    assert "HF_HUB_OFFLINE" in {each.name for each in plan_of(weights="./weights").environment}


def test_what_the_recipe_says_wins_and_the_rest_follows_it(plan_of: Plans) -> None:
    plan = plan_of(environment="{HCCL_EXEC_TIMEOUT: 3600, OMP_NUM_THREADS: 4, MY_FLAG: true, RATE: 1.5}")
    found = {each.name: each for each in plan.environment}
    assert found["HCCL_EXEC_TIMEOUT"].value == "3600"
    assert found["HCCL_EVENT_TIMEOUT"].value == "3632"
    assert found["DEEPSPEED_TIMEOUT"].value == "64"
    assert (found["OMP_NUM_THREADS"].value, found["OMP_NUM_THREADS"].reason) == ("4", SAID)
    assert (found["MY_FLAG"].value, found["RATE"].value) == ("1", "1.5")


def test_one_name_of_the_allocator_setting(plan_of: Plans) -> None:
    npu = {each.name for each in plan_of(environment="{PYTORCH_ALLOC_CONF: 'expandable_segments:True'}").environment}
    assert "PYTORCH_NPU_ALLOC_CONF" not in npu
    cuda = plan_of(hardware="{device: cuda-a100-80g}", environment="{PYTORCH_CUDA_ALLOC_CONF: 'max_split_size_mb:64'}")
    assert "PYTORCH_ALLOC_CONF" not in {each.name for each in cuda.environment}


def test_values_of_one_node_are_marked(plan_of: Plans) -> None:
    plan = plan_of(environment="{HCCL_IF_IP: 10.0.0.1}")
    assert [each.name for each in plan.environment if each.per_node] == ["HCCL_IF_IP"]


# ---- the rest of the plan


def test_hosts(plan_of: Plans) -> None:
    assert plan_of().hosts == ()
    named = plan_of(hardware="{device: ascend-910b3, hosts: [m, w]}")
    assert (named.hosts, named.nodes, named.per_node, named.world_size) == (("m", "w"), 2, 8, 16)
    unnamed = plan_of(
        hardware="{device: ascend-910b3, nodes: 3}", batch="{sequence_length: 8, micro: 1, accumulation: 1}"
    )
    assert unnamed.hosts == ("node-1", "node-2", "node-3")
    assert "placeholders" in reason(unnamed, "hardware.hosts")


@pytest.mark.parametrize(
    ("said", "every"),
    [("none", 0), ("full", 1), ("sqrt", 5), ("{every: 4}", 4)],
)
def test_activation_checkpointing(said: str, every: int, plan_of: Plans) -> None:
    assert plan_of(activation_checkpointing=said).checkpoint_every_layers == every


@pytest.mark.parametrize(("said", "tokens"), [("plain", 0), ("chunked", 1024), ("{chunk_tokens: 512}", 512)])
def test_loss(said: str, tokens: int, plan_of: Plans) -> None:
    assert plan_of(loss=said).loss_chunk_tokens == tokens


def test_what_is_said_reaches_the_plan(plan_of: Plans) -> None:
    plan = plan_of(
        data="{files: [a.jsonl, b.jsonl], mode: instruction, prompt_field: q, answer_field: a, shuffle: false}",
        evaluation="{every: 20, steps: 3}",
        checkpoint="{every_steps: 50, every: 30min, keep: 2, at_end: false}",
        memory="{reclaim_every: 10, headroom: 5%}",
        hardware="{device: ascend-910b3, host_memory: 1TiB}",
        seed="7",
    )
    assert plan.data.files == ("a.jsonl", "b.jsonl")
    assert (plan.data.mode, plan.data.prompt_field, plan.data.answer_field, plan.data.shuffle) == (
        "instruction",
        "q",
        "a",
        False,
    )
    assert (plan.evaluation_every_steps, plan.evaluation_steps) == (20, 3)
    assert (plan.save_every_steps, plan.save_every_seconds, plan.save_keep, plan.save_at_end) == (50, 1800.0, 2, False)
    assert (plan.reclaim_every_steps, plan.headroom, plan.seed) == (10, 0.05, 7)
    assert plan.host_memory_bytes == 2**40
    assert (plan.kind, plan.backend) == ("npu", "hccl")


def test_what_is_left_out(plan_of: Plans) -> None:
    plan = plan_of()
    assert (plan.save_every_steps, plan.save_every_seconds, plan.save_keep, plan.save_at_end) == (0, 0.0, 0, True)
    assert (plan.evaluation_every_steps, plan.reclaim_every_steps, plan.headroom, plan.seed) == (0, 0, 0.1, 42)
    assert (plan.tensor_parallel, plan.sequence_parallel, plan.launcher) == (1, 1, "deepspeed")
    assert (plan.weights, plan.adapter, plan.trust_remote_code) == (None, None, False)


def test_shipped_recipes_resolve(shipped_recipes: list[Path]) -> None:
    assert len(shipped_recipes) >= 9
    for path in shipped_recipes:
        checked = check_recipe(load_recipe(path))
        assert checked.findings == (), path
        section = resolve(checked).ds_config["zero_optimization"]
        assert all(type(value) is not float for value in section.values())


def test_a_key_of_zero_that_is_null_is_left_out(plan_of: Plans) -> None:
    """So --set can take a key out that another stage has no use for."""
    said = plan_of(zero="{stage: 2, sub_group_size: null, overlap_comm: null, reduce_bucket_size: 1000000}")
    section = said.ds_config["zero_optimization"]
    assert (section["overlap_comm"], section["reduce_bucket_size"]) == (True, 1_000_000)
    assert "sub_group_size" not in section
    with pytest.raises(FindingsError) as refused:
        plan_of(zero="{stage: 2, sub_group_sizes: null}")
    assert [finding.code for finding in refused.value.findings] == ["KEY001"]
