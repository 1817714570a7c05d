"""What two parsed configs of DeepSpeed must have in common to mean the same.

`meaning` brings a parsed DeepSpeedConfig into a form in which two configs that train alike are equal. Every step of it
is one difference that is allowed, with its reason.
"""

from __future__ import annotations

import copy
from typing import Any

from dsgen.rules.zero import BF16_OPTIMIZER_KEYS, STAGE_OF_KEY

Parsed = dict[str, Any]

# No code that a rendered job runs reads them: see dsgen.rules.keys.WITHOUT_EFFECT.
WITHOUT_READER = (
    "activation_checkpointing_config",
    "autotuning_config",
    "compile_config",
    "data_efficiency_config",
    "data_efficiency_enabled",
    "dataloader_drop_last",
    "disable_allgather",
    "pipeline",
)
NAMES = {
    **dict.fromkeys(("fp32", "float32", "torch.float32", "float"), "fp32"),
    **dict.fromkeys(("fp16", "float16", "torch.float16", "half"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
}
ADAM = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
OPTIMIZER_DEFAULTS: dict[str, Parsed] = {
    "adam": ADAM,
    "adamw": ADAM,
    "lion": {"lr": 1e-3, "betas": [0.9, 0.999], "weight_decay": 0.0},
    "adagrad": {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0},
    "lamb": {"lr": 1e-3},
}
SCHEDULER_DEFAULTS: dict[str, Parsed] = {
    "WarmupLR": {"warmup_min_lr": 0.0, "warmup_max_lr": None, "warmup_num_steps": 1000, "warmup_type": "log"},
    "WarmupDecayLR": {"warmup_min_lr": 0.0, "warmup_max_lr": 1e-3, "warmup_num_steps": 1000, "warmup_type": "log"},
    "WarmupCosineLR": {
        "warmup_min_ratio": 0.0,
        "warmup_num_steps": 1000,
        "warmup_type": "log",
        "cos_min_ratio": 0.0001,
    },
}
NVME_ONLY = ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pipeline_read", "pipeline_write", "fast_init")


def meaning(parsed: Parsed) -> Parsed:
    """What counts of a parsed config."""
    out = copy.deepcopy(parsed)
    for name in WITHOUT_READER:
        out.pop(name, None)
    # Only lines in the log: dsgen prints one every 10 steps where nothing is said.
    out["steps_per_print"] = out["steps_per_print"] or 10
    # Gradients are clipped where the norm is above 0.
    out["gradient_clipping"] = max(0.0, float(out["gradient_clipping"]))
    _precision(out)
    _zero(out)
    _optimizer(out)
    _monitors(out)
    return out


def _precision(out: Parsed) -> None:
    fp16, bf16 = out["float16_config"], out["bfloat16_config"]
    # A section that is off is not read.
    if not bf16["enabled"]:
        out["bfloat16_config"] = None
    if not fp16["enabled"]:
        out["float16_config"] = None
    elif fp16["loss_scale"] > 0:
        # A fixed loss scale has no dynamics.
        for name in ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"):
            del fp16[name]
    kind = "fp16" if fp16["enabled"] else "bf16" if bf16["enabled"] else "fp32"
    # runtime/engine.py, get_data_types: what is not said is the precision itself.
    out["grad_accum_dtype"] = NAMES.get(out["grad_accum_dtype"], kind)
    if not out["torch_autocast_enabled"]:
        out["torch_autocast_dtype"] = out["torch_autocast_lower_precision_safe_modules"] = None


def _zero(out: Parsed) -> None:
    zero, stage = out["zero_config"], out["zero_optimization_stage"]
    optimizer = zero.get("offload_optimizer")
    kept: Parsed = {"stage": stage}
    if stage == 0:
        # Without ZeRO nothing else of the section is read.
        out["zero_config"] = kept
        return
    offloaded = optimizer is not None and optimizer["device"] != "none"
    bf16_optimizer = (
        stage == 1 and out["bfloat16_config"] is not None and out["grad_accum_dtype"] == "fp32" and not offloaded
    )
    long = {name.removeprefix("stage3_"): name for name in STAGE_OF_KEY}
    for name, value in zero.items():
        key = long.get(name, name)
        stages = STAGE_OF_KEY.get(key)
        if name.startswith(("offload_", "cpu_offload", "stage")) or key == "legacy_stage1":
            continue
        # What DeepSpeed does not read at this stage.
        if stages is not None and (stage not in stages or (bf16_optimizer and key not in BF16_OPTIMIZER_KEYS)):
            continue
        kept[key] = value
    kept["offload_optimizer"] = _offload(optimizer, stage)
    # Only stage 3 partitions parameters.
    kept["offload_param"] = _offload(zero.get("offload_param"), stage) if stage == 3 else None
    out["zero_config"] = kept


def _offload(section: Parsed | None, stage: int) -> Parsed | None:
    if section is None or section["device"] == "none":
        return None
    section = dict(section)
    if section["device"] == "nvme" and stage < 3:
        section["device"] = "cpu"  # below stage 3 the states stay in host memory
    if section["device"] == "cpu":
        section = {name: value for name, value in section.items() if name not in (*NVME_ONLY, "pipeline")}
    if stage < 3:
        section.pop("super_offload", None)
    if not section.get("super_offload"):
        section.pop("cpuadam_cores_perc", None)
    return section


def _optimizer(out: Parsed) -> None:
    name = out["optimizer_name"]
    params = dict(out["optimizer_params"] or {})
    # Parameters that are not said have the defaults of the class.
    defaults = dict(OPTIMIZER_DEFAULTS.get(name, {}))
    if params.get("torch_adam") and (name == "adamw" or params.get("adam_w_mode", True)):
        defaults["weight_decay"] = 0.01
    out["optimizer_params"] = defaults | params
    schedule, steps = out["scheduler_name"], dict(out["scheduler_params"] or {})
    steps = SCHEDULER_DEFAULTS.get(schedule, {}) | steps
    # lr_schedules.py: a type that DeepSpeed does not know is taken as log; the last iteration is -1 before training.
    if "warmup_type" in steps and steps["warmup_type"] not in ("log", "linear"):
        steps["warmup_type"] = "log"
    if steps.get("last_batch_iteration") == -1:
        del steps["last_batch_iteration"]
    if schedule == "WarmupLR" and steps["warmup_max_lr"] is None:
        steps["warmup_max_lr"] = out["optimizer_params"].get("lr")
    out["scheduler_params"] = steps


def _monitors(out: Parsed) -> None:
    """A section that is off is not read."""
    for name, section in out["monitor_config"].items():
        if isinstance(section, dict) and not section.get("enabled"):
            out["monitor_config"][name] = None
    for name in ("hybrid_engine", "flops_profiler_config", "expert_parallel_config"):
        if not out[name].get("enabled"):
            out[name] = None
    comms = out["comms_config"]
    if not comms["comms_logger_enabled"] or not comms["comms_logger"]["enabled"]:
        out["comms_config"] = None


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Where two plain values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        for name in sorted(before.keys() | after.keys()):
            found += differences(before.get(name), after.get(name), f"{path}.{name}" if path else name)
        return found
    return [] if before == after else [f"{path}: {before!r} became {after!r}"]
