"""What rules look at: the settings of a job, whoever wrote them down and in whatever words.

A recipe and a ds_config.json both become a View. Paths are neutral: the ds_config.json path where there is
one (`zero_optimization.stage`), else the recipe's (`hardware.device`). `spell` and `locate` turn a neutral
path into the words and the place of the document at hand. A value that the document does not say, or says
wrongly, is None: rules must leave alone what they do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from dsgen.catalog.deepspeed_keys import DEFAULT_VERSION, Keys, load_keys
from dsgen.catalog.devices import Device
from dsgen.catalog.models import Architecture
from dsgen.documents.notes import Note
from dsgen.documents.positions import Path, Position
from dsgen.findings import Edit

Neutral = str | Path
"""A neutral path: dotted text, or a tuple where a key may itself hold a dot."""


class Locate(Protocol):
    """Place of a neutral path in the document: of its value, or of its key."""

    def __call__(self, path: Neutral, *, key: bool = False) -> Position: ...


class Spell(Protocol):
    """A neutral path in the words of the document."""

    def __call__(self, path: Neutral) -> str: ...


def same_edit(edit: Edit) -> Edit:
    """The edit of a document whose words are the neutral ones."""
    return edit


@dataclass(frozen=True)
class Decided:
    """A ds_config.json key that a field of the document decides."""

    field: str
    """The field, as the document names it."""
    value: Any
    """What it says; None when it leaves the value to dsgen."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Settings of a job as far as they are known."""

    locate: Locate
    spell: Spell
    edit: Callable[[Edit], Edit] = same_edit
    """An edit by neutral paths as one by the document's."""

    kind: Literal["recipe", "ds_config", "accelerate", "hostfile", "environment"] = "recipe"
    file: str = ""
    """Name of the file, for what its name says."""
    deepspeed: str = DEFAULT_VERSION
    """The version of DeepSpeed that is to read the config."""
    framework: Literal["dsgen", "native", "transformers"] = "dsgen"
    """Who hands the config to DeepSpeed: dsgen's runtime, a script of its own, or transformers (or accelerate)."""
    notes: tuple[Note, ...] = ()
    """What reading the document met that a strict JSON reader refuses."""
    client_optimizer: str | None = None
    """Type of the optimizer that the script passes to deepspeed.initialize; `none` when it passes none."""
    lines: tuple[str, ...] = ()
    """Lines of a hostfile or of DeepSpeed's environment file, without their ends; a line's path is its index."""
    accelerate: Mapping[str, Any] = field(default_factory=dict)
    """What an accelerate config says, by its own names."""
    accelerate_inline: Mapping[str, Any] | None = None
    """The ds_config that stands in an accelerate config in place of a file's name."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """What the document itself says, in the shape of ds_config.json."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """Raw ds_config.json keys that stand beside fields of their own (the recipe's `deepspeed:`)."""
    decided: Mapping[str, Decided] = field(default_factory=dict)
    """ds_config.json path -> the field that decides it, for every key that raw keys must leave alone."""

    own_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Section of ds_config.json -> names that the document has there besides DeepSpeed's."""

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
    has_batch: bool = False
    """Whether the document says batch sizes, and all that it says of them could be read."""
    devices: int | None = None
    tensor_parallel: int | None = None
    sequence_parallel: int | None = None

    steps: int | None = None
    epochs: float | None = None
    tokens: int | None = None
    has_length: bool = False
    """Whether the document is of a kind that says how long to train, and all that it says of it could be read."""
    derives_steps: bool = False
    """Whether a schedule without its number of steps gets that of the training."""
    intervals: Mapping[str, int] = field(default_factory=dict)
    """What happens every so many optimizer steps: neutral path -> steps; without what never happens."""
    saves_every: bool = False
    """Whether the training state is saved while training goes on."""
    checkpoints_kept: int | None = None

    architecture: Architecture | None = None
    trainable_parameters: int | None = None
    adapter_rank: int | None = None
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
    data_said: tuple[str, ...] = ()
    """Names of the fields of the data section that the document says."""
    has_data: bool = False
    tokenizer: str | None = None

    entrypoint: str | None = None
    """The user's own training script."""
    entrypoint_arguments: tuple[str, ...] = ()
    passes_local_rank: bool = False
    """Whether the script is to get --local_rank."""

    container_image: str | None = None
    container_network: str | None = None
    container_devices: str | None = None
    container_mounts: tuple[str, ...] = ()

    unbuilt: Mapping[str, str] = field(default_factory=dict)
    """Fields that the document uses and whose run is not built yet: neutral path -> the reason."""

    @property
    def keys(self) -> Keys:
        """The keys that DeepSpeed has in the version of this job."""
        return load_keys(self.deepspeed)

    @property
    def not_finite(self) -> frozenset[Path]:
        """Paths of numbers that are NaN or infinite, which one rule speaks of for all."""
        return frozenset(note.path for note in self.notes if note.kind == "not-finite")

    def since(self, version: str) -> bool:
        """Whether the config is for that version of DeepSpeed, or for a later one."""
        return _numbers(self.deepspeed) >= _numbers(version)

    @property
    def data_parallel(self) -> int | None:
        """Data-parallel world size: devices / (tensor x sequence); None when unknown or not whole."""
        if self.devices is None:
            return None
        shards = (self.tensor_parallel or 1) * (self.sequence_parallel or 1)
        return self.devices // shards if self.devices % shards == 0 else None

    @property
    def total_batch(self) -> int | None:
        """Sequences per optimizer step over all ranks, said or computed."""
        if self.global_batch is not None:
            return self.global_batch
        if self.data_parallel is None or self.micro_batch is None or self.accumulation is None:
            return None
        return self.data_parallel * self.micro_batch * self.accumulation

    @property
    def tokens_per_step(self) -> int | None:
        """Tokens that one optimizer step trains on."""
        if self.total_batch is None or self.sequence_length is None:
            return None
        return self.total_batch * self.sequence_length

    @property
    def training_steps(self) -> int | None:
        """Optimizer steps of the whole training; None when only the data can tell."""
        if self.steps is not None or self.tokens is None or not self.tokens_per_step:
            return self.steps
        return -(-self.tokens // self.tokens_per_step)

    @property
    def bf16_optimizer(self) -> bool:
        """Whether DeepSpeed takes its BF16_Optimizer instead of ZeRO's."""
        return uses_bf16_optimizer(self.stage, self.precision, self.accumulate, self.offload_optimizer)


def uses_bf16_optimizer(
    stage: int | None, precision: str | None, accumulate: str | None, offload_optimizer: str | None
) -> bool:
    """Whether a job runs on DeepSpeed's BF16_Optimizer (runtime/engine.py, _do_optimizer_sanity_check)."""
    return (stage, precision, accumulate) == (1, "bf16", "fp32") and offload_optimizer in (None, "none")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())


def lookup(config: Mapping[str, Any], path: str | Path) -> Any:
    """Value at a path of nested mappings, or None."""
    value: Any = config
    for part in path.split(".") if isinstance(path, str) else path:
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def keys_of(config: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every key of nested mappings with its value, parents before children."""
    for name, value in config.items():
        inner = (*path, name)
        yield inner, value
        if isinstance(value, Mapping):
            yield from keys_of(value, inner)


def shown(value: Any) -> str:
    """A value as it stands in YAML, shortened, for a message."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list) and not all(isinstance(item, (int, float, str)) for item in value):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_TRUE = ("true", "on", "yes", "y", "t", "1")
_FALSE = ("false", "off", "no", "n", "f", "0")


def truth(value: Any) -> bool | None:
    """A boolean as pydantic takes it: true, "true", 1; None for anything else."""
    if isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
        return value.lower() in _TRUE
    return bool(value) if isinstance(value, (bool, int, float)) and value in (0, 1) else None


def number(value: Any) -> int | float | None:
    """A number that arithmetic and formatting can take, below 2^63; None for anything else, true and false included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -(2**63) < value < 2**63:
        return None
    return value


_DTYPES = {
    "fp32": ("fp32", "float32", "torch.float32", "torch.float", "float"),
    "fp16": ("fp16", "float16", "torch.float16", "torch.half", "half"),
    "bf16": ("bf16", "bfloat16", "torch.bfloat16"),
}


def dtype_named(value: Any) -> str | None:
    """The number type that a config names: fp32, fp16 or bf16; None for anything else."""
    if not isinstance(value, str):
        return None
    return next((name for name, words in _DTYPES.items() if value in words), None)
