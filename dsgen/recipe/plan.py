"""The Plan: a job with every number decided, each decision with its reason. Later rooms read this and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dsgen.catalog.devices import Device, Kind
from dsgen.catalog.models import Architecture
from dsgen.catalog.parameters import ParameterCount


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A value and why it is what it is. `path` is that of ds_config.json where there is one."""

    path: str
    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class EnvironmentVariable:
    """A variable of the job's environment. `per_node`: its right value differs from node to node."""

    name: str
    value: str
    reason: str
    per_node: bool = False


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """LoRA adapter."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    dropout: float


@dataclass(frozen=True, kw_only=True)
class Data:
    """Training text; `files` are as the recipe says them, relative to its folder."""

    files: tuple[str, ...]
    builtin: str | None
    mode: str
    text_field: str
    prompt_field: str
    answer_field: str
    shuffle: bool
    tokenizer: str


@dataclass(frozen=True, kw_only=True)
class Entrypoint:
    """The user's own training script, as the recipe says it: relative to the recipe's folder."""

    script: str
    args: tuple[str, ...]
    """With `{ds_config}`, `{run_dir}`, `{base_dir}` and `{folder}` still in them."""
    local_rank: bool


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder or file of the host in a container."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, kw_only=True)
class Container:
    """What container.sh is made from."""

    image: str
    engine: str
    devices: str
    """nodes or runtime."""
    shm_bytes: int | None
    """None: the host's shared memory."""
    network: str
    mounts: tuple[Mount, ...]
    """Besides the rendered folder, the recipe's folder and the current one."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One job, decided."""

    name: str
    description: str

    kind: Kind
    """DeepSpeed accelerator: npu, cuda or cpu."""
    backend: str
    """torch.distributed backend: hccl, nccl or gloo."""
    device: Device
    nodes: int
    per_node: int
    hosts: tuple[str, ...]
    """Host names, the master first; empty on one node."""
    host_memory_bytes: int | None
    """Of one node, as the recipe says; None when it does not."""
    host_cores: int | None
    tensor_parallel: int
    sequence_parallel: int
    launcher: str
    environment: tuple[EnvironmentVariable, ...]

    architecture: Architecture
    parameters: ParameterCount
    trainable_parameters: int
    weights: str | None
    adapter: Adapter | None
    trust_remote_code: bool

    precision: str
    accumulate: str
    sequence_length: int
    micro_batch: int
    accumulation: int
    global_batch: int
    steps: int | None
    epochs: float | None
    tokens: int | None
    """`steps` is decided whenever the recipe says steps or tokens; `tokens` is what the recipe says."""

    stage: int
    offload_optimizer: str
    """none, cpu or nvme."""
    offload_parameters: str
    checkpoint_every_layers: int
    """Activation checkpointing: 0 none, 1 every layer, N groups of N layers."""
    attention: Literal["sdpa", "eager"]
    loss_chunk_tokens: int
    """0: the loss of all tokens at once."""

    container: Container | None
    entrypoint: Entrypoint | None
    """None: the rendered train.py."""
    data: Data
    """Neither files nor built-in text: the entrypoint brings its own."""
    evaluation_every_steps: int
    """0: no evaluation."""
    evaluation_steps: int
    save_every_steps: int
    """0: never."""
    save_every_seconds: float
    save_keep: int
    """0: all."""
    save_at_end: bool
    log_every_steps: int
    memory_snapshot_step: int
    """0: no snapshot."""
    reclaim_every_steps: int
    """Give cached device memory back every N steps; 0 never."""
    headroom: float
    seed: int

    deepspeed: str
    """The release of DeepSpeed that ds_config is written for."""
    ds_config: Mapping[str, Any]
    decisions: tuple[Decision, ...]

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.nodes * self.per_node

    @property
    def data_parallel(self) -> int:
        """Data-parallel world size: devices / (tensor x sequence)."""
        return self.world_size // (self.tensor_parallel * self.sequence_parallel)
