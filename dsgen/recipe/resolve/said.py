"""What a recipe says under DeepSpeed's own names, as DeepSpeed would read it from a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsgen.catalog.deepspeed_keys import load_keys


def as_read(config: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """Keys of a section under their documented names, and `5e8` as an integer where DeepSpeed wants one."""
    keys = load_keys()
    read: dict[str, Any] = {}
    for name, value in config.items():
        path = f"{section}.{name}" if section else name
        key = None if "." in name else keys.get(path)
        if isinstance(value, Mapping):
            value = as_read(value, path)
        elif key is not None and "float" not in key.types and isinstance(value, float) and value.is_integer():
            value = int(value)
        read[key.name if key is not None else name] = value
    return read
