"""The register of rules, and running them over a view."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from dsgen.documents.positions import Position
from dsgen.findings import Edit, Finding, Severity
from dsgen.rules.other_codes import OTHER_CODES
from dsgen.rules.view import Neutral, View

FAMILIES = (
    "reading",
    "auto",
    "batch",
    "length",
    "model",
    "precision",
    "zero",
    "offload",
    "keys",
    "optimizer",
    "schedule",
    "activation_checkpointing",
    "sections",
    "hardware",
    "environment",
    "hostfile",
    "accelerate",
    "npu",
    "versions",
    "advice",
    "secrets",
    "data",
    "checkpoint",
    "entrypoint",
    "container",
    "unbuilt",
)
"""Modules of this package that hold rules, in the order in which their findings are listed."""


LIMIT = 50
"""Findings of one rule in one document: what goes wrong more often than this is not read."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a rule yields. `path` is neutral (see View); `on_key` points at the key instead of the value."""

    path: Neutral
    message: str
    help: str = ""
    on_key: bool = False
    position: Position | None = None
    """The place, where it is not that of the path."""
    severity: Severity | None = None
    """Another severity than the rule's."""
    fix: tuple[Edit, ...] = ()
    """Changes by neutral paths that mend it, where they are safe."""


Check = Callable[[View], Iterable[Problem]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A registered rule; its documentation is the docstring of `check`."""

    code: str
    severity: Severity
    in_ds_config: Severity
    """Severity in a ds_config.json that somebody wrote by hand: often one file serves several jobs and trainers."""
    check: Check
    family: str


_RULES: dict[str, Rule] = {}


def rule(
    code: str, severity: Severity = Severity.ERROR, *, ds_config: Severity | None = None
) -> Callable[[Check], Check]:
    """Register a function `(View) -> iterable of Problem` as the rule `code`; `ds_config` is its severity there."""

    def register(check: Check) -> Check:
        if code in _RULES:
            raise ValueError(f"rule code {code} is taken by {_RULES[code].check.__name__}")
        family = check.__module__.rpartition(".")[2]
        _RULES[code] = Rule(
            code=code, severity=severity, in_ds_config=ds_config or severity, check=check, family=family
        )
        return check

    return register


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule of every family, in order."""
    for family in FAMILIES:
        importlib.import_module(f"dsgen.rules.{family}")
    return tuple(sorted(_RULES.values(), key=lambda each: FAMILIES.index(each.family)))


def run_rules(view: View, families: Collection[str] = FAMILIES) -> Iterator[Finding]:
    """Findings of the rules of some families on `view`, placed in the document and spelt in its words.

    At most LIMIT of each rule.
    """
    for each in all_rules():
        if each.family not in families:
            continue
        problems = iter(each.check(view))
        for problem in itertools.islice(problems, LIMIT):
            yield _finding(each, problem, view)
        more = next(problems, None)
        if more is not None:
            yield replace(
                _finding(each, more, view),
                message=f"{each.code} has more than {LIMIT} findings here; only the first {LIMIT} are listed",
                help="mend these and look again",
                fix=(),
            )


def _finding(each: Rule, problem: Problem, view: View) -> Finding:
    usual = each.in_ds_config if view.kind == "ds_config" else each.severity
    return Finding(
        code=each.code,
        severity=problem.severity or usual,
        message=problem.message,
        help=problem.help,
        path=view.spell(problem.path),
        position=problem.position or view.locate(problem.path, key=problem.on_key),
        fix=tuple(view.edit(edit) for edit in problem.fix),
    )


def all_codes() -> frozenset[str]:
    """Every code that a finding can have."""
    return frozenset(each.code for each in all_rules()) | OTHER_CODES.keys()
