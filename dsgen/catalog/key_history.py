"""What changed in DeepSpeed's configuration keys from one version to the next.

`history.json` is derived from the files of the versions by `tools/derive_deepspeed_versions.py`. Paths are canonical
ones; what a version itself knows, aliases included: `dsgen.catalog.deepspeed_keys`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from dsgen.catalog.datafiles import read_json, read_yaml
from dsgen.catalog.deepspeed_keys import known_versions

_FILE = "deepspeed/history.json"


def last_version(path: str) -> str | None:
    """The last version that had the key; None for a key that the newest known version has, or that none has."""
    return _last(read_json(_FILE)["keys"].get(path))


def next_version(path: str, version: str) -> str | None:
    """The first version after the given one that has the key; None when none has."""
    known = known_versions()
    later = (start for start, *_ in read_json(_FILE)["keys"].get(path, ()) if known.index(start) > known.index(version))
    return next(later, None)


def default_changes(path: str) -> tuple[tuple[str, Any, Any], ...]:
    """Every change of a key's default: the first version with the new one, the old default, the new one."""
    return tuple((version, old, new) for version, old, new in read_json(_FILE)["defaults"].get(path, ()))


def renamed_to(path: str, version: str) -> str | None:
    """The name that a version has instead of an old one; None when the key has not been renamed by then."""
    new = next((new for old, new in _renames() if old == path), None)
    return new if new is not None and _has(new, version) else None


def renamed_from(path: str, version: str) -> str | None:
    """The old name that a version still has for a key; None when it has the new one, or the key never had another."""
    old = next((old for old, new in _renames() if new == path), None)
    return old if old is not None and _has(old, version) else None


@cache
def _renames() -> tuple[tuple[str, str], ...]:
    return tuple((each["from"], each["to"]) for each in read_yaml("deepspeed/renames.yaml")["renames"])


def _has(path: str, version: str) -> bool:
    known = known_versions()
    spans = read_json(_FILE)["keys"][path]
    return any(
        known.index(first) <= known.index(version) <= known.index(last[0] if last else known[-1])
        for first, *last in spans
    )


def _last(spans: list[list[str]] | None) -> str | None:
    return spans[-1][1] if spans and len(spans[-1]) == 2 else None
