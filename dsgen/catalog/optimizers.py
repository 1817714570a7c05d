"""Optimizers and learning-rate schedules that a DeepSpeed config can name, and their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dsgen.catalog.datafiles import read_yaml
from dsgen.catalog.deepspeed_keys import DEFAULT_VERSION, Params, load_keys

_FILE = "deepspeed/optimizers.yaml"


@dataclass(frozen=True, kw_only=True)
class OptimizerType:
    """An optimizer by the name that DeepSpeed documents."""

    name: str
    zero: bool
    """Whether ZeRO takes it without `zero_allow_untested_optimizer`."""
    offload: bool
    """Whether it has a CPU version, so that its states can live in host memory."""
    parameters: Mapping[str, Any] = field(hash=False)
    """Parameter name -> kind of value (see `kind_problem`)."""
    by_place: Mapping[str, frozenset[str]] = field(hash=False)
    """Where its states live (`device`, `host` or `torch`) -> the parameters that DeepSpeed's class there takes."""


@dataclass(frozen=True, kw_only=True)
class ScheduleType:
    """A learning-rate schedule."""

    name: str
    required: tuple[str, ...]
    """Parameters without a default."""
    parameters: Mapping[str, Any] = field(hash=False)
    """Parameter name -> kind of value (see `kind_problem`)."""


@cache
def optimizer_types(version: str = DEFAULT_VERSION) -> Mapping[str, OptimizerType]:
    """The optimizers that a version of DeepSpeed builds itself, by name.

    Raises UnknownVersion.
    """
    known = load_keys(version).optimizers
    return {
        name: OptimizerType(
            name=name,
            zero=known[name.lower()].zero,
            offload="host" in known[name.lower()].by_place,
            parameters=_kinds(known[name.lower()].names),
            by_place=known[name.lower()].by_place,
        )
        for name in read_yaml(_FILE)["names"]
        if name.lower() in known
    }


def optimizer_type(name: str, version: str = DEFAULT_VERSION) -> OptimizerType | None:
    """The optimizer called `name`; DeepSpeed compares its own names without regard to case (runtime/config.py).

    Raises UnknownVersion.
    """
    return next((each for key, each in optimizer_types(version).items() if key.lower() == name.lower()), None)


@cache
def schedule_types(version: str = DEFAULT_VERSION) -> Mapping[str, ScheduleType]:
    """The schedules that a version of DeepSpeed has itself, by name.

    Raises UnknownVersion.
    """
    return {
        name: ScheduleType(name=name, required=params.required, parameters=_kinds(params.names))
        for name, params in load_keys(version).schedulers.items()
    }


@cache
def class_names(group: str) -> tuple[str, ...]:
    """Names of classes by what they are: `torch`, `mup`, `gone`, `tested` or `torch_schedules` (see the data file)."""
    return tuple(read_yaml(_FILE)[group])


@cache
def torch_schedules() -> Mapping[str, Params]:
    """The schedules of torch 2.13 that DeepSpeed builds by name, each with what it takes besides the optimizer."""
    return {
        name: Params(
            names=(*entry.get("required", ()), *entry.get("optional", ())), required=tuple(entry.get("required", ()))
        )
        for name, entry in read_yaml(_FILE)["torch_schedules"].items()
    }


def _kinds(names: tuple[str, ...]) -> dict[str, Any]:
    kinds = read_yaml(_FILE)["kinds"]
    return {name: kinds[name] for name in names}


def kind_problem(value: Any, kind: Any) -> str | None:
    """What is wrong with a parameter value of the given kind, as `expected ...`; None when it is right."""
    if isinstance(kind, list):
        return None if value in kind else f"expected one of {', '.join(kind)}"
    right, expected = _KINDS[kind]
    return None if right(value) else f"expected {expected}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def _is_whole(value: Any) -> bool:
    return _is_number(value) and value == int(value) and value < 2**63


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_is_number(each) and each < 1 for each in value)


_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "number": (_is_number, "a number of at least 0"),
    "integer": (_is_whole, "a whole number of at least 0"),
    "positive": (lambda value: _is_whole(value) and value >= 1, "a whole number of at least 1"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "text": (lambda value: isinstance(value, str), "text"),
    "pair": (_is_pair, "two numbers in [0, 1), such as [0.9, 0.95]"),
}
