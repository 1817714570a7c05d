"""What `dsgen estimate` says of runs whose memory others have measured and published.

    python benchmarks/memory_accuracy.py [--points FILE] [--format json] [--verbose]

Each point becomes a recipe, is resolved and estimated; what is no job of DeepSpeed's, or of a model that dsgen knows,
is left out with the reason. Compared is the figure that was measured: allocated, reserved or device total; reserved
where the source does not say. Nothing here is fitted to the points.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsgen.documents.yaml_reader import read_yaml_text
from dsgen.findings import FindingsError
from dsgen.memory.estimate import estimate
from dsgen.memory.report import MemoryReport
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import LoadedRecipe
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve import resolve

POINTS = Path(__file__).resolve().parent / "data" / "memory-points.json"
GIB = 1 << 30
SLACK = 0.05
"""An underestimate is one by more than this."""
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
TARGETS: dict[str, Any] = {
    "all-linear": "all-linear",
    # Qwen's own names: the fused query, key and value, both output projections, gate and up.
    "c_attn,c_proj,w1,w2": "all-linear",
    "c_attn / qkv (DEFAULT)": ["q_proj", "k_proj", "v_proj"],
    "q,v": ["q_proj", "v_proj"],
    "q,k,v": ["q_proj", "k_proj", "v_proj"],
    "q,k,v,o": ["q_proj", "k_proj", "v_proj", "o_proj"],
}
FAMILIES = {"qwen": "qwen2", "qwen1.5": "qwen2", "qwen2": "qwen2", "qwen2.5": "qwen2", "qwen3": "qwen3"}
"""Beginning of a model's name -> its family, or the one whose shapes it has; Llama for the others."""


class NoPlanError(Exception):
    """A point that is no job of dsgen's; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A point with what was estimated."""

    id: str
    group: str
    metric: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Of what was measured."""
        return self.predicted / self.measured - 1


def recipe_of(point: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe of a point. Raises NoPlanError."""
    if point["framework"] not in ("deepspeed", "hf"):
        raise NoPlanError(f"trained by {point['framework']}, not by DeepSpeed or transformers")
    shards = {name: point.get(name, 1) for name in ("tp", "pp", "cp", "ep")}
    if any(size > 1 for size in shards.values()):
        raise NoPlanError("tensor, pipeline, context or expert parallel")
    if point["dp"] != point["devices"]:
        raise NoPlanError("one model spread over several devices")
    if point["precision"] not in ("bf16", "fp16", "fp32"):
        raise NoPlanError(f"precision {point['precision']}")
    if point["act"] != "swiglu" or point.get("head", "lm") not in ("lm", None):
        raise NoPlanError("no decoder of Llama's kind")
    if point["attn"] == "eager":
        raise NoPlanError("eager attention: dsgen trains with a fused one")
    if point.get("liger"):
        raise NoPlanError("Liger's kernels")
    if "bf16 states" in point["optimizer"]:
        raise NoPlanError("weights and Adam's states in bf16: DeepSpeed keeps them in fp32")
    if point["method"] not in ("full", "lora"):
        raise NoPlanError("an adapter beside whole matrices that are trained too")
    if point["method"] == "full" and point["framework"] == "hf" and point["precision"] != "fp32":
        raise NoPlanError("mixed precision by autocast: DeepSpeed keeps 16-bit weights")
    device = DEVICES.get(point["hw"])
    if device is None:
        raise NoPlanError(f"hardware {point['hw']}")
    recompute = {"full": "full", "none": "none"}.get(point["recompute"])
    if recompute is None:
        raise NoPlanError(f"recomputation {point['recompute']}")
    per_node = min(8, point["devices"])
    recipe: dict[str, Any] = {
        "schema": 1,
        "name": point["id"],
        "model": model_of(point),
        "precision": {"type": point["precision"], "accumulate": point["precision"]},
        "batch": {
            "sequence_length": point["seq"],
            "micro": point["mbs"],
            "accumulation": point["ga"],
        },
        "length": {"steps": 1},
        "zero": zero_of(point),
        "activation_checkpointing": recompute,
        "optimizer": {"type": "AdamW", "lr": 1e-5},
        "hardware": {"device": device, "per_node": per_node, "nodes": -(-point["devices"] // per_node)},
        "data": {"files": "data/*.jsonl"},
        "tokenizer": "./tokenizer",
    }
    if point["method"] == "lora":
        targets = TARGETS.get(point["lora"]["targets"])
        if targets is None:
            raise NoPlanError(f"adapters on {point['lora']['targets']}")
        recipe["adapter"] = {"rank": point["lora"]["r"], "targets": targets}
    return recipe


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


def figure(report: MemoryReport, metric: str) -> tuple[str, int]:
    """The figure that was measured, by its name: allocated, reserved or device total."""
    device, words = report.device, metric.lower()
    if "smi" in words or "nvml" in words:
        return "device total", device.total_peak_bytes
    if "reserved" not in words.partition(";")[0] and ("allocated" in words or "active" in words):
        return "allocated", device.allocated_peak_bytes
    return "reserved", device.reserved_peak_bytes


def compare(points: Iterable[Mapping[str, Any]]) -> tuple[list[Compared], dict[str, str]]:
    """Every point that has a plan, and why the others have none, by id."""
    found: list[Compared] = []
    without: dict[str, str] = {}
    for point in points:
        try:
            report = estimate(plan_of(point))
        except NoPlanError as error:
            without[point["id"]] = str(error)
            continue
        metric, size = figure(report, point["metric"])
        found.append(
            Compared(
                id=point["id"],
                group=f"{point['group']} {point['method']}",
                metric=metric,
                predicted=size / GIB,
                measured=point["measured_gib"],
            )
        )
    return found, without


def summary(name: str, some: list[Compared]) -> dict[str, Any]:
    """Errors of some points, as parts of what was measured."""
    errors = sorted(abs(each.error) for each in some)
    return {
        "group": name,
        "points": len(some),
        "median": statistics.median(errors),
        # The smallest error that nine in ten do not pass.
        "p90": errors[-(-len(errors) * 9 // 10) - 1],
        "bias": statistics.median(each.error for each in some),
        "underestimates": sum(each.error < -SLACK for each in some),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=Path, default=POINTS, help="file of points (default: %(default)s)")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    parser.add_argument("--verbose", action="store_true", help="every point")
    options = parser.parse_args()
    found, without = compare(json.loads(options.points.read_text(encoding="utf-8"))["points"])
    groups = [
        summary(name, [each for each in found if each.group == name]) for name in sorted({e.group for e in found})
    ]
    if found:
        groups.append(summary("all", found))
    if options.format == "json":
        points = [
            {"id": e.id, "group": e.group, "metric": e.metric, "predicted_gib": e.predicted, "measured_gib": e.measured}
            for e in found
        ]
        print(json.dumps({"points": points, "groups": groups, "without_plan": without}, indent=2))
        return
    if options.verbose:
        for e in found:
            print(f"{e.id:<12} {e.metric:<12} {e.predicted:7.1f} GiB of {e.measured:7.1f} measured  {e.error:+.0%}")
    print(f"{'group':<16} {'points':>6} {'median':>7} {'P90':>6} {'bias':>6}  below by more than {SLACK:.0%}")
    for g in groups:
        print(
            f"{g['group']:<16} {g['points']:>6} {g['median']:>7.1%} {g['p90']:>6.0%} {g['bias']:>+6.0%}  "
            f"{g['underestimates']}"
        )
    for reason, count in Counter(without.values()).most_common():
        print(f"no plan for {count}: {reason}")


if __name__ == "__main__":
    main()
