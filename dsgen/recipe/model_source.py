"""Which model a recipe means: a preset, a plain size, a config.json, or an architecture written out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from dsgen.catalog.models import Architecture, BadArchitecture, UnknownModel, from_config, load_preset
from dsgen.documents.document import Document
from dsgen.documents.positions import Position
from dsgen.findings import Finding, Severity
from dsgen.recipe.load import Input, is_path

MAX_CONFIG_BYTES = 4 * 2**20


class ModelProblem(Exception):
    """The model cannot be read; `finding` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def read_model(
    model: str | Mapping[str, Any], folder: FilePath, document: Document
) -> tuple[Architecture, tuple[Input, ...]]:
    """The architecture that `model:` means, and the config.json that was read for it, if any.

    Raises ModelProblem.
    """
    if isinstance(model, Mapping):
        return _written_out(model, "custom", document), ()
    if is_path(model):
        return _from_file(model, folder, document)
    try:
        return load_preset(model), ()
    except UnknownModel as error:
        near = f"did you mean {' or '.join(error.suggestions)}?" if error.suggestions else ""
        raise _problem(
            "REC004",
            f"unknown model {model!r}",
            document.at(("model",)),
            help=near or "give a preset, a size such as 7b, a path that starts with ./, or the fields of a config.json",
        ) from None


def _from_file(name: str, folder: FilePath, document: Document) -> tuple[Architecture, tuple[Input, ...]]:
    place = document.at(("model",))
    try:
        path = folder / FilePath(name).expanduser()
        if path.is_dir():
            path, name = path / "config.json", name.rstrip("/") + "/config.json"
        with path.open("rb") as stream:
            data = stream.read(MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _problem(
            "REC004", f"{name!r} cannot be read: {reason}", place, help="the path counts from the recipe's folder"
        ) from None
    try:
        if len(data) > MAX_CONFIG_BYTES:
            raise ValueError(f"larger than {MAX_CONFIG_BYTES // 2**20} MiB")
        config = json.loads(data.decode("utf-8-sig"))
        if not isinstance(config, dict):
            raise ValueError("holds no JSON object")
    except (ValueError, RecursionError) as error:
        raise _problem("REC004", f"{name!r} is not a model's config.json: {error}", place) from None
    digest = hashlib.sha256(data).hexdigest()
    return _written_out(config, FilePath(name).parent.name or "custom", document), (Input(name=name, sha256=digest),)


def _written_out(config: Mapping[str, Any], name: str, document: Document) -> Architecture:
    try:
        return from_config(config, name=name)
    except BadArchitecture as error:
        field = getattr(error, "field", None)
        position = document.at(("model", field)) if field else document.at(("model",))
        raise _problem("REC005", f"model: {error}", position) from None


def _problem(code: str, message: str, position: Position, *, help: str = "") -> ModelProblem:
    return ModelProblem(
        Finding(code=code, severity=Severity.ERROR, message=message, position=position, path="model", help=help)
    )
