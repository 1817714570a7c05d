"""Plans and findings of BASE with some fields replaced."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dsgen.documents.yaml_reader import read_yaml_text
from dsgen.findings import Finding, FindingsError
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve import resolve

from ..conftest import BASE

Plans = Callable[..., Plan]
Check = Callable[..., list[Finding]]


@pytest.fixture
def plan_of(tmp_path: Path) -> Plans:
    """The plan of BASE with some fields replaced; fields are YAML text."""

    def make(*overrides: str, **fields: str) -> Plan:
        content = BASE | {name: read_yaml_text(text, name).value for name, text in fields.items()}
        path = tmp_path / "job.yaml"
        path.write_text(json.dumps(content))
        return resolve(check_recipe(load_recipe(path, overrides)))

    return make


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Every finding of a recipe's text, which stands in `r.yaml`."""
    monkeypatch.chdir(tmp_path)

    def run(text: str, *overrides: str) -> list[Finding]:
        Path("r.yaml").write_text(text)
        try:
            return list(check_recipe(load_recipe(Path("r.yaml"), overrides)).findings)
        except FindingsError as error:
            return list(error.findings)

    return run
