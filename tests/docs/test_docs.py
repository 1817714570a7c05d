"""Documents say what the code does."""

from __future__ import annotations

import importlib.util
import re
import types
from pathlib import Path

import pytest
import yaml

from dsgen.recipe.schema import Recipe
from dsgen.rules.documentation import all_documentation, documentation

from ..conftest import RECIPES, REPOSITORY

DOCUMENTS = [
    *REPOSITORY.glob("*.md"),
    *(REPOSITORY / "docs").rglob("*.md"),
]


@pytest.fixture(scope="module")
def make_docs() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("make_docs", REPOSITORY / "tools" / "make_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_made_documents_are_current(make_docs: types.ModuleType) -> None:
    docs, made = REPOSITORY / "docs", make_docs.documents()
    stale = [name for name, text in made.items() if not (docs / name).exists() or (docs / name).read_text() != text]
    assert stale == [], "run python tools/make_docs.py"
    assert {f"rules/{path.name}" for path in (docs / "rules").iterdir()} == {name for name in made if "/" in name}


def test_every_code_has_a_page_that_the_index_links(make_docs: types.ModuleType) -> None:
    index = make_docs.rules_index()
    for each in all_documentation():
        assert f"| [{each.code}]({each.code}.md) | {each.severity.value}" in index
    page = make_docs.rule_page(documentation("KEY009"))
    assert page.startswith("# KEY009\n\n**A key that DeepSpeed knows in another section.**\n\nSeverity: error. Since ")
    assert '\n## Example (ds_config.json)\n\n```json\n{"offload_optimizer": {"device": "cpu"}, ' in page
    assert make_docs.markdown("a_b <ENV> x * y `<c>` __init__") == "a_b \\<ENV> x \\* y `<c>` \\__init\\__"


def test_every_field_is_described() -> None:
    text = (REPOSITORY / "docs" / "recipe.md").read_text()
    for name, info in Recipe.model_fields.items():
        assert f"| `{info.alias or name}` |" in text
        assert info.description


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_readme_shows_the_shipped_recipe(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    block = next(block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "13b-zero2" in block)
    shown, shipped = yaml.safe_load(block), yaml.safe_load((RECIPES / "13b-zero2.yaml").read_text())
    shipped.pop("description")
    shipped.pop("memory")
    assert shown == shipped
    named = set(re.findall(r"`([a-z0-9.-]+)`", text)) | set(re.findall(r"recipes/([a-z0-9.-]+)\.yaml", text))
    assert {path.stem for path in RECIPES.glob("*.yaml")} <= named
