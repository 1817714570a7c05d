"""A ds_config.json that anyone wrote as a recipe to estimate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsgen.documents.document import Document
from dsgen.documents.errors import DocumentError
from dsgen.documents.positions import Position
from dsgen.documents.yaml_reader import read_yaml_text
from dsgen.dsconfig.imported import Import, import_config
from dsgen.dsconfig.job import Job
from dsgen.dsconfig.recipe_from import Surroundings
from dsgen.findings import FindingsError, has_errors
from dsgen.recipe.load import LoadedRecipe, overridden
from dsgen.recipe.unbuilt import only_its_run
from dsgen.rules.view import lookup

_WITHOUT_BYTES = ("weights", "tokenizer", "data.", "length.", "hardware.hosts", "optimizer.lr", "schedule")
"""Placeholders of an import that memory does not depend on."""

_STAGE = re.compile(r"zero\.stage=\s*([0-3])\s*")
_MOST_SIZES = 16
"""Possible micro batches that a message lists."""
_CPU_CLASSES = {"deepspeedcpuadam": "AdamW", "deepspeedcpulion": "Lion"}
"""DeepSpeed's optimizers for offload that a script may pass -> the type of a recipe that is built as one."""


def recipe_of_config(
    document: Document, job: Job, around: Surroundings, micro_batch: int | None, overrides: Iterable[str] = ()
) -> tuple[LoadedRecipe, tuple[str, ...]]:
    """The recipe of a config with overrides, and as lines what was assumed of it that memory depends on.

    `micro_batch` wins over what the config says; gradient accumulation gives way to the global batch. A stage among the
    overrides counts as if the config said it, so that DeepSpeed's defaults are those of that stage.
    Raises FindingsError for a config, or a recipe of it, with errors; DsgenError for a document of another kind;
    DocumentError for an override that cannot be applied, or a micro batch that the global batch is no multiple of.
    """
    overrides = tuple(overrides)
    document = _at_stage(document, overrides)
    result = import_config(document, job, around, None)
    refused = [finding for finding in result.findings if not only_its_run(finding)]
    if has_errors(refused):
        raise FindingsError(refused, sources=result.sources)
    name = f"{document.file} as a recipe"
    read = read_yaml_text(result.text, name)
    loaded = LoadedRecipe(path=Path(name), folder=Path(), document=read, inputs=(), overrides=())
    if micro_batch is not None:
        _check_micro(document, result.imported.recipe, micro_batch, overrides)
    passed = _CPU_CLASSES.get((job.client_optimizer or "").lower())
    changes = [
        *_smaller(read.value["batch"], micro_batch),
        *([f"optimizer.type={passed}"] if passed and "optimizer" not in document.value else []),
        *overrides,
    ]
    said = {change.partition("=")[0] for change in changes}
    changed = overridden(loaded, changes)
    assumed = [
        f"{path}: {value}: {why}"
        for path, value, why in _assumed(result, document.value, changed.document.value)
        if not any(path.startswith(p) for p in said)
    ]
    return changed, tuple(assumed)


def _at_stage(document: Document, overrides: Iterable[str]) -> Document:
    """The config with the stage of the last override that gives one."""
    for text in reversed(tuple(overrides)):
        match = _STAGE.fullmatch(text)
        if match is None or not isinstance(document.value, Mapping):
            continue
        zero = document.value.get("zero_optimization")
        section = {**(zero if isinstance(zero, Mapping) else {}), "stage": int(match[1])}
        path, place = ("zero_optimization", "stage"), Position(f"--set {text}")
        return replace(
            document,
            value={**document.value, "zero_optimization": section},
            values={**document.values, path: place},
            keys={**document.keys, path: place},
        )
    return document


def _check_micro(document: Document, recipe: Mapping[str, Any], micro: int, overrides: Iterable[str]) -> None:
    """What --micro-batch breaks is told of it and of the config's own key, not of a recipe that nobody has written."""
    total, hardware, shards = recipe["batch"].get("global"), recipe["hardware"], recipe.get("parallel", {})
    if total is None or any(text.startswith(("batch", "hardware", "parallel")) for text in overrides):
        return
    split = shards.get("tensor", 1) * shards.get("sequence", 1)
    ranks = max(1, hardware["per_node"] * hardware["nodes"] // split)
    if total % (micro * ranks) == 0 or total % ranks:
        return
    each = total // ranks
    sizes = [str(size) for size in range(1, min(each, 1 << 16) + 1) if each % size == 0]
    listed = ", ".join(sizes[:_MOST_SIZES]) + (", ..." if len(sizes) > _MOST_SIZES else "")
    raise DocumentError(
        f"--micro-batch {micro} does not divide train_batch_size: {total} on {ranks} data-parallel "
        f"rank{'s' if ranks > 1 else ''} is {each} for each",
        document.at(("train_batch_size",)),
        help=f"possible with this train_batch_size: {listed}",
    )


def _smaller(batch: Mapping[str, Any], micro: int | None) -> Iterator[str]:
    if micro is None:
        return
    yield f"batch.micro={micro}"
    if "accumulation" in batch and "global" in batch:
        # Two of the three are enough, and all three may contradict each other.
        yield "batch.accumulation=null"


def _assumed(result: Import, config: Mapping[str, Any], changed: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Path, value and reason; `changed` is the recipe with its overrides."""
    recipe = result.imported.recipe
    why = "no config says it"
    if "activation_checkpointing" in config:
        # deepspeed.checkpointing.configure only keeps the section for checkpoint() of the same module.
        why = "the config's section only configures deepspeed.checkpointing, which the script itself must call"
    yield "activation_checkpointing", "none", f"{why}; --set activation_checkpointing=full if the script does"
    for remark in result.imported.remarks:
        if remark.kind == "fill-in" and remark.path == "optimizer.type" and _offloads_its_own(config, changed):
            why = "the config names none, and with optimizer offload DeepSpeed takes only its own class from the script"
            yield remark.path, "AdamW as DeepSpeedCPUAdam", why
        elif remark.kind == "fill-in" and not remark.path.startswith(_WITHOUT_BYTES):
            yield remark.path, lookup(recipe, remark.path), remark.text
        elif remark.kind == "decided":
            path, value, why = remark.text.split(": ", 2)
            yield path, value, why


def _offloads_its_own(config: Mapping[str, Any], changed: Mapping[str, Any]) -> bool:
    """Whether the optimizer is offloaded and DeepSpeed refuses one of the script's own (runtime/engine.py)."""
    place = lookup(changed, "zero.offload.optimizer")
    device = place.get("device") if isinstance(place, Mapping) else place
    return device in ("cpu", "nvme") and lookup(config, "zero_force_ds_cpu_optimizer") is not False
