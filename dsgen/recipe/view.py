"""A recipe as rules see it: neutral values, and the way back from neutral paths to the recipe's words and places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsgen.catalog.deepspeed_keys import DEFAULT_VERSION
from dsgen.catalog.devices import Device, UnknownDevice, load_device
from dsgen.catalog.models import Architecture
from dsgen.catalog.parameters import adapter_parameters, adapter_targets, count_parameters
from dsgen.documents.document import Document
from dsgen.documents.positions import Position, dotted
from dsgen.findings import Edit, Finding, Severity
from dsgen.recipe.schema import Adapter, Zero
from dsgen.recipe.typed import Typed
from dsgen.recipe.unbuilt import unbuilt_fields
from dsgen.recipe.words import SCALE_KEYS, decided, get, in_recipe_words, raw_config, said_config
from dsgen.rules.view import Neutral, View, lookup

_INTERVALS = (
    "evaluation.every",
    "checkpoint.every_steps",
    "memory.reclaim_every",
    "logging.every",
    "logging.memory_snapshot",
)


def recipe_view(
    typed: Typed, architecture: Architecture | None, document: Document, deepspeed: str = DEFAULT_VERSION
) -> tuple[View, list[Finding]]:
    """The view of the fields that could be read, and findings about names that are in no catalog."""
    fields = typed.fields
    findings: list[Finding] = []

    def locate(path: Neutral, *, key: bool = False) -> Position:
        words = in_recipe_words(path, document)
        return document.at_key(words) if key else document.at(words)

    def spell(path: Neutral) -> str:
        return dotted(in_recipe_words(path, document))

    def changed(edit: Edit) -> Edit:
        path = in_recipe_words(edit.path, document)
        to = (*path[:-1], edit.to[-1]) if edit.action == "rename" else edit.to
        return replace(edit, path=path, to=to)

    def said(*path: str) -> Any:
        return get(fields, *path)

    adapter: Adapter | None = said("adapter")
    config = said_config(fields)
    device = _device(said("hardware", "device"), document, findings)
    # A default stands in for what is left out, not for what is written and wrong.
    written = said("hardware", "model_fields_set") or ()
    default = default_per_node(device) if device else None
    per_node = said("hardware", "per_node") if "per_node" in written else default
    hosts = tuple(said("hardware", "hosts") or ()) or None
    counted = len(hosts or ()) or None if "hosts" in written else 1
    nodes = said("hardware", "nodes") if "nodes" in written else counted
    targets, files = said("adapter", "targets"), said("data", "files")
    view = View(
        locate=locate,
        spell=spell,
        edit=changed,
        file=document.file,
        deepspeed=deepspeed,
        config=config,
        raw=raw_config(fields),
        decided=decided(fields),
        own_names={"zero_optimization": tuple(Zero.model_fields)},
        stage=said("zero", "stage"),
        offload_optimizer=said("zero", "offload", "optimizer", "device"),
        offload_parameters=said("zero", "offload", "parameters", "device"),
        precision=said("precision", "type"),
        accumulate=said("precision", "accumulate"),
        loss_scale=said("precision", "loss_scale"),
        scale_keys=tuple(name for name in SCALE_KEYS if said("precision", name) is not None),
        micro_batch=said("batch", "micro"),
        accumulation=said("batch", "accumulation"),
        global_batch=said("batch", "global_"),
        sequence_length=said("batch", "sequence_length"),
        has_batch="batch" not in typed.wrong,
        devices=nodes * per_node if nodes and per_node and "parallel" not in typed.wrong else None,
        tensor_parallel=said("parallel", "tensor"),
        sequence_parallel=said("parallel", "sequence"),
        steps=said("length", "steps"),
        epochs=said("length", "epochs"),
        tokens=said("length", "tokens"),
        has_length="length" not in typed.wrong,
        intervals={path: every for path in _INTERVALS if (every := said(*path.split(".")))},
        derives_steps=True,
        saves_every=bool(said("checkpoint", "every_steps") or said("checkpoint", "every")),
        checkpoints_kept=said("checkpoint", "keep") if "checkpoint" not in typed.wrong else None,
        architecture=architecture,
        trainable_parameters=trainable_parameters(architecture, adapter),
        adapter_rank=said("adapter", "rank"),
        adapter_targets=tuple(targets) if isinstance(targets, list) else (),
        checkpoint_every_layers=said("activation_checkpointing", "every"),
        weights=said("weights"),
        trust_remote_code=said("trust_remote_code"),
        device=device,
        per_node=per_node,
        nodes=nodes,
        hosts=hosts,
        launcher=said("launcher"),
        optimizer=said("optimizer", "type"),
        optimizer_parameters=_mapping(lookup(config, "optimizer.params")),
        schedule=said("schedule", "type"),
        schedule_parameters=_mapping(lookup(config, "scheduler.params")),
        environment={name: environment_text(value) for name, value in (said("environment") or {}).items()},
        data_files=data_files(files),
        data_builtin=said("data", "builtin"),
        data_mode=said("data", "mode"),
        data_said=tuple(sorted(said("data", "model_fields_set") or ())),
        has_data="data" not in typed.wrong and "entrypoint" not in typed.wrong,
        entrypoint=said("entrypoint", "script"),
        entrypoint_arguments=tuple(map(argument_text, said("entrypoint", "args") or ())),
        passes_local_rank=bool(said("entrypoint", "local_rank")),
        tokenizer=said("tokenizer"),
        container_image=said("container", "image"),
        container_network=said("container", "network"),
        container_devices=said("container", "devices"),
        container_mounts=tuple(said("container", "mounts") or ()),
        unbuilt=unbuilt_fields(fields),
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


def argument_text(value: Any) -> str:
    """A value of `entrypoint.args` as the word that the script is given: true and false are these words."""
    return str(value).lower() if isinstance(value, bool) else environment_text(value)


def environment_text(value: Any) -> str:
    """A value of `environment:` as the text that the process sees: true is 1, false is 0, whole floats are integers."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


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
