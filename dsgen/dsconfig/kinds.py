"""What kind of file somebody has at hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Literal

Kind = Literal["ds_config", "recipe", "accelerate", "hostfile", "environment"]

_CONFIG_KEYS = {
    "zero_optimization",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "fp16",
    "bf16",
}
"""Keys that hardly anything but a ds_config.json has at its top."""

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
    """The kind of a document by its top-level keys; None for something else."""
    if not isinstance(value, Mapping):
        return None
    if _ACCELERATE_KEYS & value.keys():
        return "accelerate"
    if yaml and "schema" in value:
        return "recipe"
    if _CONFIG_KEYS & value.keys():
        return "ds_config"
    return "recipe" if yaml and {"model", "zero", "batch", "extends"} & value.keys() else None
