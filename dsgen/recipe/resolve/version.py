"""A config for a given release of DeepSpeed: without what it does not have, and the same where its defaults differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsgen.catalog.deepspeed_keys import DEFAULT_VERSION, Keys, load_keys
from dsgen.recipe.resolve.ledger import Ledger

Config = dict[str, Any]


def for_version(config: Config, version: str, ledger: Ledger) -> Config:
    """The config as that release of DeepSpeed reads it with the meaning that it has for the newest one known.

    What the recipe itself says is known to that release: the rules have seen to it.
    """
    if version == DEFAULT_VERSION:
        return config
    keys, newest = load_keys(version), load_keys()
    known = _known(config, "", keys, ledger)
    for path, value in _differing_defaults(known, keys, newest):
        section, _, name = path.rpartition(".")
        _inside(known, section)[name] = ledger.note(
            path,
            value,
            f"the default of DeepSpeed {newest.version}; that of {version} is {keys.get(path).default}",  # type: ignore[union-attr]
        )
    return known


def _known(config: Mapping[str, Any], section: str, keys: Keys, ledger: Ledger) -> Config:
    """The part of a section that the release has."""
    kept: Config = {}
    for name, value in config.items():
        path = f"{section}.{name}" if section else name
        if keys.get(path) is None:
            ledger.note(path, None, f"left out: DeepSpeed {keys.version} does not have it")
        elif path == "optimizer.params":
            kept[name] = _parameters(value, path, keys.optimizers[config["type"].lower()].names, keys, ledger)
        elif path == "scheduler.params":
            kept[name] = _parameters(value, path, keys.schedulers[config["type"]].names, keys, ledger)
        elif isinstance(value, Mapping) and keys.canonical(path) in keys.known_sections:
            kept[name] = value if keys.section_policy(path) == "free" else _known(value, path, keys, ledger)
        else:
            kept[name] = value
    return kept


def _parameters(said: Mapping[str, Any], path: str, names: tuple[str, ...], keys: Keys, ledger: Ledger) -> Config:
    for name in said:
        if name not in names:
            ledger.note(f"{path}.{name}", None, f"left out: DeepSpeed {keys.version} does not have it")
    return {name: value for name, value in said.items() if name in names}


def _differing_defaults(config: Config, keys: Keys, newest: Keys) -> Iterator[tuple[str, Any]]:
    """Keys that the config leaves open and whose default is another in the newest release -> that default."""
    for key in newest:
        old = keys.get(key.path)
        if old is None or key.deprecated or not key.has_default or not old.has_default or old.default == key.default:
            continue
        section, _, name = key.path.rpartition(".")
        inside = _inside(config, section)
        if inside is not None and key.default is not None and not {name, *key.aliases} & inside.keys():
            yield key.path, key.default


def _inside(config: Config, section: str) -> Any:
    """A section of the config; None where it has none."""
    value: Any = config
    for part in section.split(".") if section else ():
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else None
