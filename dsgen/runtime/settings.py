"""What a training run is told: plain values, decided by `resolve` and written into the rendered `train.py`.

This module imports neither torch nor DeepSpeed, so that a rendered `train.py` can state its settings
and the API version can be checked before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

API_VERSION = (1, 0)
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
    """The text to train on."""

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
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    evaluation: Evaluation | None = None
