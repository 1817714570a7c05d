"""Reading the shipped data files: one file at a time, when it is asked for, once per process."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).resolve().parent / "data"
# libyaml's loader is about ten times faster, and not part of every PyYAML build.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@functools.cache
def read_yaml(name: str) -> Any:
    """The content of `dsgen/catalog/data/NAME`. The object is shared by all callers: copy before changing it."""
    with (_FOLDER / name).open("rb") as stream:
        return yaml.load(stream, Loader=_Loader)


@functools.cache
def read_json(name: str) -> Any:
    """The content of `dsgen/catalog/data/NAME`. The object is shared by all callers: copy before changing it."""
    return json.loads((_FOLDER / name).read_text(encoding="utf-8"))


def names(folder: str, suffix: str) -> tuple[str, ...]:
    """The stems of the shipped files with that suffix in a folder of the data, sorted."""
    return tuple(sorted(path.name[: -len(suffix)] for path in (_FOLDER / folder).glob(f"*{suffix}")))
