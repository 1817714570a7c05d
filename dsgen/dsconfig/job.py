"""What a config does not say of the job that it is for, and reading it from words."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from dsgen.catalog.deepspeed_keys import DEFAULT_VERSION, UnknownVersion, known_versions, nearest_version
from dsgen.catalog.devices import Device, UnknownDevice, load_device
from dsgen.catalog.models import Architecture, BadArchitecture, UnknownModel, from_config, load_preset
from dsgen.findings import DsgenError

Framework = Literal["native", "transformers"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The surroundings of a config; None where nobody has said."""

    deepspeed: str = DEFAULT_VERSION
    framework: Framework | None = None
    """None: transformers when the config holds `auto`, else native."""
    world_size: int | None = None
    device: Device | None = None
    architecture: Architecture | None = None
    sequence_length: int | None = None
    client_optimizer: str | None = None
    """Type of the optimizer that the script passes to deepspeed.initialize; `none` when it passes none."""


def job_named(
    *,
    deepspeed: str | None = None,
    framework: str | None = None,
    world_size: int | None = None,
    device: str | None = None,
    model: str | None = None,
    client_optimizer: str | None = None,
) -> Job:
    """The job that words describe. Raises DsgenError for a name that is in no catalog."""
    return Job(
        deepspeed=version_named(deepspeed),
        framework=cast("Framework | None", framework),
        world_size=world_size,
        device=device_named(device) if device is not None else None,
        architecture=model_named(model) if model is not None else None,
        client_optimizer=_optimizer_named(client_optimizer),
    )


def _optimizer_named(text: str | None) -> str | None:
    """The type that `torch.optim.AdamW` or `AdamW` names; `none` for None, as Python writes it, too."""
    name = text.strip().rpartition(".")[2] if text is not None else None
    return "none" if name is not None and name.lower() in ("none", "") else name


def version_named(text: str | None) -> str:
    """The version of DeepSpeed whose keys are meant: a number, `0.16` for its last release, or `installed`.

    Raises DsgenError.
    """
    if text is None:
        return DEFAULT_VERSION
    if text == "installed":
        from importlib.metadata import PackageNotFoundError, version

        try:
            text = version("deepspeed")
        except PackageNotFoundError:
            raise DsgenError(
                "DeepSpeed is not installed here", help=f"name a version, for example --deepspeed {DEFAULT_VERSION}"
            ) from None
        return nearest_version(text)
    try:
        text = text.strip().removeprefix("v")
        found = nearest_version(text)
        said = re.match(r"[\d.]*\d", text.strip())
        if said is None or not f"{found}.".startswith(f"{said[0]}."):
            raise UnknownVersion(text, known_versions())
        return found
    except UnknownVersion:
        raise DsgenError(
            f"nothing is known of DeepSpeed {text}",
            help=f"known are {known_versions()[0]} to {known_versions()[-1]}; a later dsgen may know later ones",
        ) from None


def device_named(name: str) -> Device:
    """The device of that name. Raises DsgenError."""
    try:
        return load_device(name)
    except UnknownDevice as error:
        near = f"did you mean {' or '.join(error.suggestions)}?" if error.suggestions else "see `dsgen devices`"
        raise DsgenError(f"unknown device {name!r}", help=near) from None


def model_named(name: str) -> Architecture:
    """The architecture of a preset, a size, or a config.json (or the folder of one). Raises DsgenError."""
    if name.startswith((".", "/", "~")) or name.endswith(".json"):
        path = Path(name).expanduser()
        path = path / "config.json" if path.is_dir() else path
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return from_config(content if isinstance(content, dict) else {}, name=path.parent.name)
        except OSError as error:
            raise DsgenError(f"model {name}: cannot be read: {error.strerror or error}") from None
        except (ValueError, BadArchitecture) as error:
            raise DsgenError(f"model {name}: {error}", help="give the config.json of a model") from None
    try:
        return load_preset(name)
    except UnknownModel as error:
        near = f"did you mean {' or '.join(error.suggestions)}?" if error.suggestions else "see `dsgen models`"
        raise DsgenError(f"unknown model {name!r}", help=near) from None
