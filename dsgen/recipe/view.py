"""A recipe as rules see it: neutral values, and the way back from neutral paths to the recipe's words and places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsgen.catalog.devices import Device, UnknownDevice, load_device
from dsgen.catalog.models import Architecture
from dsgen.catalog.parameters import adapter_parameters, adapter_targets, count_parameters
from dsgen.documents.document import Document
from dsgen.documents.positions import Path, Position, dotted, undotted
from dsgen.findings import Finding, Severity
from dsgen.recipe.schema import Adapter, EveryLayers, OffloadOptimizer, OffloadParameters
from dsgen.recipe.unbuilt import unbuilt_fields
from dsgen.rules.view import Neutral, View

_WORDS: Mapping[Path, Path] = {
    ("train_batch_size",): ("batch", "global"),
    ("train_micro_batch_size_per_gpu",): ("batch", "micro"),
    ("gradient_accumulation_steps",): ("batch", "accumulation"),
    ("zero_optimization", "stage"): ("zero", "stage"),
    ("zero_optimization", "offload_optimizer", "nvme_path"): ("zero", "offload", "optimizer", "path"),
    ("zero_optimization", "offload_optimizer"): ("zero", "offload", "optimizer"),
    ("zero_optimization", "offload_param", "nvme_path"): ("zero", "offload", "parameters", "path"),
    ("zero_optimization", "offload_param"): ("zero", "offload", "parameters"),
    ("zero_optimization",): ("zero",),
    ("fp16",): ("precision",),
    ("bf16",): ("precision",),
    ("data_types", "grad_accum_dtype"): ("precision", "accumulate"),
    ("optimizer", "params"): ("optimizer",),
    ("optimizer",): ("optimizer",),
    ("scheduler", "params"): ("schedule",),
    ("scheduler",): ("schedule",),
    ("gradient_clipping",): ("gradient_clipping",),
}
"""ds_config.json path -> recipe path; what follows the prefix is kept. The longest prefix wins."""

OFFLOAD_NAMES = {"path": "nvme_path"}
"""Recipe name -> ds_config.json name inside an offload section, where they differ."""


def in_recipe_words(path: Neutral, document: Document) -> Path:
    """Where the recipe says, or would say, what a neutral path means."""
    neutral = undotted(path) if isinstance(path, str) else path
    raw: Path = ("deepspeed", *neutral)
    if document.has(raw):
        return raw
    for end in range(len(neutral), 0, -1):
        words = _WORDS.get(neutral[:end])
        if words is not None:
            return words + neutral[end:]
    return neutral


def recipe_view(
    fields: Mapping[str, Any], architecture: Architecture | None, document: Document
) -> tuple[View, list[Finding]]:
    """The view of the fields that could be read, and findings about names that are in no catalog."""
    findings: list[Finding] = []

    def locate(path: Neutral, *, key: bool = False) -> Position:
        words = in_recipe_words(path, document)
        return document.at_key(words) if key else document.at(words)

    def spell(path: Neutral) -> str:
        return dotted(in_recipe_words(path, document))

    hardware, batch, zero = fields.get("hardware"), fields.get("batch"), fields.get("zero")
    precision, length, data = fields.get("precision"), fields.get("length"), fields.get("data")
    optimizer, schedule, parallel = fields.get("optimizer"), fields.get("schedule"), fields.get("parallel")
    adapter: Adapter | None = fields.get("adapter")
    raw = merged({"zero_optimization": dict(zero.model_extra or {})} if zero else {}, fields.get("deepspeed") or {})
    device = _device(hardware.device if hardware else None, document, findings)
    per_node = _per_node(hardware, device)
    hosts = tuple(hardware.hosts) if hardware and hardware.hosts else None
    nodes = (hardware.nodes or (len(hosts) if hosts else 1)) if hardware else None
    checkpointing = fields.get("activation_checkpointing")
    view = View(
        locate=locate,
        spell=spell,
        config=merged(_said_config(fields), raw),
        raw=raw,
        stage=zero.stage if zero else None,
        offload_optimizer=_offload_device(zero, "optimizer"),
        offload_parameters=_offload_device(zero, "parameters"),
        precision=precision.type if precision else None,
        accumulate=precision.accumulate if precision else None,
        loss_scale=precision.loss_scale if precision else None,
        scale_keys=_scale_keys(precision),
        micro_batch=batch.micro if batch else None,
        accumulation=batch.accumulation if batch else None,
        global_batch=batch.global_ if batch else None,
        sequence_length=batch.sequence_length if batch else None,
        devices=nodes * per_node if nodes and per_node else None,
        tensor_parallel=parallel.tensor if parallel else None,
        sequence_parallel=parallel.sequence if parallel else None,
        steps=length.steps if length else None,
        epochs=length.epochs if length else None,
        tokens=length.tokens if length else None,
        has_length=length is not None and not _wrong_inside(document, length, "length"),
        architecture=architecture,
        trainable_parameters=trainable_parameters(architecture, adapter),
        adapter_targets=tuple(adapter.targets) if adapter and isinstance(adapter.targets, list) else (),
        checkpoint_every_layers=checkpointing.every if isinstance(checkpointing, EveryLayers) else None,
        weights=fields.get("weights"),
        trust_remote_code=fields.get("trust_remote_code"),
        device=device,
        per_node=per_node,
        nodes=nodes,
        hosts=hosts,
        launcher=fields.get("launcher"),
        optimizer=optimizer.type if optimizer else None,
        optimizer_parameters=_parameters(optimizer),
        schedule=schedule.type if schedule else None,
        schedule_parameters=dict(schedule.model_extra or {}) if schedule else {},
        environment={name: environment_text(value) for name, value in (fields.get("environment") or {}).items()},
        data_files=data_files(data.files) if data else None,
        data_builtin=data.builtin if data else None,
        data_mode=data.mode if data else None,
        has_data=data is not None and not _wrong_inside(document, data, "data"),
        tokenizer=fields.get("tokenizer"),
        unbuilt=unbuilt_fields(fields, document),
    )
    return view, findings


def trainable_parameters(architecture: Architecture | None, adapter: Adapter | None) -> int | None:
    """Parameters that get gradients: all of them, or those of the adapter."""
    if architecture is None:
        return None
    if adapter is None:
        return count_parameters(architecture).total
    targets = [name for name in adapter_target_names(architecture, adapter) if name in adapter_targets(architecture)]
    return adapter_parameters(architecture, adapter.rank, targets) if adapter.rank else None


def adapter_target_names(architecture: Architecture, adapter: Adapter) -> tuple[str, ...]:
    """The linear layers that get an adapter; `all-linear` means those inside the layers, as peft takes it."""
    if adapter.targets == "all-linear":
        return tuple(name for name in adapter_targets(architecture) if name not in ("lm_head", "embed_tokens"))
    return tuple(adapter.targets or ())


def data_files(files: str | list[str] | None) -> tuple[str, ...] | None:
    """`files:` as a tuple; one text stands for one file or glob."""
    if files is None:
        return None
    return (files,) if isinstance(files, str) else tuple(files)


def environment_text(value: Any) -> str:
    """A value of `environment:` as the text that the process sees: true is 1, false is 0, whole floats are integers."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`: mappings key by key, anything else replaced."""
    out = dict(base)
    for key, value in over.items():
        inner = out.get(key)
        out[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return out


def _said_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the recipe says about zero_optimization, in the shape of ds_config.json."""
    zero = fields.get("zero")
    if zero is None:
        return {}
    section: dict[str, Any] = dict(zero.model_extra or {})
    if zero.stage is not None:
        section["stage"] = zero.stage
    offload = zero.offload
    for name, key in (("optimizer", "offload_optimizer"), ("parameters", "offload_param")):
        part: OffloadOptimizer | OffloadParameters | None = getattr(offload, name, None) if offload else None
        if part is not None:
            section[key] = offload_config(part)
    return {"zero_optimization": section}


def offload_config(part: OffloadOptimizer | OffloadParameters) -> dict[str, Any]:
    """An offload section as ds_config.json says it; only what the recipe says."""
    said = part.model_dump(exclude_none=True)
    return {OFFLOAD_NAMES.get(name, name): value for name, value in said.items()}


def _offload_device(zero: Any, name: str) -> str | None:
    part = getattr(zero.offload, name, None) if zero and zero.offload else None
    return part.device if part else None


def _scale_keys(precision: Any) -> tuple[str, ...]:
    names = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
    return tuple(name for name in names if precision and getattr(precision, name, None) is not None)


def _parameters(optimizer: Any) -> dict[str, Any]:
    if optimizer is None:
        return {}
    rate = {} if optimizer.lr is None else {"lr": optimizer.lr}
    return rate | dict(optimizer.model_extra or {})


def _per_node(hardware: Any, device: Device | None) -> int | None:
    if hardware is None:
        return None
    if hardware.per_node is not None:
        return int(hardware.per_node)
    return default_per_node(device) if device else None


def default_per_node(device: Device) -> int:
    """Ranks per node when a recipe does not say: all devices of a server; one on CPU."""
    return 1 if device.kind == "cpu" else device.devices_per_server or 1


def _device(name: str | None, document: Document, findings: list[Finding]) -> Device | None:
    if name is None:
        return None
    try:
        return load_device(name)
    except UnknownDevice as error:
        near = f"did you mean {' or '.join(error.suggestions)}?" if error.suggestions else "see `dsgen devices`"
        findings.append(
            Finding(
                code="REC006",
                severity=Severity.ERROR,
                message=f"unknown device {name!r}",
                position=document.at(("hardware", "device")),
                path="hardware.device",
                help=near,
            )
        )
        return None


def _wrong_inside(document: Document, section: Any, name: str) -> bool:
    """Whether a salvaged section lost a field that the document gives, so that counting its fields would mislead."""
    said = document.value.get(name) if isinstance(document.value, dict) else None
    if not isinstance(said, dict):
        return True
    return any(getattr(section, key, None) is None and value is not None for key, value in said.items())
