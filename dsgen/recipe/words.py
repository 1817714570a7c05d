"""A recipe in the words of ds_config.json, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsgen.catalog.deepspeed_keys import load_keys
from dsgen.documents.document import Document
from dsgen.documents.positions import Path, undotted
from dsgen.recipe.schema import OffloadOptimizer, OffloadParameters
from dsgen.rules.view import Decided, Neutral

_WORDS: Mapping[Path, Path] = {
    ("train_batch_size",): ("batch", "global"),
    ("train_micro_batch_size_per_gpu",): ("batch", "micro"),
    ("gradient_accumulation_steps",): ("batch", "accumulation"),
    ("zero_optimization", "stage"): ("zero", "stage"),
    ("zero_optimization", "offload_optimizer", "nvme_path"): ("zero", "offload", "optimizer", "path"),
    ("zero_optimization", "offload_optimizer"): ("zero", "offload", "optimizer"),
    ("zero_optimization", "offload_param", "nvme_path"): ("zero", "offload", "parameters", "path"),
    ("zero_optimization", "offload_param"): ("zero", "offload", "parameters"),
    ("zero_optimization",): ("zero",),
    ("fp16",): ("precision",),
    ("bf16",): ("precision",),
    ("data_types", "grad_accum_dtype"): ("precision", "accumulate"),
    ("optimizer", "params"): ("optimizer",),
    ("optimizer",): ("optimizer",),
    ("scheduler", "params"): ("schedule",),
    ("scheduler",): ("schedule",),
}
"""ds_config.json path -> recipe path; what follows the prefix is kept. The longest prefix wins."""

OFFLOAD_SECTIONS = {"optimizer": "offload_optimizer", "parameters": "offload_param"}
"""Recipe name -> ds_config.json name of the two sections of `zero.offload`."""

_OFFLOAD_NAMES = {"path": "nvme_path"}
"""Recipe name -> ds_config.json name inside an offload section, where they differ."""

SCALE_KEYS = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
"""Fields of `precision` that are keys of the fp16 section."""


def in_recipe_words(path: Neutral, document: Document) -> Path:
    """Where the recipe says, or would say, what a neutral path means."""
    neutral = undotted(path) if isinstance(path, str) else path
    raw: Path = ("deepspeed", *neutral)
    if document.has(raw):
        return raw
    zero: Path = ("zero", *neutral[1:])
    if neutral[0] == "zero_optimization" and document.has(zero):
        return zero
    for end in range(len(neutral), 0, -1):
        words = _WORDS.get(neutral[:end])
        if words is not None:
            return words + neutral[end:]
    return neutral


def get(fields: Mapping[str, Any], *path: str) -> Any:
    """What a field or a field of a section says; None when it, or the section, is missing or wrong."""
    value = fields[path[0]]
    for name in path[1:]:
        value = getattr(value, name, None)
    return value


def others(section: Any) -> dict[str, Any]:
    """The keys of a section that are DeepSpeed's."""
    return dict(section.model_extra or {}) if section is not None else {}


def offload_config(part: OffloadOptimizer | OffloadParameters) -> dict[str, Any]:
    """An offload section as ds_config.json says it; only what the recipe says."""
    said = part.model_dump(exclude_none=True)
    return {_OFFLOAD_NAMES.get(name, name): value for name, value in said.items()}


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`: mappings key by key, anything else replaced."""
    out = dict(base)
    for key, value in over.items():
        inner = out.get(key)
        out[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return out


def raw_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of ds_config.json beside which a recipe has fields of its own, `deepspeed:` above all."""
    offload = {key: value for key, value in others(fields["zero"]).items() if key in OFFLOAD_SECTIONS.values()}
    return merged({"zero_optimization": offload} if offload else {}, fields["deepspeed"] or {})


def said_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the recipe says of the sections that rules read in the shape of ds_config.json, raw keys included."""
    zero, optimizer, schedule = fields["zero"], fields["optimizer"], fields["schedule"]
    config: dict[str, Any] = {}
    if fields["gradient_clipping"] is not None:
        config["gradient_clipping"] = fields["gradient_clipping"]
    if zero is not None:
        stage = {} if zero.stage is None else {"stage": zero.stage}
        offload = {OFFLOAD_SECTIONS[name]: offload_config(part) for name, part in _offload(fields)}
        config["zero_optimization"] = merged(_zero_keys(zero) | stage, offload)
    if optimizer is not None:
        rate = {} if optimizer.lr is None else {"lr": optimizer.lr}
        config["optimizer"] = {"params": rate | others(optimizer)}
    if schedule is not None:
        config["scheduler"] = {"params": others(schedule)}
    return merged(config, raw_config(fields))


def _zero_keys(zero: Any) -> dict[str, Any]:
    """DeepSpeed's keys in `zero`; one that is null is left out, unless DeepSpeed knows none of that name."""
    keys = load_keys()
    return {
        name: value
        for name, value in others(zero).items()
        if value is not None or keys.get(f"zero_optimization.{name}") is None
    }


def decided(fields: Mapping[str, Any]) -> dict[str, Decided]:
    """The keys that raw ones must leave alone: what dsgen derives other values from, and whatever a field says."""
    precision, schedule = get(fields, "precision", "type"), get(fields, "schedule", "type")
    found = {
        "train_batch_size": Decided("batch.global", get(fields, "batch", "global_")),
        "train_micro_batch_size_per_gpu": Decided("batch.micro", get(fields, "batch", "micro")),
        "gradient_accumulation_steps": Decided("batch.accumulation", get(fields, "batch", "accumulation")),
        "data_types.grad_accum_dtype": Decided("precision.accumulate", get(fields, "precision", "accumulate")),
        "fp16.enabled": Decided("precision", precision and precision == "fp16"),
        "bf16.enabled": Decided("precision", precision and precision == "bf16"),
        "zero_optimization.stage": Decided("zero.stage", get(fields, "zero", "stage")),
        "zero_optimization.offload_optimizer.device": Decided("zero.offload.optimizer", "none"),
        "zero_optimization.offload_param.device": Decided("zero.offload.parameters", "none"),
        "optimizer.type": Decided("optimizer.type", get(fields, "optimizer", "type")),
        "optimizer.params.lr": Decided("optimizer.lr", get(fields, "optimizer", "lr")),
        "sequence_parallel_size": Decided("parallel.sequence", get(fields, "parallel", "sequence")),
        "tensor_parallel.autotp_size": Decided("parallel.tensor", get(fields, "parallel", "tensor")),
    }
    if precision == "fp16":
        found["fp16.loss_scale"] = Decided("precision.loss_scale", None)
    if fields["gradient_clipping"] is not None:
        found["gradient_clipping"] = Decided("gradient_clipping", fields["gradient_clipping"])
    for name in SCALE_KEYS:
        if get(fields, "precision", name) is not None:
            found[f"fp16.{name}"] = Decided(f"precision.{name}", get(fields, "precision", name))
    for name, part in _offload(fields):
        for key, value in offload_config(part).items():
            found[f"zero_optimization.{OFFLOAD_SECTIONS[name]}.{key}"] = Decided(f"zero.offload.{name}", value)
    for name, value in others(fields["zero"]).items():
        if name not in OFFLOAD_SECTIONS.values():
            found[load_keys().canonical(f"zero_optimization.{name}")] = Decided(f"zero.{name}", value)
    for name, value in others(fields["optimizer"]).items():
        found[f"optimizer.params.{name}"] = Decided(f"optimizer.{name}", value)
    if schedule in (None, "constant"):
        found["scheduler"] = Decided("schedule", None)
    else:
        found["scheduler.type"] = Decided("schedule.type", schedule)
        for name, value in others(fields["schedule"]).items():
            found[f"scheduler.params.{name}"] = Decided(f"schedule.{name}", value)
    return found


def _offload(fields: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The sections of `zero.offload` that say where: name and section."""
    parts = {name: get(fields, "zero", "offload", name) for name in OFFLOAD_SECTIONS}
    return [(name, part) for name, part in parts.items() if part is not None and part.device is not None]
