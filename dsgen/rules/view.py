"""What rules look at: the settings of a job, whoever wrote them down and in whatever words.

A recipe and a ds_config.json both become a View. Paths are neutral: the ds_config.json path where there is
one (`zero_optimization.stage`), else the recipe's (`hardware.device`). `spell` and `locate` turn a neutral
path into the words and the place of the document at hand. A value that the document does not say, or says
wrongly, is None: rules must leave alone what they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dsgen.catalog.devices import Device
from dsgen.catalog.models import Architecture
from dsgen.documents.positions import Path, Position

Neutral = str | Path
"""A neutral path: dotted text, or a tuple where a key may itself hold a dot."""


class Locate(Protocol):
    """Place of a neutral path in the document: of its value, or of its key."""

    def __call__(self, path: Neutral, *, key: bool = False) -> Position: ...


class Spell(Protocol):
    """A neutral path in the words of the document."""

    def __call__(self, path: Neutral) -> str: ...


@dataclass(frozen=True, kw_only=True)
class View:
    """Settings of a job as far as they are known."""

    locate: Locate
    spell: Spell

    config: Mapping[str, Any] = field(default_factory=dict)
    """What the document itself says, in the shape of ds_config.json."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """Raw ds_config.json keys that stand beside fields of their own (the recipe's `deepspeed:`)."""

    stage: int | None = None
    offload_optimizer: str | None = None
    """none, cpu or nvme."""
    offload_parameters: str | None = None

    precision: str | None = None
    """fp32, fp16 or bf16."""
    accumulate: str | None = None
    loss_scale: float | str | None = None
    scale_keys: tuple[str, ...] = ()
    """Keys of fp16's loss scale that the document says."""

    micro_batch: int | None = None
    accumulation: int | None = None
    global_batch: int | None = None
    sequence_length: int | None = None
    devices: int | None = None
    tensor_parallel: int | None = None
    sequence_parallel: int | None = None

    steps: int | None = None
    epochs: float | None = None
    tokens: int | None = None
    has_length: bool = False
    """Whether the document is of a kind that says how long to train, and its section could be read."""

    architecture: Architecture | None = None
    trainable_parameters: int | None = None
    adapter_targets: tuple[str, ...] = ()
    checkpoint_every_layers: int | None = None
    weights: str | None = None
    trust_remote_code: bool | None = None

    device: Device | None = None
    per_node: int | None = None
    nodes: int | None = None
    hosts: tuple[str, ...] | None = None
    launcher: str | None = None

    optimizer: str | None = None
    optimizer_parameters: Mapping[str, Any] = field(default_factory=dict)
    schedule: str | None = None
    schedule_parameters: Mapping[str, Any] = field(default_factory=dict)

    environment: Mapping[str, str] = field(default_factory=dict)

    data_files: tuple[str, ...] | None = None
    data_builtin: str | None = None
    data_mode: str | None = None
    has_data: bool = False
    tokenizer: str | None = None

    unbuilt: Mapping[str, str] = field(default_factory=dict)
    """Fields that the document uses and whose run is not built yet: neutral path -> the reason."""

    @property
    def data_parallel(self) -> int | None:
        """Data-parallel world size: devices / (tensor x sequence); None when unknown or not whole."""
        if self.devices is None:
            return None
        shards = (self.tensor_parallel or 1) * (self.sequence_parallel or 1)
        return self.devices // shards if self.devices % shards == 0 else None


def lookup(config: Mapping[str, Any], path: str) -> Any:
    """Value at a dotted path of nested mappings, or None."""
    value: Any = config
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value
