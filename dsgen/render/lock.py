"""dsgen.lock.yaml: what a rendered folder was made from, and every decided value with its reason.

No estimates stand in it: a better formula must not make a committed folder stale.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import dsgen
from dsgen.documents.errors import DocumentError
from dsgen.documents.positions import Position
from dsgen.documents.yaml_reader import read_yaml_file
from dsgen.recipe.check import CheckedRecipe
from dsgen.recipe.plan import Plan

LOCK_NAME = "dsgen.lock.yaml"

_VERSION_KEY = "dsgen"


@dataclass(frozen=True, kw_only=True)
class Lock:
    """What an existing lock says."""

    dsgen: str
    deepspeed: str
    """The release of DeepSpeed that the config is written for."""
    overrides: tuple[str, ...]
    templates: str | None
    """Folder of the user's templates, relative to the recipe's folder."""
    files: Mapping[str, str]
    """Rendered file -> SHA-256 of its content."""


def lock_text(
    checked: CheckedRecipe,
    plan: Plan,
    files: Mapping[str, bytes],
    overlay: Path | None,
    replaced: Mapping[str, bytes],
) -> str:
    """The lock of a set of rendered files."""
    recipe, *others = checked.inputs
    inputs: dict[str, Any] = {"recipe": {"name": recipe.name, "sha256": recipe.sha256}}
    if others:
        inputs["files"] = [{"name": each.name, "sha256": each.sha256} for each in others]
    if checked.loaded.overrides:
        inputs["overrides"] = list(checked.loaded.overrides)
    if overlay is not None:
        inputs["templates"] = {
            "folder": os.path.relpath(overlay, checked.loaded.folder).replace(os.sep, "/"),
            "files": {name: digest(data) for name, data in sorted(replaced.items())},
        }
    content = {
        "lock": 1,
        _VERSION_KEY: dsgen.__version__,
        "deepspeed": plan.deepspeed,
        "inputs": inputs,
        "files": {name: digest(data) for name, data in sorted(files.items())},
        "resolved": [{"path": d.path, "value": _plain(d.value), "reason": d.reason} for d in plan.decisions],
    }
    head = "# What this folder was rendered from, and why each value is what it is. `dsgen render --check` compares.\n"
    return head + yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def read_lock(folder: Path) -> Lock | None:
    """The lock of a rendered folder, or None when it has none. Raises DocumentError for one that cannot be read."""
    path = folder / LOCK_NAME
    if not path.is_file():
        return None
    value = read_yaml_file(path).value
    try:
        if value["lock"] != 1:
            raise ValueError
        inputs = value["inputs"]
        templates = inputs.get("templates")
        lock = Lock(
            dsgen=str(value[_VERSION_KEY]),
            deepspeed=str(value["deepspeed"]),
            overrides=tuple(str(text) for text in inputs.get("overrides", ())),
            templates=str(templates["folder"]) if templates else None,
            files={str(name): str(digest) for name, digest in value["files"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DocumentError(
            "is not a lock that this dsgen can read", Position(str(path)), help="render the folder again with --force"
        ) from None
    return lock


def without_version(lock: bytes) -> bytes:
    """A lock without the line that names dsgen's version: another version alone is no difference."""
    start = f"{_VERSION_KEY}: ".encode()
    return b"".join(line for line in lock.splitlines(keepends=True) if not line.startswith(start))


def digest(data: bytes) -> str:
    """SHA-256 of a file's content, as locks write it."""
    return hashlib.sha256(data).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


class _Dumper(yaml.SafeDumper):
    """Block style without anchors, so that equal values do not become aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    # PyYAML writes 2e-05, which YAML 1.1 readers take for text
    text = repr(value)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e", 1)
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(float, _represent_float)
