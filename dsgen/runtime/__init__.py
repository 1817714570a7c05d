"""The training side: what a rendered `train.py` uses. Only this room imports torch, DeepSpeed and transformers.

Importing this package is cheap and needs none of them: the functions that do are loaded when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dsgen.runtime.compatibility import require_api
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import API_VERSION, Adapter, Checkpoint, Data, Evaluation, Model, Settings

if TYPE_CHECKING:
    from dsgen.runtime.batches import build_data
    from dsgen.runtime.loop import train
    from dsgen.runtime.models import build_model, trainable_parameters
    from dsgen.runtime.session import Session, start

_LAZY = {
    "start": "session",
    "Session": "session",
    "build_data": "batches",
    "build_model": "models",
    "trainable_parameters": "models",
    "train": "loop",
}

__all__ = [
    "API_VERSION",
    "Adapter",
    "Checkpoint",
    "Data",
    "Evaluation",
    "Model",
    "RuntimeProblem",
    "Session",
    "Settings",
    "build_data",
    "build_model",
    "require_api",
    "start",
    "train",
    "trainable_parameters",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value
