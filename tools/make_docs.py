"""Write the documents that are made from the code: docs/recipe.md, docs/recipe.schema.json and docs/rules/.

python tools/make_docs.py
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from dsgen.recipe import schema
from dsgen.recipe.json_schema import recipe_json_schema
from dsgen.recipe.schema import Recipe
from dsgen.report.console import printable
from dsgen.report.explain import by_family, severities
from dsgen.rules.documentation import KINDS, Documentation, about_family, all_documentation

DOCS = Path(__file__).resolve().parent.parent / "docs"

HEAD = """# Fields of a recipe

Made from the classes that check recipes by `tools/make_docs.py`; change the descriptions there.

A recipe is YAML 1.2: `1e-5` and `5e8` are numbers, `on` is text, a key that stands twice is an error. Counts take units
(`2M`, `5e8`), sizes (`64GiB`), durations (`30min`), parts (`10%`). Relative paths count from the recipe's folder; a
model, weights or tokenizer is a path when it starts with `./`, `../`, `/` or `~`, or ends in `.json`.

`extends: other.yaml` starts from another recipe: mappings are merged key by key, anything else is replaced. On the
command line `--set batch.global=256` replaces a value, last of all.

Without a unit a size is in bytes and a duration in seconds. A `weights` or `tokenizer` that is no path is a name on a
hub, which is then looked up when the job starts; nothing else ever is.

Where the default is `none`, dsgen decides the value if the job needs one; `dsgen render --explain` and the lock give
the reason.
"""

QUANTITIES = {
    id(schema.Count): "count",
    id(schema.Positive): "count, at least 1",
    id(schema.NotNegative): "count, at least 0",
    id(schema.Bytes): "size",
    id(schema.Seconds): "duration",
    id(schema.Part): "part",
    id(schema.Number): "number",
}
PLAIN = {str: "text", bool: "true or false", int: "whole number", float: "number", Any: "anything"}


def kind(annotation: Any) -> str:
    """An annotation in words."""
    if id(annotation) in QUANTITIES:
        return QUANTITIES[id(annotation)]
    if annotation in PLAIN:
        return PLAIN[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind(inner[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(kind(each) for each in inner if each is not type(None))
    if origin is list:
        return f"list of {kind(inner[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    return str(annotation)


def types_of(model: type[BaseModel]) -> dict[str, Any]:
    """Field -> the annotation as it is written, units included: pydantic's field info has taken them apart."""
    return {
        name: annotation
        for cls in reversed(model.__mro__)
        for name, annotation in resolved(cls).items()
        if name in model.model_fields
    }


def resolved(cls: type) -> dict[str, Any]:
    """The annotations that a class itself has, evaluated where they were written."""
    return inspect.get_annotations(cls, globals=vars(schema), eval_str=True)


def default(info: Any) -> str:
    """A default in words."""
    if info.is_required():
        return ""
    value = info.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return ""
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else (f"`{value}`" if value else "empty")


def sections(model: type[BaseModel], path: str, description: str) -> Iterator[str]:
    """The table of a section and of the sections in it."""
    yield f"\n## {path or 'Top level'}\n\n{description}\n" if path else "\n## Top level\n"
    yield "\n| field | value | default | meaning |\n|---|---|---|---|\n"
    inner: list[tuple[type[BaseModel], str, str]] = []
    annotations = types_of(model)
    for name, info in model.model_fields.items():
        key = info.alias or name
        words = kind(annotations[name]).replace("|", "\\|")
        about = (info.description or "").replace("|", "\\|")
        yield f"| `{key}` | {words} | {'**required**' if info.is_required() else default(info)} | {about} |\n"
        for each in models_in(annotations[name]):
            inner.append((each, f"{path}.{key}" if path else key, info.description or ""))
    if model.model_config.get("extra") == "allow":
        yield "\nOther keys stand here under DeepSpeed's own names, and are checked against what DeepSpeed knows.\n"
    for each, where, about in inner:
        yield from sections(each, where, about)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The section classes in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from models_in(each)


def recipe_md() -> str:
    """docs/recipe.md."""
    return HEAD + "".join(sections(Recipe, "", ""))


def recipe_schema() -> str:
    """docs/recipe.schema.json."""
    return json.dumps(recipe_json_schema(), indent=2) + "\n"


RULES_HEAD = """# Codes of findings

Made from the documentation of the rules by `tools/make_docs.py`; change it there. `dsgen explain CODE` prints the same.

An **error** makes a command refuse: DeepSpeed (or the trainer) would stop, crash, or do something else than is written.
A **warning** trains, but otherwise than one would think. An **info** says what is good to know. In a ds_config.json
that somebody wrote by hand a rule may be less severe than in a recipe: one such file often serves several jobs.

`# dsgen: ignore[CODE]` behind a value leaves out the findings of its line, on a line of its own those of the next line;
`# dsgen: ignore-file[CODE]` those of the file. Where `//` starts a comment it does here too. `--ignore CODE` leaves a
code out everywhere, and so does `ignore` in `.dsgen.yaml` or `[tool.dsgen]` of pyproject.toml.
"""

LANGUAGES = {"recipe": "yaml", "accelerate": "yaml"}
"""Kind of an example -> the language of its block."""


def rules_index() -> str:
    """docs/rules/README.md."""
    parts = [RULES_HEAD]
    for family, members in by_family(all_documentation()):
        parts.append(f"\n## {family}\n\n{markdown(about_family(family))}\n")
        parts.append("\n| code | severity | what is wrong |\n|---|---|---|\n")
        for each in members:
            parts.append(f"| [{each.code}]({each.code}.md) | {severities(each)} | {markdown(each.summary)} |\n")
    return "".join(parts)


def rule_page(each: Documentation) -> str:
    """docs/rules/CODE.md."""
    parts = [f"# {each.code}\n\n**{markdown(each.summary)}**\n"]
    parts.append(f"\nSeverity: {severities(each)}. Since {markdown(each.since)}.\n\n{markdown(each.text)}\n")
    for title, sample in ((f"Example ({KINDS[each.kind]})", each.example), ("Instead", each.instead)):
        language = LANGUAGES.get(each.kind) or ("json" if is_json(sample.text) else "")
        parts.append(f"\n## {title}\n\n```{language}\n{shown(sample.text)}\n```\n")
    if each.options:
        parts.append(f"\nFound with `{each.options}`.\n")
    return "".join(parts)


def shown(text: str) -> str:
    """A sample whose invisible characters can be seen."""
    return "\n".join(printable(line) for line in text.splitlines())


def is_json(text: str) -> bool:
    """Whether a block is JSON; hjson would be marked as wrong in every line."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def markdown(text: str) -> str:
    """Text as Markdown shows it, outside of what stands in backticks."""
    return re.sub(r"`[^`]*`|[<*|]|__", lambda match: match[0] if match[0][0] == "`" else f"\\{match[0]}", text)


def documents() -> dict[str, str]:
    """Every document that is made, by its path in docs/."""
    pages = {f"rules/{each.code}.md": rule_page(each) for each in all_documentation()}
    return {
        "recipe.md": recipe_md(),
        "recipe.schema.json": recipe_schema(),
        "rules/README.md": rules_index(),
        **pages,
    }


def main() -> None:
    (DOCS / "rules").mkdir(exist_ok=True)
    made = documents()
    for path in (DOCS / "rules").iterdir():
        if f"rules/{path.name}" not in made:
            path.unlink()
    for name, text in made.items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
