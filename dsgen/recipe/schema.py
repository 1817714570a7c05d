"""The recipe: every field, its type, its default and what it means.

Types only. What fields mean to each other (batch arithmetic, stage against offload, precision against
device) stands in `dsgen/rules`; what is left out is decided in `dsgen/recipe/resolve`. A field that may be left out
and is null counts as left out, so that `memory:` with its keys commented away and `--set schedule=null` mean that.
The descriptions here are the field reference and the editor help (`dsgen schema recipe`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
    WithJsonSchema,
    model_validator,
)

from dsgen.recipe import units

_UNIT_TEXT = {"type": "string", "pattern": r"^\s*[+-]?[0-9.eE+-]+\s*[A-Za-z%]*\s*$"}


def _quantity(kind: str, description: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": kind}, _UNIT_TEXT], "description": description})


Count = Annotated[int, BeforeValidator(units.count), _quantity("integer", "a whole number: 128, 5e8, 2M")]
Positive = Annotated[
    int, BeforeValidator(units.count), Field(ge=1), _quantity("integer", "a whole number of at least 1")
]
NotNegative = Annotated[
    int, BeforeValidator(units.count), Field(ge=0), _quantity("integer", "a whole number of at least 0")
]
Bytes = Annotated[int, BeforeValidator(units.size), _quantity("integer", "a size: 64GiB, 500MB")]
Seconds = Annotated[float, BeforeValidator(units.seconds), _quantity("number", "a duration: 30min, 2h")]
Part = Annotated[float, BeforeValidator(units.fraction), _quantity("number", "a part: 10% or 0.1")]
Number = Annotated[float, BeforeValidator(units.number), WithJsonSchema({"type": "number"})]
Text = Annotated[StrictStr, BeforeValidator(units.text), WithJsonSchema({"type": "string", "minLength": 1})]

PrecisionType = Literal["fp32", "fp16", "bf16"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, value: Any) -> Any:
        return without_nulls(cls, value) if isinstance(value, dict) else value


class _OpenSection(_Section):
    """A section whose other keys are DeepSpeed's: the rules check them."""

    model_config = ConfigDict(extra="allow")


def without_nulls(section: type[BaseModel], value: dict[str, Any]) -> dict[str, Any]:
    """What is said in a section: fields that may be left out and are null are not."""
    optional = {info.alias or name for name, info in section.model_fields.items() if not info.is_required()}
    return {key: inner for key, inner in value.items() if inner is not None or key not in optional}


def _as_type(value: Any) -> Any:
    """`precision: bf16` is short for `precision: {type: bf16}`."""
    return {"type": value} if isinstance(value, str) else value


class Precision(_Section):
    type: PrecisionType = Field(description="Type of weights and activations in forward and backward.")
    accumulate: PrecisionType | None = Field(
        None, description="Type in which gradients are accumulated over micro batches; decided when left out."
    )
    loss_scale: Literal["dynamic"] | Number | None = Field(
        None, description="fp16 only: `dynamic`, or a fixed scale above 0."
    )
    initial_scale_power: NotNegative | None = Field(
        None, le=32, description="fp16, dynamic scale: start at 2 to this power."
    )
    loss_scale_window: Positive | None = Field(
        None, description="fp16, dynamic scale: raise the scale after this many steps without an overflow."
    )
    hysteresis: Positive | None = Field(
        None, description="fp16, dynamic scale: overflows to see before the scale is lowered."
    )
    min_loss_scale: Positive | None = Field(None, description="fp16, dynamic scale: never go below this.")


class Batch(_Section):
    sequence_length: Positive = Field(description="Tokens in one training sequence.")
    micro: Positive | None = Field(None, description="Sequences per rank in one forward pass (micro batch).")
    accumulation: Positive | None = Field(None, description="Forward passes per optimizer step.")
    global_: Positive | None = Field(
        None,
        alias="global",
        description="Sequences per optimizer step over all ranks. Any two of micro, accumulation and global "
        "give the third.",
    )


class Length(_Section):
    steps: Positive | None = Field(None, description="Optimizer steps.")
    epochs: Number | None = Field(None, gt=0, le=100_000, description="Passes over the data.")
    tokens: Positive | None = Field(None, description="Tokens seen: 2B.")


OffloadDevice = Literal["none", "cpu", "nvme"]


def _as_device(value: Any) -> Any:
    """`optimizer: cpu` is short for `optimizer: {device: cpu}`."""
    return {"device": value} if isinstance(value, str) else value


class OffloadOptimizer(_Section):
    device: OffloadDevice = Field(description="Where the optimizer states live.")
    path: Text | None = Field(
        None, description="nvme only: folder on a fast disk of each node, absolute; one for each run."
    )
    pin_memory: StrictBool | None = Field(None, description="Page-locked host memory.")
    buffer_count: Positive | None = Field(None, description="nvme only: buffers in the pool.")
    ratio: Part | None = Field(None, gt=0, description="Stage 3: part of the states that is offloaded.")


class OffloadParameters(_Section):
    device: OffloadDevice = Field(description="Where the 16-bit parameters live.")
    path: Text | None = Field(
        None, description="nvme only: folder on a fast disk of each node, absolute; one for each run."
    )
    pin_memory: StrictBool | None = Field(None, description="Page-locked host memory.")
    buffer_count: Positive | None = Field(None, description="nvme only: buffers in the pool.")
    buffer_size: Positive | None = Field(None, description="nvme only: elements per buffer.")
    max_in_cpu: NotNegative | None = Field(None, description="nvme only: elements kept in host memory.")


class Offload(_Section):
    optimizer: Annotated[OffloadOptimizer | None, BeforeValidator(_as_device)] = Field(
        None,
        description="`cpu`, `nvme` or `none`, or a mapping with `device`. nvme needs stage 3 and libaio with its "
        "header; verified on CPU ranks only, not on NPU or CUDA.",
    )
    parameters: Annotated[OffloadParameters | None, BeforeValidator(_as_device)] = Field(
        None,
        description="`cpu`, `nvme` or `none`, or a mapping with `device`; stage 3 only. nvme as for the optimizer, "
        "which must be offloaded too.",
    )


class Zero(_OpenSection):
    stage: Annotated[Literal[0, 1, 2, 3], BeforeValidator(units.choice)] = Field(description="ZeRO stage.")
    offload: Offload = Field(
        default_factory=Offload.model_construct, description="What moves from device memory to host memory or disk."
    )


class EveryLayers(_Section):
    every: Positive = Field(description="Keep the input of every N-th layer and recompute the layers between.")


class Adapter(_Section):
    type: Literal["lora"] = Field("lora", description="The kind of adapter.")
    rank: Positive = Field(description="Rank of the two small matrices.")
    alpha: Number | None = Field(None, gt=0, description="Scale numerator; 2 x rank when left out.")
    targets: Literal["all-linear"] | Annotated[list[Text], Field(min_length=1)] = Field(
        "all-linear", description="Linear layers that get an adapter: names such as q_proj, or `all-linear`."
    )
    dropout: Number = Field(0.0, ge=0, lt=1, description="Dropout on the adapter's input.")


class Optimizer(_OpenSection):
    type: Text = Field(description="DeepSpeed's own name: AdamW, Adam, Lion, Adagrad, Lamb, Muon, ...")
    lr: Number = Field(
        gt=0, description="Peak learning rate. Other parameters stand beside it under DeepSpeed's names."
    )


class Schedule(_OpenSection):
    type: Literal["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest", "constant"] = Field(
        description="DeepSpeed's own name, or `constant` for none. Its parameters stand beside it."
    )


class ChunkedLoss(_Section):
    chunk_tokens: Positive = Field(description="Take the loss over this many tokens at a time.")


class Parallel(_Section):
    tensor: Positive = Field(1, description="Devices that share one layer (tensor parallel).")
    sequence: Positive = Field(1, description="Devices that share one sequence (Ulysses sequence parallel).")


class Hardware(_Section):
    device: Text = Field(description="A device of the catalogue (`dsgen devices`): ascend-910b3-64g, cpu, ...")
    per_node: Positive | None = Field(None, description="Devices (ranks) used on each node.")
    nodes: Positive | None = Field(None, le=10_000, description="Nodes; the number of `hosts` when those are given.")
    hosts: list[Text] | None = Field(None, min_length=1, description="Host names, the first one is the master.")
    host_memory: Bytes | None = Field(
        None,
        gt=0,
        description="Memory of one node, for `dsgen estimate`; what such servers usually have when left out.",
    )
    cores: Positive | None = Field(None, description="CPU cores of one node.")


class Memory(_Section):
    reclaim_every: NotNegative | None = Field(
        None, description="Give cached device memory back every N optimizer steps; 0 never."
    )
    headroom: Part = Field(
        0.1,
        lt=1,
        description="Part of a device's and of a node's memory that is to stay free, for `dsgen estimate`.",
    )


class Data(_Section):
    files: StrictStr | list[StrictStr] | None = Field(
        None, description="Files or globs: .txt, .jsonl, .parquet; relative to the recipe's folder."
    )
    builtin: Literal["python-topics"] | None = Field(
        None, description="Text that needs no file: the language help that every CPython carries."
    )
    mode: Literal["packed", "truncated", "instruction"] = Field(
        "packed",
        description="packed: texts run on across sequences; truncated: one text per sequence; instruction: prompt "
        "and answer, loss on the answer only.",
    )
    field: Text = Field("text", description="Field of a row that holds the text.")
    prompt_field: Text = Field("prompt", description="mode instruction: field of the prompt.")
    answer_field: Text = Field("answer", description="mode instruction: field of the answer.")
    shuffle: StrictBool = Field(True, description="Shuffle by the seed in every epoch.")


class Evaluation(_Section):
    every: Positive = Field(description="Evaluate every N optimizer steps.")
    steps: Positive = Field(description="Micro batches per rank in one evaluation.")


class Checkpoint(_Section):
    every_steps: NotNegative | None = Field(None, description="Save every N optimizer steps; 0 never.")
    every: Seconds | None = Field(None, description="Save at this interval: 30min.")
    keep: Positive | None = Field(None, description="Keep the newest K checkpoints.")
    at_end: StrictBool = Field(True, description="Save when training ends.")


class Restart(_Section):
    attempts: NotNegative = Field(
        description="Start again from the newest checkpoint after a failure, at most N times."
    )


class Logging(_Section):
    every: Positive = Field(1, description="Report every N optimizer steps.")
    memory_snapshot: Positive | None = Field(
        None, description="Write the largest holders of memory at this optimizer step to memory/ in the run folder."
    )


def _as_script(value: Any) -> Any:
    """`entrypoint: mine.py` is short for `entrypoint: {script: mine.py}`."""
    return {"script": value} if isinstance(value, str) else value


class Entrypoint(_Section):
    script: Text = Field(description="Python file; relative to the recipe's folder.")
    args: list[StrictStr | StrictBool | Number] = Field(
        [],
        description="Its arguments. `{ds_config}`, `{run_dir}`, `{base_dir}` and `{folder}` in them become the path of "
        "ds_config.json, the run folder, the recipe's folder and the folder of the rendered files.",
    )
    local_rank: StrictBool = Field(
        False, description="Pass --local_rank=N as well, which older DeepSpeed scripts wait for."
    )


def _as_image(value: Any) -> Any:
    """`container: IMAGE` is short for `container: {image: IMAGE}`."""
    return {"image": value} if isinstance(value, str) else value


class Container(_Section):
    image: Text = Field(
        description="Image that has Python, torch, DeepSpeed and dsgen; on Ascend CANN and torch_npu too."
    )
    engine: Literal["docker", "podman"] = Field("docker", description="The program that starts it.")
    devices: Literal["nodes", "runtime"] = Field(
        "nodes",
        description="How devices get in: nodes passes device nodes and driver folders one by one; runtime leaves it "
        "to the Ascend Docker Runtime (ASCEND_VISIBLE_DEVICES). CUDA always uses --gpus.",
    )
    shm_size: Bytes | None = Field(
        None, gt=0, description="Size of /dev/shm in the container; when left out it shares the host's (--ipc=host)."
    )
    network: Literal["host", "bridge"] = Field("host", description="Network of the container; several nodes need host.")
    mounts: list[Text] = Field(
        [],
        description="More folders of the host: PATH, PATH:PLACE or PATH:PLACE:ro. The rendered folder, the recipe's "
        "folder, the current folder and absolute paths of the recipe are mounted anyway.",
    )


class Recipe(_Section):
    """A training job in a few lines."""

    schema_: Annotated[Literal[1], BeforeValidator(units.choice)] = Field(
        alias="schema", description="Version of the recipe format: 1."
    )
    name: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = Field(
        description="Name of the job: letters, digits, dot, dash, underscore. Run folders carry it."
    )
    description: StrictStr = Field("", description="What the job is for.")
    model: Text | dict[str, Any] = Field(
        description="A preset (llama-2-13b), a plain size (13b), a path to a Hugging Face config.json or model "
        "folder (it starts with ./, ../, / or ~, or ends in .json), or the fields of a config.json."
    )
    weights: Text | None = Field(
        None, description="Folder or file of safetensors to start from; random weights when left out."
    )
    adapter: Adapter | None = Field(None, description="Train a LoRA adapter instead of all weights.")
    precision: Annotated[Precision, BeforeValidator(_as_type)] = Field(
        description="fp32, fp16 or bf16, or a mapping with `type`."
    )
    batch: Batch = Field(description="Sequence length and batch sizes.")
    length: Length = Field(description="How long to train: exactly one of steps, epochs, tokens.")
    zero: Zero = Field(
        description="ZeRO stage and offload; every other key of DeepSpeed's zero_optimization under its own name."
    )
    activation_checkpointing: Literal["none", "full", "sqrt"] | EveryLayers = Field(
        "none", description="Recompute activations: none, full (every layer), sqrt, or {every: N}."
    )
    attention: Literal["sdpa", "eager"] = Field(
        "sdpa",
        description="How transformers computes attention: sdpa, one fused kernel; or eager, which keeps every score.",
    )
    optimizer: Optimizer = Field(description="Optimizer, under DeepSpeed's type and parameter names.")
    schedule: Schedule | None = Field(None, description="Learning-rate schedule, under DeepSpeed's names.")
    gradient_clipping: Number | None = Field(
        None, ge=0, description="Largest norm of the gradient; 0 turns clipping off; 1.0 when left out."
    )
    loss: Literal["plain", "chunked"] | ChunkedLoss = Field(
        "plain", description="plain, or chunked so that the fp32 logits of all tokens never exist at once."
    )
    parallel: Parallel = Field(default_factory=Parallel.model_construct, description="Tensor and sequence parallelism.")
    hardware: Hardware = Field(description="Devices and hosts.")
    memory: Memory = Field(default_factory=Memory.model_construct, description="Reclaiming cached memory; headroom.")
    data: Data | None = Field(None, description="Training text; only with an entrypoint may it be left out.")
    tokenizer: Text = Field("bytes", description="`bytes`, a path to a tokenizer folder or file, or a hub name.")
    evaluation: Evaluation | None = Field(None, description="Loss on held-out data while training.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint.model_construct, description="Saving the training state.")
    restart: Restart | None = Field(None, description="Starting again after a failure.")
    logging: Logging = Field(default_factory=Logging.model_construct, description="Reporting.")
    seed: NotNegative = Field(42, lt=2**32, description="Seed of weights and data order.")
    launcher: Literal["deepspeed", "torchrun", "slurm", "openmpi", "mpich", "kubernetes"] = Field(
        "deepspeed", description="What starts the ranks."
    )
    environment: dict[str, StrictStr | StrictBool | Number] = Field(
        {}, description="Environment variables of the job; they win over what dsgen derives."
    )
    container: Annotated[Container | None, BeforeValidator(_as_image)] = Field(
        None, description="Image to train in: render adds container.sh, which starts launch.sh in it."
    )
    entrypoint: Annotated[Entrypoint | None, BeforeValidator(_as_script)] = Field(
        None, description="Your own training script instead of the rendered one: its path, or a mapping with `script`."
    )
    trust_remote_code: StrictBool = Field(
        False, description="Let transformers run Python code that comes with the model."
    )
    deepspeed: dict[str, Any] = Field(
        {}, description="Raw keys of ds_config.json, merged last and checked all the same."
    )
