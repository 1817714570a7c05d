"""A config under DeepSpeed's own names of today: old names and aliases replaced, `auto` and unknown keys taken out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsgen.catalog.deepspeed_keys import DEFAULT_VERSION, Keys
from dsgen.catalog.key_history import renamed_to
from dsgen.findings import Finding
from dsgen.rules.view import lookup, truth

_PARAMETERS = ("optimizer.params", "scheduler.params")
"""Sections whose keys are the parameters of a class: they stay as they are."""

_GATHER = "stage3_gather_16bit_weights_on_model_save"

Config = dict[str, Any]


@dataclass(kw_only=True)
class Settled:
    """What a config says, and what was done to read it so. Paths on the right are those of the document, dotted."""

    values: Config
    """Under canonical names; without `auto`, without keys that are ignored, without null where it means nothing."""
    autos: dict[str, str] = field(default_factory=dict)
    """Canonical path of each `auto` that somebody else would have filled in -> its path in the document."""
    ignored: dict[str, str] = field(default_factory=dict)
    """Path in the document of each key that DeepSpeed does not read -> why."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Path in the document of each old name or alias -> the canonical path."""
    names: dict[str, str] = field(default_factory=dict)
    """Canonical path -> path in the document, where they differ."""

    def spelt(self, path: str) -> str:
        """A canonical path as the document writes it."""
        return self.names.get(path, path)


def settled(config: Mapping[str, Any], keys: Keys) -> Settled:
    """Read a config as DeepSpeed with these keys does."""
    out = Settled(values={})
    out.values = _section(config, "", "", keys, out)
    zero = out.values.get("zero_optimization")
    if isinstance(zero, bool):
        out.values["zero_optimization"] = _zero_switch(zero, out)
    elif isinstance(zero, Mapping):
        _old_offload(out.values["zero_optimization"], out)
    if "allgather_size" in out.values:
        out.ignored["allgather_size"] = "DeepSpeed reads it only beside `zero_optimization: true`"
        del out.values["allgather_size"]
    return out


def with_right_types(config: Mapping[str, Any], findings: tuple[Finding, ...]) -> Config:
    """The config with values that DeepSpeed takes for another type (true for 1, "2" for 2) written as that type.

    The lint's rule KEY003 says which they are, and what DeepSpeed makes of them.
    """
    out: Config = _copied(config)
    for finding in findings:
        for edit in finding.fix if finding.code == "KEY003" else ():
            section = lookup(out, edit.path[:-1])
            if edit.action == "set" and isinstance(section, dict) and edit.path[-1] in section:
                section[edit.path[-1]] = edit.value
    return out


def taken(config: Config, name: str) -> Config:
    """A section, taken out of a config; empty when there is none."""
    section = config.pop(name, None)
    return section if isinstance(section, dict) else {}


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of everything that is no mapping, or an empty one."""
    for name, value in config.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path, value


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(inner) for name, inner in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _section(section: Mapping[str, Any], path: str, words: str, keys: Keys, out: Settled) -> Config:
    """`path` is the section's canonical path, `words` its path in the document."""
    policy = keys.section_policy(path) if path in keys.known_sections else "free"
    found: Config = {}
    for name, value in section.items():
        here = f"{words}.{name}" if words else str(name)
        inner = f"{path}.{name}" if path else str(name)
        if policy != "free" and path not in _PARAMETERS:
            key = keys.get(inner) if "." not in str(name) else None
            today = renamed_to(inner, DEFAULT_VERSION)
            if today is not None:
                out.renamed[here] = today
                out.names[today] = here
                if today.rpartition(".")[2] not in section:
                    found[today.rpartition(".")[2]] = value
                continue
            if key is None:
                if policy == "ignored" and inner not in keys.removed:
                    out.ignored[here] = "DeepSpeed knows no such key"
                continue  # else the lint refuses it
            if key.path != inner:
                out.renamed[here] = inner = key.path
            if key.path in found:
                continue  # twice, under two names: the lint refuses it
            if value is None and "null" in key.types:
                continue
            if value == "auto" and "auto" not in (*key.choices, key.default):
                out.autos[inner] = here
                continue
            if isinstance(value, float) and "float" not in key.types and value.is_integer():
                value = int(value)
        elif value == "auto":
            out.autos[inner] = here
            continue
        if here != inner:
            out.names[inner] = here
        found[inner.rpartition(".")[2]] = (
            _section(value, inner, here, keys, out) if isinstance(value, Mapping) else value
        )
    return found


def _zero_switch(on: bool, out: Settled) -> Config:
    """`zero_optimization: true` means stage 1 (runtime/zero/config.py, read_zero_config_deprecated)."""
    out.renamed["zero_optimization"] = "zero_optimization.stage"
    if not on:
        return {"stage": 0}
    size = out.values.pop("allgather_size", None)
    return {"stage": 1} | ({} if size is None else {"allgather_bucket_size": size})


def _old_offload(zero: Config, out: Settled) -> None:
    """The switches that offload sections replaced (runtime/zero/config.py: new_param_fn, set_new_param)."""
    for old, new in (("cpu_offload", "offload_optimizer"), ("cpu_offload_param", "offload_param")):
        value = zero.pop(old, None)
        if value is not None:
            words = out.spelt(f"zero_optimization.{old}")
            if truth(value) and new not in zero:
                zero[new] = {"device": "cpu"}
                out.renamed[words] = f"zero_optimization.{new}"
            else:
                out.ignored[words] = "it is off, as it is without it"
    if zero.pop("cpu_offload_use_pin_memory", None) is not None:
        out.ignored["zero_optimization.cpu_offload_use_pin_memory"] = "DeepSpeed takes it and sets nothing by it"
    old = "stage3_gather_fp16_weights_on_model_save"
    if old in zero:
        value = zero.pop(old)
        zero.setdefault(_GATHER, value)
        out.renamed[f"zero_optimization.{old}"] = f"zero_optimization.{_GATHER}"
