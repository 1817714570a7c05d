"""What holds for every rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dsgen.rules
from dsgen.findings import Severity
from dsgen.rules.registry import FAMILIES, Rule, all_rules, rule

RULES = all_rules()


@pytest.mark.parametrize("each", RULES, ids=lambda each: each.code)
def test_rule_says_what_it_is(each: Rule) -> None:
    assert re.fullmatch(r"[A-Z]{3}\d{3}", each.code)
    assert each.check.__module__.rpartition(".")[2] in FAMILIES


def test_codes_are_unique_and_a_family_has_one_prefix() -> None:
    codes = [each.code for each in RULES]
    assert len(codes) == len(set(codes))
    prefixes = {each.check.__module__: set() for each in RULES}
    for each in RULES:
        prefixes[each.check.__module__].add(each.code[:3])
    assert all(len(used) == 1 for used in prefixes.values())
    with pytest.raises(ValueError, match="BAT001 is taken by parallel_divides_devices"):
        rule("BAT001")(lambda view: ())


def test_every_module_of_rules_is_listed() -> None:
    modules = {path.stem for path in Path(dsgen.rules.__file__).parent.glob("*.py")}
    assert modules == {*FAMILIES, "__init__", "registry", "view", "documentation", "other_codes", "suppress"} | {
        "key_values",
        "unknown_keys",
    }


def test_rules_judge_in_three_ways() -> None:
    assert {each.severity for each in RULES} == set(Severity)
