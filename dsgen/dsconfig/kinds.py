"""What kind of file somebody has at hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Literal

from dsgen.catalog.lookup import alike

Kind = Literal["ds_config", "recipe", "accelerate", "hostfile", "environment"]

_CONFIG_KEYS = {
    "zero_optimization",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "fp16",
    "bf16",
}
"""Keys that a ds_config.json has at its top."""

_RECIPE_KEYS = {"model", "batch", "zero", "hardware", "length", "optimizer", "extends"}
"""Fields of a recipe, of which every one has several."""

_OTHERS = {
    "model_type": "the config.json of a model",
    "properties": "a JSON Schema",
    "log_history": "the state of a trainer",
    "dependencies": "the package file of another program",
}
"""Keys at the top of other JSON files -> what these are."""

_ACCELERATE_KEYS = {
    "compute_environment",
    "deepspeed_config",
    "distributed_type",
    "machine_rank",
    "main_training_function",
}

_YAML = (".yaml", ".yml")


def kind_by_name(file: str) -> Kind | None:
    """The kind of a file that its name tells by itself; None when the content has to be seen."""
    name = PurePath(file).name
    if name.endswith("deepspeed_env"):
        return "environment"
    if name == "hostfile" or name.startswith("hostfile.") or name.endswith((".hostfile", "_hostfile", "-hostfile")):
        return "hostfile"
    return None


def is_yaml(file: str) -> bool:
    """Whether the name is that of a YAML file."""
    return PurePath(file).suffix.lower() in _YAML


def kind_by_content(value: Any, *, yaml: bool) -> Kind | None:
    """The kind of a document that somebody names as a config, by its top-level keys; None for something else."""
    if not isinstance(value, Mapping):
        return None
    if _ACCELERATE_KEYS & value.keys():
        return "accelerate"
    if yaml and "schema" in value:
        return "recipe"
    if other_kind(value) is None and (_CONFIG_KEYS & value.keys() or (not yaml and _nearly_said(value))):
        return "ds_config"
    return "recipe" if yaml and {"model", "zero", "batch", "extends"} & value.keys() else None


def is_surely(kind: Kind | None, value: Any, *, yaml: bool) -> bool:
    """Whether a file that nobody named is of that kind: other programs use some of the same keys."""
    if kind == "accelerate":
        return "distributed_type" in value or "deepspeed_config" in value
    if kind == "recipe":
        return "schema" in value and len(_RECIPE_KEYS & value.keys()) >= 2
    if kind == "ds_config" and not yaml:
        sections = ("zero_optimization", "fp16", "bf16", "optimizer", "scheduler")
        if _BATCH_KEYS & value.keys() or any(isinstance(value.get(name), Mapping) for name in sections):
            return True
        return _nearly_said(value)
    return False


_BATCH_KEYS = {"train_batch_size", "train_micro_batch_size_per_gpu"}
_UNMISTAKABLE = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu")


def _nearly_said(value: Mapping[str, Any]) -> bool:
    """Whether a key at the top is a misspelling of one that only a ds_config.json has."""
    return any(alike(str(key), wanted) for key in list(value)[:200] for wanted in _UNMISTAKABLE)


def other_kind(value: Any) -> str | None:
    """What else a JSON file is, in words; None when nothing says so."""
    if not isinstance(value, Mapping) or "zero_optimization" in value:
        return None
    return next((what for key, what in _OTHERS.items() if key in value), None)


_MARKS = (b"zero_optimization", b"train_micro_batch_size_per_gpu", b"train_batch_size", b"gradient_accumulation_steps")
_SECTION_MARKS = (b'"fp16"', b'"bf16"')


def looks_like_config(data: bytes) -> bool:
    """Whether a file that cannot be read was meant as a ds_config.json."""
    return any(mark in data for mark in (*_MARKS, *_SECTION_MARKS))
