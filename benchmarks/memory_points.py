"""From a published run, in the form of `benchmarks/data/memory-points.json`, to a Plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsgen.documents.yaml_reader import read_yaml_text
from dsgen.findings import FindingsError
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import LoadedRecipe
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve import resolve

SAME_MODEL = 0.03
"""How far the parameter count of the source may be from that of the architecture."""

DEVICES = {
    "A100-80G": "cuda-a100-80g",
    "A100-40G": "cuda-a100-40g",
    "Ascend 910B3 64G": "ascend-910b3-64g",
    "H100-80G": "cuda-h100-80g",
    "V100-16G": "cuda-v100-16g",
    "V100-32G": "cuda-v100-32g",
    "4090": "cuda-rtx4090-24g",
}
OTHER_DEVICE = "cuda-h100-80g"
"""For hardware that is not in the catalogue."""
TARGETS: dict[str, Any] = {
    "all-linear": "all-linear",
    # Qwen's own names: the fused query, key and value, both output projections, gate and up.
    "c_attn,c_proj,w1,w2": "all-linear",
    "c_attn / qkv (DEFAULT)": ["q_proj", "k_proj", "v_proj"],
    "q,v": ["q_proj", "v_proj"],
    "q,k,v": ["q_proj", "k_proj", "v_proj"],
    "q,k,v,o": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "q,v,o,mlp": ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
FAMILIES = {"qwen": "qwen2", "qwen1.5": "qwen2", "qwen2": "qwen2", "qwen2.5": "qwen2", "qwen3": "qwen3"}
"""Beginning of a model's name -> its family, or the one whose shapes it has; Llama for the others."""


class NoPlanError(Exception):
    """A point that is no job of dsgen's; the text says why."""


def recipe_of(point: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe of a point. Raises NoPlanError.

    For a run by another trainer than DeepSpeed it is the recipe of the same model and batch on one device: of its plan
    only the model's part counts (benchmarks/memory_trainers.py).
    """
    own = trained_by_deepspeed(point)
    if point["act"] != "swiglu" or point.get("head", "lm") not in ("lm", None):
        raise NoPlanError("no decoder of Llama's kind")
    if own:
        _check_own(point)
    elif "bf16" not in point["precision"] and point["precision"] not in ("fp16", "fp32"):
        raise NoPlanError(f"precision {point['precision']}")
    precision = point["precision"] if own or point["precision"] in ("fp16", "fp32") else "bf16"
    per_node = min(8, point["devices"]) if own else 1
    recipe: dict[str, Any] = {
        "schema": 1,
        "name": point["id"],
        "model": model_of(point),
        "precision": {"type": precision, "accumulate": precision},
        "batch": {
            "sequence_length": point["seq"],
            "micro": point["mbs"],
            "accumulation": point["ga"],
        },
        "length": {"steps": 1},
        "zero": zero_of(point) if own else {"stage": 0},
        "activation_checkpointing": "full" if point["recompute"] == "full" else "none",
        "optimizer": {"type": "AdamW", "lr": 1e-5},
        "hardware": {
            "device": DEVICES.get(point["hw"], OTHER_DEVICE),
            "per_node": per_node,
            "nodes": -(-point["devices"] // per_node) if own else 1,
        },
        "data": {"files": "data/*.jsonl"},
        "tokenizer": "./tokenizer",
    }
    if point["method"].startswith("lora"):
        targets = TARGETS.get(point["lora"]["targets"])
        if targets is None:
            raise NoPlanError(f"adapters on {point['lora']['targets']}")
        recipe["adapter"] = {"rank": point["lora"]["r"], "targets": targets}
    return recipe


def trained_by_deepspeed(point: Mapping[str, Any]) -> bool:
    """Whether DeepSpeed's engine ran it."""
    return bool(point["framework"] == "deepspeed")


def _check_own(point: Mapping[str, Any]) -> None:
    if any(point.get(name, 1) > 1 for name in ("tp", "pp", "cp", "ep")):
        raise NoPlanError("tensor, pipeline, context or expert parallel under DeepSpeed")
    if point["dp"] != point["devices"]:
        raise NoPlanError("one model spread over several devices")
    if point["precision"] not in ("bf16", "fp16", "fp32"):
        raise NoPlanError(f"precision {point['precision']}")
    if point["recompute"] not in ("full", "none"):
        raise NoPlanError(f"recomputation {point['recompute']}")
    if point["method"] not in ("full", "lora"):
        raise NoPlanError("an adapter beside whole matrices that are trained too")


def model_of(point: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of config.json."""
    name = point["model"].lower()
    family = next(
        (FAMILIES[start] for start in sorted(FAMILIES, reverse=True) if name.startswith(f"{start}-")), "llama"
    )
    model = {
        "model_type": family,
        "hidden_size": point["hidden"],
        "intermediate_size": point["ffn"],
        "num_hidden_layers": point["layers"],
        "num_attention_heads": point["heads"],
        "num_key_value_heads": point["kv_heads"],
        "vocab_size": point["vocab"],
        "tie_word_embeddings": point["tied"],
        "max_position_embeddings": max(32768, point["seq"]),
    }
    if family != "qwen2" and point["head_dim"] * point["heads"] != point["hidden"]:
        model["head_dim"] = point["head_dim"]
    return model


def zero_of(point: Mapping[str, Any]) -> dict[str, Any]:
    """The ZeRO section: what the source says of it, DeepSpeed's defaults for the rest."""
    stage = point["zero"]
    offload = {
        name: "cpu"
        for name, key in (("optimizer", "offload_optimizer"), ("parameters", "offload_param"))
        if point.get(key)
    }
    zero: dict[str, Any] = {"stage": stage}
    if offload:
        zero["offload"] = offload
    if stage == 0:
        return zero
    bucket = point.get("bucket", 500_000_000)
    square = point["hidden"] ** 2
    auto = isinstance(bucket, str)
    zero["overlap_comm"] = bool(point.get("overlap_comm", stage == 3))
    zero["reduce_bucket_size"] = square if auto else int(bucket)
    if stage == 3:
        live = int(point.get("max_live", 1e9))
        zero |= {
            "sub_group_size": int(point.get("sub_group", 1e9)),
            "stage3_max_live_parameters": live,
            "stage3_max_reuse_distance": live,
            # transformers fills `auto` in so (integrations/deepspeed.py, trainer_config_finalize).
            "stage3_prefetch_bucket_size": int(0.9 * square) if auto else 50_000_000,
            "stage3_param_persistence_threshold": 10 * point["hidden"] if auto else 100_000,
        }
    return zero


def plan_of(point: Mapping[str, Any]) -> Plan:
    """The plan of a point. Raises NoPlanError."""
    text = json.dumps(recipe_of(point))
    loaded = LoadedRecipe(
        path=Path(point["id"]), folder=Path(), document=read_yaml_text(text, point["id"]), inputs=(), overrides=()
    )
    try:
        plan = resolve(check_recipe(loaded))
    except FindingsError as error:
        first = error.findings[0]
        raise NoPlanError(f"dsgen refuses the recipe: {first.code}: {first.message}") from None
    if abs(plan.parameters.total / point["params"] - 1) > SAME_MODEL:
        raise NoPlanError("a model of another shape than Llama's: the number of parameters differs")
    return plan
