"""Environment variables of Ascend runs: what they mean, which values are right, and how they reach other nodes."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsgen.catalog.datafiles import read_yaml
from dsgen.catalog.devices import Kind

# Source: DeepSpeed 0.19.8, launcher/runner.py (EXPORT_ENVS) and accelerator/*_accelerator.py (export_envs).
_CARRIED_ALWAYS = ("MLFLOW", "PYTHON", "MV2", "UCX")
_CARRIED_BY_KIND: Mapping[Kind, tuple[str, ...]] = {
    "npu": ("ASCEND", "HCCL", "LD_LIBRARY", "PATH"),
    "cuda": ("NCCL",),
    "cpu": (),
}


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One environment variable. `integer` and its limits, `choices` or `pattern` say which values are right."""

    name: str
    default: str | None
    """What holds when it is not set; None when nothing does."""
    meaning: str
    use: str
    """When to set it, and to what; empty when there is nothing to say."""
    integer: bool
    """Whether the value is a whole number."""
    minimum: int | None
    maximum: int | None
    multiple_of: int | None
    unit: str
    """What the number counts: `s`, `MB`, or nothing."""
    choices: tuple[str, ...]
    """The only values, compared without case; empty when there are others."""
    pattern: str | None
    """Regular expression that the whole value matches."""
    greater_than: str | None
    """Name of a variable whose value has to be less than this one's."""
    only: tuple[str, ...]
    """The hardware that reads it (`box16`, `A3`); empty for all."""
    per_node: bool
    """Whether every node needs a value of its own."""
    required: bool
    """Whether nothing runs without it."""
    carried_by_deepspeed: bool
    """Whether DeepSpeed's launcher carries it to the other nodes of an NPU run."""
    source: str
    doubt: str
    """What is uncertain about this entry; empty when nothing is."""

    @property
    def expected(self) -> str:
        """The right values in words; empty when any value will do."""
        if self.integer:
            return self._expected_integer()
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return f"a value of the form {self.pattern}" if self.pattern else ""

    def _expected_integer(self) -> str:
        words = "a whole number"
        if self.multiple_of is not None:
            words = f"a multiple of {self.multiple_of}"
        if self.maximum is not None:
            words += f" from {self.minimum} to {self.maximum}"
        elif self.minimum is not None:
            words += f" of at least {self.minimum}"
        return f"{words} ({self.unit})" if self.unit else words

    def accepts(self, value: str) -> bool:
        """Whether the value is right, as far as this entry can say."""
        if self.integer:
            return self._accepts_integer(value)
        if self.choices:
            return value.lower() in (choice.lower() for choice in self.choices)
        return self.pattern is None or re.fullmatch(self.pattern, value) is not None

    def _accepts_integer(self, value: str) -> bool:
        if re.fullmatch(r"-?[0-9]+", value) is None:
            return False
        number = int(value)
        return (
            (self.minimum is None or number >= self.minimum)
            and (self.maximum is None or number <= self.maximum)
            and (self.multiple_of is None or number % self.multiple_of == 0)
        )


def carried_by_deepspeed_launcher(name: str, kind: Kind) -> bool:
    """Whether DeepSpeed's launcher exports a variable to the other nodes of a run on that kind of device.

    It goes by the beginning of the name. What it does not carry has to stand in `.deepspeed_env`.
    """
    return name.startswith(_CARRIED_ALWAYS + _CARRIED_BY_KIND[kind])


@functools.cache
def load_environment() -> Mapping[str, Variable]:
    """The variables that matter on Ascend, by name."""
    content = read_yaml("environment/ascend.yaml")
    return {name: _variable(name, entry, content["sources"]) for name, entry in content["variables"].items()}


def known_variable(name: str) -> Variable | None:
    """The variable of that name; None for one that says nothing to Ascend. Asking reads the data file."""
    return load_environment().get(name)


def _variable(name: str, entry: Mapping[str, Any], sources: Mapping[str, str]) -> Variable:
    integer: Mapping[str, int] = entry.get("integer", {})
    return Variable(
        name=name,
        default=entry.get("default"),
        meaning=entry["meaning"],
        use=entry.get("use", ""),
        integer="integer" in entry,
        minimum=integer.get("minimum"),
        maximum=integer.get("maximum"),
        multiple_of=integer.get("multiple_of"),
        unit=entry.get("unit", ""),
        choices=tuple(entry.get("choices", ())),
        pattern=entry.get("pattern"),
        greater_than=entry.get("greater_than"),
        only=tuple(entry.get("only", ())),
        per_node=entry.get("per_node", False),
        required=entry.get("required", False),
        carried_by_deepspeed=carried_by_deepspeed_launcher(name, "npu"),
        source=sources[entry["source"]],
        doubt=entry.get("doubt", ""),
    )
