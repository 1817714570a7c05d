"""The JSON Schema of ds_config.json, for editors, from what DeepSpeed knows in a version."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dsgen.catalog.deepspeed_keys import DEFAULT_VERSION, Key, Keys, Params, load_keys
from dsgen.catalog.optimizers import class_names, optimizer_types
from dsgen.rules.auto import FILLED_BY_TRAINER

_TYPES = {
    "bool": "boolean",
    "int": "integer",
    "float": "number",
    "str": "string",
    "list": "array",
    "dict": "object",
    "null": "null",
}

_LIMITS = {
    "minimum": ("minimum", "at least"),
    "exclusive_minimum": ("exclusiveMinimum", "more than"),
    "maximum": ("maximum", "at most"),
    "exclusive_maximum": ("exclusiveMaximum", "less than"),
}
"""Field of Key -> keyword of JSON Schema, and words."""


def ds_config_json_schema(version: str = DEFAULT_VERSION) -> dict[str, Any]:
    """JSON Schema (2020-12) of a ds_config.json for a version of DeepSpeed.

    Stricter than DeepSpeed in what helps somebody who is writing: a key that DeepSpeed would ignore is not allowed, nor
    is text where it would make a number of it. `auto` may stand where transformers fills it in. What settings mean to
    each other is not in it. Raises UnknownVersion.
    """
    keys = load_keys(version)
    schema = _section(keys, "")
    schema["properties"]["$schema"] = {"type": "string"}
    _follow_type(
        schema["properties"]["optimizer"],
        {_any_case(name): keys.optimizers[name.lower()] for name in optimizer_types(version)},
        names=(*optimizer_types(version), *class_names("mup"), *class_names("torch")),
        any_case=(*optimizer_types(version), *class_names("mup")),
    )
    _follow_type(
        schema["properties"]["scheduler"],
        {f"^{name}$": params for name, params in keys.schedulers.items()},
        names=(*keys.schedulers, *class_names("torch_schedules")),
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"ds_config.json of DeepSpeed {version}",
        **schema,
    }


def _section(keys: Keys, path: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for key in keys.children(path):
        if "python" in key.types:
            continue  # an object of the program, which no file can hold
        properties[key.name] = _property(keys, key)
        pointer = "/".join(("#", *(f"properties/{part}" for part in key.path.split("."))))
        for alias in key.aliases:
            properties[alias] = {"$ref": pointer, "description": f"Another name of {key.name}."}
    # Arguments of a class: which ones depends on the type beside them.
    open_ended = keys.section_policy(path) == "free" or path in ("optimizer.params", "scheduler.params")
    return {"type": "object", "properties": properties, **({} if open_ended else {"additionalProperties": False})}


def _property(keys: Keys, key: Key) -> dict[str, Any]:
    types = [_TYPES[each] for each in key.types]
    value: dict[str, Any] = _section(keys, key.path) if key.path in keys.known_sections else {}
    value["type"] = types if len(types) > 1 else types[0]
    for name, (keyword, _) in _LIMITS.items():
        if getattr(key, name) is not None:
            value[keyword] = getattr(key, name)
    if key.choices:
        choices = {"enum": list(_spellings(key) if key.any_case else key.choices)}
        if "array" in types:
            value["items"] = choices
        else:
            value |= {"enum": [*choices["enum"], *([None] if "null" in types else [])]}
    if key.path in FILLED_BY_TRAINER or (key.default == "auto" and "string" not in types):
        value = {"anyOf": [value, {"const": "auto"}]}
    if key.has_default:
        value["default"] = key.default
    if key.deprecated:
        value["deprecated"] = True
    return value | {"description": _description(key)}


def _spellings(key: Key) -> Iterable[str]:
    return dict.fromkeys(spelling for each in key.choices for spelling in (each, each.lower(), each.upper()))


def _description(key: Key) -> str:
    parts = [f"{key.path}."]
    if key.has_default:
        parts.append(f"Default: {json.dumps(key.default)}.")
    limits = [
        f"{words} {getattr(key, name):g}" for name, (_, words) in _LIMITS.items() if getattr(key, name) is not None
    ]
    if limits:
        parts.append(f"{' and '.join(limits).capitalize()}.")
    if key.aliases:
        parts.append(f"Also called {', '.join(key.aliases)}.")
    if key.deprecated:
        parts.append(f"Deprecated{': write ' + ' or '.join(key.replaced_by) if key.replaced_by else ''}.")
    if key.path in FILLED_BY_TRAINER:
        parts.append("Transformers fills in auto.")
    return " ".join(parts)


def _follow_type(
    section: dict[str, Any], known: Mapping[str, Params], *, names: Iterable[str], any_case: Iterable[str] = ()
) -> None:
    """Let a section have a type of these names, and the params that follow from it.

    `known`: pattern of a type -> what it takes; any other type is a class whose arguments are not known here.
    """
    spellings = [{"enum": [*dict.fromkeys(names), None]}, *({"pattern": _any_case(name)} for name in any_case)]
    section["properties"]["type"]["anyOf"] = spellings
    section["allOf"] = [
        {
            "if": {"properties": {"type": {"type": "string", "pattern": pattern}}, "required": ["type"]},
            "then": {
                "properties": {
                    "params": {"propertyNames": {"enum": list(params.names)}, "required": list(params.required)}
                },
                "required": ["params"] if params.required else [],
            },
        }
        for pattern, params in known.items()
    ]


def _any_case(name: str) -> str:
    """A pattern for the name without regard to case, which JSON Schema has no switch for."""
    return f"^{''.join(f'[{each.upper()}{each.lower()}]' for each in name)}$"
