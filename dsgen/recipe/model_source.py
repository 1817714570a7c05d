"""Which model a recipe means: a preset, a plain size, a config.json, or an architecture written out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from dsgen.catalog.models import Architecture, BadArchitecture, UnknownModel, from_config, load_preset
from dsgen.documents.document import Document
from dsgen.documents.errors import DocumentError
from dsgen.documents.positions import Path, Position, dotted
from dsgen.documents.yaml_reader import MAX_BYTES, read_bytes
from dsgen.findings import Finding, Severity
from dsgen.recipe.load import Input, is_path


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
        data = read_bytes(path)
    except (DocumentError, OSError, ValueError, RuntimeError) as error:
        reason = error.message if isinstance(error, DocumentError) else f"cannot be read: {error}"
        raise _problem("REC004", f"{name!r} {reason}", place, help="the path counts from the recipe's folder") from None
    try:
        config = _read_json(data)
    except ValueError as error:
        raise _problem("REC004", f"{name!r} is not a model's config.json: {error}", place) from None
    architecture = _written_out(config, FilePath(name).parent.name or "custom", document, source=f"{name!r}: ")
    return architecture, (Input(name=name, sha256=hashlib.sha256(data).hexdigest()),)


def _read_json(data: bytes) -> dict[str, Any]:
    """Raises ValueError with a reason for people."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES // 2**20} MiB")
    try:
        config = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(config, dict):
        raise ValueError("it holds no JSON object")
    return config


def _written_out(config: Mapping[str, Any], name: str, document: Document, *, source: str = "") -> Architecture:
    try:
        return from_config(config, name=name)
    except BadArchitecture as error:
        path = ("model", error.field)
        raise _problem(
            "REC005",
            f"{source}{error.field} {error.problem}",
            document.at(path),
            path=path if document.has(path) else ("model",),
            help=f"expected {error.expected}",
        ) from None


def _problem(code: str, message: str, position: Position, *, path: Path = ("model",), help: str = "") -> ModelProblem:
    return ModelProblem(
        Finding(code=code, severity=Severity.ERROR, message=message, position=position, path=dotted(path), help=help)
    )
