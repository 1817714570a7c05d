"""A ds_config.json that anyone wrote as a recipe to estimate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dsgen.documents.document import Document
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


def recipe_of_config(
    document: Document, job: Job, around: Surroundings, micro_batch: int | None, overrides: Iterable[str] = ()
) -> tuple[LoadedRecipe, tuple[str, ...]]:
    """The recipe of a config with overrides, and as lines what was assumed of it that memory depends on.

    `micro_batch` wins over what the config says; gradient accumulation gives way to the global batch.
    Raises FindingsError for a config, or a recipe of it, with errors; DsgenError for a document of another kind;
    DocumentError for an override that cannot be applied.
    """
    result = import_config(document, job, around, None)
    refused = [finding for finding in result.findings if not only_its_run(finding)]
    if has_errors(refused):
        raise FindingsError(refused, sources=result.sources)
    name = f"{document.file} as a recipe"
    read = read_yaml_text(result.text, name)
    loaded = LoadedRecipe(path=Path(name), folder=Path(), document=read, inputs=(), overrides=())
    changes = [*_smaller(read.value["batch"], micro_batch), *overrides]
    said = {change.partition("=")[0] for change in changes}
    assumed = [
        f"{path}: {value}: {why}" for path, value, why in _assumed(result) if not any(path.startswith(p) for p in said)
    ]
    return overridden(loaded, changes), tuple(assumed)


def _smaller(batch: Mapping[str, Any], micro: int | None) -> Iterator[str]:
    if micro is None:
        return
    yield f"batch.micro={micro}"
    if "accumulation" in batch and "global" in batch:
        # Two of the three are enough, and all three may contradict each other.
        yield "batch.accumulation=null"


def _assumed(result: Import) -> Iterator[tuple[str, Any, str]]:
    """Path, value and reason."""
    recipe = result.imported.recipe
    yield (
        "activation_checkpointing",
        "none",
        "no config says it; --set activation_checkpointing=full if the script does",
    )
    for remark in result.imported.remarks:
        if remark.kind == "fill-in" and not remark.path.startswith(_WITHOUT_BYTES):
            yield remark.path, lookup(recipe, remark.path), remark.text
        elif remark.kind == "decided":
            path, value, why = remark.text.split(": ", 2)
            yield path, value, why
