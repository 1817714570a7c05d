"""The register of rules, and running them over a view."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dsgen.findings import Finding, Severity
from dsgen.rules.view import Neutral, View

FAMILIES = (
    "batch",
    "length",
    "model",
    "precision",
    "zero",
    "offload",
    "keys",
    "optimizer",
    "schedule",
    "hardware",
    "environment",
    "data",
    "checkpoint",
    "entrypoint",
    "container",
    "unbuilt",
)
"""Modules of this package that hold rules, in the order in which their findings are listed."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a rule yields. `path` is neutral (see View); `on_key` points at the key instead of the value."""

    path: Neutral
    message: str
    help: str = ""
    on_key: bool = False


Check = Callable[[View], Iterable[Problem]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A registered rule; its documentation is the docstring of `check`."""

    code: str
    severity: Severity
    check: Check


_RULES: dict[str, Rule] = {}


def rule(code: str, severity: Severity = Severity.ERROR) -> Callable[[Check], Check]:
    """Register a function `(View) -> iterable of Problem` as the rule `code`."""

    def register(check: Check) -> Check:
        if code in _RULES:
            raise ValueError(f"rule code {code} is taken by {_RULES[code].check.__name__}")
        _RULES[code] = Rule(code=code, severity=severity, check=check)
        return check

    return register


def all_rules() -> tuple[Rule, ...]:
    """Every rule of every family, in order."""
    for family in FAMILIES:
        importlib.import_module(f"dsgen.rules.{family}")
    return tuple(_RULES.values())


def run_rules(view: View) -> Iterator[Finding]:
    """Findings of every rule on `view`, placed in the document and spelt in its words."""
    for each in all_rules():
        for problem in each.check(view):
            yield Finding(
                code=each.code,
                severity=each.severity,
                message=problem.message,
                help=problem.help,
                path=view.spell(problem.path),
                position=view.locate(problem.path, key=problem.on_key),
            )
