"""Optimizers and learning-rate schedules that a DeepSpeed config can name, and their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dsgen.catalog.datafiles import read_yaml
from dsgen.catalog.deepspeed_keys import load_keys

_FILE = "deepspeed/optimizers.yaml"


@dataclass(frozen=True, kw_only=True)
class OptimizerType:
    """An optimizer by the name that DeepSpeed documents."""

    name: str
    zero: bool
    """Whether ZeRO takes it."""
    offload: bool
    """Whether it has a CPU version, so that its states can live in host memory."""
    parameters: Mapping[str, Any] = field(hash=False)
    """Parameter name -> kind of value (see `kind_problem`)."""


@dataclass(frozen=True, kw_only=True)
class ScheduleType:
    """A learning-rate schedule."""

    name: str
    required: tuple[str, ...]
    """Parameters without a default."""
    parameters: Mapping[str, Any] = field(hash=False)
    """Parameter name -> kind of value (see `kind_problem`)."""


@cache
def optimizer_types() -> Mapping[str, OptimizerType]:
    """Optimizers by name."""
    content, known = read_yaml(_FILE), load_keys().optimizers
    return {
        name: OptimizerType(name=name, parameters=_kinds(known[name.lower()].names), **entry)
        for name, entry in content["optimizers"].items()
    }


def optimizer_type(name: str) -> OptimizerType | None:
    """The optimizer called `name`; DeepSpeed compares its own names without regard to case (runtime/config.py)."""
    return next((each for key, each in optimizer_types().items() if key.lower() == name.lower()), None)


@cache
def schedule_types() -> Mapping[str, ScheduleType]:
    """Schedules by name."""
    return {
        name: ScheduleType(name=name, required=params.required, parameters=_kinds(params.names))
        for name, params in load_keys().schedulers.items()
    }


def _kinds(names: tuple[str, ...]) -> dict[str, Any]:
    kinds = read_yaml(_FILE)["kinds"]
    return {name: kinds.get(name, "any") for name in names}


def kind_problem(value: Any, kind: Any) -> str | None:
    """What is wrong with a parameter value of the given kind, as `expected ...`; None when it is right."""
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(kind, list):
        return None if value in kind else f"expected one of {', '.join(kind)}"
    if kind == "number":
        return None if numeric and 0 <= value < float("inf") else "expected a number of at least 0"
    if kind == "integer":
        whole = numeric and (isinstance(value, int) or value.is_integer()) and 0 <= value < 2**63
        return None if whole else "expected a whole number of at least 0"
    if kind == "bool":
        return None if isinstance(value, bool) else "expected true or false"
    if kind == "text":
        return None if isinstance(value, str) else "expected text"
    if kind == "pair":
        inside = (
            isinstance(value, list)
            and len(value) == 2
            and all(isinstance(x, (int, float)) and not isinstance(x, bool) and 0 <= x < 1 for x in value)
        )
        return None if inside else "expected two numbers in [0, 1), such as [0.9, 0.95]"
    return None
