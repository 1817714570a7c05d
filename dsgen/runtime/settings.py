"""What a training run is told: plain values, decided by `resolve`, in the rendered `train.py` or `settings.json`.

This module imports neither torch nor DeepSpeed, so that a rendered `train.py` can state its settings
and the API version can be checked before anything heavy is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dsgen.runtime.problems import RuntimeProblem

API_VERSION = (1, 1)
"""Version of the API that rendered `train.py` files use: (major, minor). A file written for (M, m) runs on
every runtime of the same major version whose minor version is at least m."""

Dtype = Literal["fp32", "fp16", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """LoRA adapter: low-rank matrices beside the named linear layers; everything else is frozen."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Model:
    """The model to train."""

    config: Mapping[str, Any]
    """Fields of a Hugging Face `config.json`, `model_type` included."""
    dtype: Dtype
    """Type of the weights that forward and backward use."""
    weights: str | None = None
    """Local folder or file of weights, or a hub name; None builds random weights from the seed."""
    adapter: Adapter | None = None
    checkpoint_every_layers: int = 0
    """Activation checkpointing: 0 keeps all activations, 1 recomputes every layer, N recomputes groups of N layers."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    loss_chunk_tokens: int = 0
    """0 takes the loss over all tokens at once; N takes it over N tokens at a time and never holds all logits."""
    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True)
class Data:
    """The text to train on; neither `files` nor `builtin` where the user's own script brings its own."""

    sequence_length: int
    """Tokens of one training sequence."""
    files: tuple[str, ...] = ()
    """Paths and globs (.txt, .jsonl, .parquet); relative ones count from the base folder of the run."""
    builtin: str | None = None
    """Text that needs no file: `python-topics` is the language help that every CPython carries."""
    mode: Literal["packed", "truncated", "instruction"] = "packed"
    text_field: str = "text"
    prompt_field: str = "prompt"
    answer_field: str = "answer"
    tokenizer: str = "bytes"
    """`bytes` (UTF-8 bytes as tokens, vocabulary 256 plus an end-of-text token where the model has room), a local
    tokenizer folder or file, or a hub name."""
    shuffle: bool = True


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Loss on a held-out part of the data."""

    every_steps: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """When to save the training state, and how many saved states to keep. 0 means never / all."""

    every_steps: int = 0
    every_seconds: float = 0
    keep: int = 0
    at_end: bool = True


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One training run."""

    name: str
    accelerator: Literal["npu", "cuda", "cpu"]
    """DeepSpeed accelerator that the recipe is for; the run refuses to train on any other."""
    backend: Literal["hccl", "nccl", "gloo"]
    """torch.distributed backend that the recipe is for; the run refuses any other."""
    world_size: int
    """Ranks of the whole job."""
    model: Model
    data: Data
    micro_batch: int
    """Sequences per rank in one forward pass."""
    accumulation: int
    """Forward passes per optimizer step (gradient accumulation)."""
    steps: int | None = None
    """Optimizer steps to train; exactly one of `steps`, `epochs`, `tokens` is given."""
    epochs: float | None = None
    tokens: int | None = None
    seed: int = 0
    reclaim_every_steps: int = 0
    """Return cached device memory to the device every N optimizer steps; 0 never."""
    log_every_steps: int = 1
    memory_snapshot_step: int = 0
    """Optimizer step at which the largest holders of memory are written down; 0 never."""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    evaluation: Evaluation | None = None


FILE = "settings.json"
"""Where a rendered folder without a train.py holds its settings."""


def read_settings(folder: Path) -> Settings:
    """The settings in `settings.json` of a rendered folder. Raises RuntimeProblem when they cannot be read."""
    path = folder / FILE
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        evaluation = fields.pop("evaluation", None)
        return Settings(
            **{
                **fields,
                "model": model_of(fields["model"]),
                "data": Data(**{**fields["data"], "files": tuple(fields["data"].get("files", ()))}),
                "checkpoint": Checkpoint(**fields.get("checkpoint", {})),
                "evaluation": Evaluation(**evaluation) if evaluation else None,
            }
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RuntimeProblem(f"{path} cannot be read: {error}", "render the recipe again") from error


def model_of(fields: Mapping[str, Any]) -> Model:
    """A model from JSON. Raises TypeError for unknown or missing fields."""
    adapter = fields.get("adapter")
    if adapter is not None:
        adapter = Adapter(**{**adapter, "targets": tuple(adapter["targets"])})
    return Model(**{**fields, "adapter": adapter})
