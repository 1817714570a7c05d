"""The stand-in of a job: the same recipe with less in it, so that two CPU processes train it in a minute or two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsgen.catalog.devices import load_device
from dsgen.catalog.models import Architecture
from dsgen.doctor.inputs import file_matches
from dsgen.findings import DsgenError
from dsgen.recipe.check import CheckedRecipe
from dsgen.recipe.load import is_path
from dsgen.recipe.plan import Plan
from dsgen.recipe.view import data_files
from dsgen.resources import local_path

RANKS = 2
LAYERS = 2
HEAD_DIM = 16
SEQUENCE_LENGTH = 512
ACCUMULATION = 2
SAVED_AT, STEPS = 2, 4
"""The job trains to its end and saves on the way; then it goes on from there in new processes."""

_SHORT_SCHEDULE = {"warmup_num_steps": SAVED_AT, "total_num_steps": STEPS}
_BUCKETS = ("reduce_bucket_size", "allgather_bucket_size")


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """A recipe that extends the real one, and what it changes, in words."""

    fields: Mapping[str, Any]
    changes: tuple[str, ...]


def stand_in(checked: CheckedRecipe, plan: Plan) -> StandIn:
    """The stand-in of a checked recipe and its plan. Raises DsgenError for a recipe that is not for Ascend."""
    recipe = checked.recipe
    if plan.kind != "npu":
        raise DsgenError(
            f"{plan.name} is for {plan.device.id}, and only jobs for Ascend NPUs are rehearsed",
            help="train it here, shortened: dsgen launch RECIPE --set length.steps=5 --set schedule.warmup_num_steps=1"
            if plan.kind == "cpu"
            else "--set hardware.device=ascend-910b3-64g rehearses it for an NPU",
        )
    ranks = min(RANKS, load_device(recipe.hardware.device).devices_per_server)
    changes: list[str] = []
    model = small_model(plan.architecture)
    changes.append(
        f"model: {LAYERS} layers of width {model['hidden_size']} for {plan.architecture.layers} of "
        f"{plan.architecture.hidden_size}; vocabulary, attention groups and all else as they are"
    )
    fields: dict[str, Any] = {
        "name": f"rehearsal-{plan.name}"[:100],
        "model": model,
        "hardware": {"per_node": ranks, "nodes": 1, "hosts": None, "host_memory": None},
        "length": {"steps": STEPS, "epochs": None, "tokens": None},
        "checkpoint": {"every_steps": SAVED_AT, "every": None, "at_end": True},
        "logging": {"every": 1},
    }
    if plan.world_size != ranks:
        nodes = f"{plan.nodes} nodes of {plan.per_node}" if plan.nodes > 1 else f"{plan.per_node}"
        changes.append(f"ranks: {ranks} on this machine for {nodes}")
    fields["batch"], said = _batch(plan)
    changes += said
    changes.append(f"length: {STEPS} steps, a checkpoint after step {SAVED_AT}")
    if recipe.schedule is not None:
        parameters = plan.ds_config.get("scheduler", {}).get("params", {})
        fields["schedule"] = {name: value for name, value in _SHORT_SCHEDULE.items() if name in parameters}
    if plan.weights is not None:
        fields["weights"] = None
        changes.append("weights: random ones, since the given ones do not fit the small model")
    text, said = _text(checked, plan)
    fields |= text
    changes += said
    zero, said = _zero(checked, plan)
    if zero:
        fields["zero"] = zero
    changes += said
    if recipe.memory.reclaim_every:
        fields["memory"] = {"reclaim_every": 2}
        changes.append("memory is reclaimed every 2 steps")
    if recipe.evaluation is not None:
        fields["evaluation"] = {"every": SAVED_AT, "steps": 1}
    return StandIn(fields=fields, changes=tuple(changes))


def small_model(architecture: Architecture) -> dict[str, Any]:
    """The config of a model of the same family: two layers, narrow heads in the same groups, the same vocabulary."""
    config = architecture.model_config()
    group = architecture.attention_heads // architecture.key_value_heads
    kinds = min(2, architecture.key_value_heads)
    heads = group * kinds
    config.update(
        hidden_size=heads * HEAD_DIM,
        intermediate_size=heads * HEAD_DIM * 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
    )
    if "num_key_value_heads" in config:
        config["num_key_value_heads"] = kinds
    if "head_dim" in config:
        config["head_dim"] = HEAD_DIM
    for name, value in config.items():
        if isinstance(value, list) and len(value) == architecture.layers:
            config[name] = value[:LAYERS]
    return config


def _batch(plan: Plan) -> tuple[dict[str, Any], list[str]]:
    length = min(plan.sequence_length, SEQUENCE_LENGTH)
    accumulation = min(plan.accumulation, ACCUMULATION)
    batch = {"sequence_length": length, "micro": plan.micro_batch, "accumulation": accumulation, "global": None}
    changes = []
    if length != plan.sequence_length:
        changes.append(f"sequence: {length} tokens for {plan.sequence_length}")
    if accumulation != plan.accumulation:
        changes.append(f"accumulation: {accumulation} for {plan.accumulation}")
    return batch, changes


def _text(checked: CheckedRecipe, plan: Plan) -> tuple[dict[str, Any], list[str]]:
    """Text and tokenizer that are not on this machine, replaced."""
    folder = checked.loaded.folder
    recipe = checked.recipe
    fields: dict[str, Any] = {}
    changes = []
    named = data_files(recipe.data.files) if recipe.data else None
    absent = [name for name in named or () if not file_matches(local_path(folder, name))]
    if absent:
        mode = "packed" if plan.data.mode == "instruction" else plan.data.mode
        fields["data"] = {
            "files": None,
            "builtin": "python-topics",
            "mode": mode,
            "field": None,
            "prompt_field": None,
            "answer_field": None,
        }
        changes.append(f"text: the one that every Python carries, since no file matches {absent[0]!r} here")
        if mode != plan.data.mode:
            changes.append("mode: packed, since that text has no prompts and answers")
    tokenizer = plan.data.tokenizer
    if is_path(tokenizer) and not local_path(folder, tokenizer).exists():
        fields["tokenizer"] = "bytes"
        changes.append(f"tokens: bytes, since there is no tokenizer at {tokenizer} here")
    return fields, changes


def _zero(checked: CheckedRecipe, plan: Plan) -> tuple[dict[str, Any], list[str]]:
    """What of the ZeRO section cannot stay: a folder for NVMe that is not here, buckets larger than the small model."""
    zero: dict[str, Any] = {}
    changes = []
    offload = checked.recipe.zero.offload
    for part in ("optimizer", "parameters"):
        said = getattr(offload, part)
        if said is not None and said.device == "nvme" and not (said.path and Path(said.path).is_dir()):
            zero.setdefault("offload", {})[part] = "cpu"
            changes.append(f"offload of {part}: to host memory, since there is no folder {said.path} here")
    written = checked.recipe.zero.model_extra or {}
    if any(name in written for name in _BUCKETS):
        zero |= {name: None for name in _BUCKETS if name in written}
    changes.append("buckets: as large as the small model asks for")
    return zero, changes
