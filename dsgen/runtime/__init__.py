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
    from dsgen.runtime.checkpoints import resume, save_checkpoint
    from dsgen.runtime.loop import train
    from dsgen.runtime.models import build_model, trainable_parameters
    from dsgen.runtime.own_loop import begin, finish, log_step
    from dsgen.runtime.session import Session, start
    from dsgen.runtime.trainer import torch_dataset, trainer_arguments, trainer_callback, trainer_checkpoint

_LAZY = {
    "start": "session",
    "Session": "session",
    "build_data": "batches",
    "build_model": "models",
    "trainable_parameters": "models",
    "train": "loop",
    "begin": "own_loop",
    "log_step": "own_loop",
    "finish": "own_loop",
    "resume": "checkpoints",
    "save_checkpoint": "checkpoints",
    "trainer_arguments": "trainer",
    "trainer_callback": "trainer",
    "trainer_checkpoint": "trainer",
    "torch_dataset": "trainer",
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
    "begin",
    "build_data",
    "build_model",
    "finish",
    "log_step",
    "require_api",
    "resume",
    "save_checkpoint",
    "start",
    "torch_dataset",
    "train",
    "trainable_parameters",
    "trainer_arguments",
    "trainer_callback",
    "trainer_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value
