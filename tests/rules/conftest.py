"""Findings of a small recipe, some of whose fields a test writes itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsgen.documents.yaml_reader import read_yaml_text
from dsgen.findings import Finding, FindingsError
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe

from ..conftest import BASE

Findings = Callable[[str], list[Finding]]
HERE = "# here"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A recipe with one thing wrong, and one that is nearly the same and right.

    `wrong` and `right` are fields that replace those of BASE. The finding stands in the line marked `# here`.
    """

    code: str
    path: str
    wrong: str
    right: str
    beside: tuple[str, ...] = ()
    """Codes of findings that cannot be avoided, with the wrong recipe and with the right one."""

    def __str__(self) -> str:
        return f"{self.code}-{self.path}"

    def verify(self, findings: Findings) -> None:
        """The wrong recipe gives exactly this finding, the right one gives none."""
        found = [each for each in findings(self.wrong) if each.code not in self.beside]
        assert [(each.code, each.path) for each in found] == [(self.code, self.path)], found
        lines = recipe_text(self.wrong).splitlines()
        assert HERE in lines[found[0].position.line - 1], found[0]
        assert found[0].message
        assert [each for each in findings(self.right) if each.code not in self.beside] == []


def recipe_text(fields: str) -> str:
    """BASE with some fields replaced by what `fields` says."""
    said = read_yaml_text(fields, "fields").value or {}
    kept = {**BASE, **dict.fromkeys(said)}
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in kept.items() if value is not None) + fields


@pytest.fixture
def findings(tmp_path: Path) -> Findings:
    """Every finding of BASE with some fields replaced."""

    def check(fields: str) -> list[Finding]:
        path = tmp_path / "job.yaml"
        path.write_text(recipe_text(fields))
        try:
            return list(check_recipe(load_recipe(path)).findings)
        except FindingsError as error:
            return list(error.findings)

    return check
