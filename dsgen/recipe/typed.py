"""From a document to typed fields. A wrong value takes only itself away, so that rules still see everything else."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from operator import getitem
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from dsgen.documents.document import Document
from dsgen.findings import Finding
from dsgen.recipe.schema import Recipe, without_nulls
from dsgen.recipe.type_findings import models_in, type_findings


@dataclass(frozen=True, kw_only=True)
class Typed:
    """The fields of a recipe as far as their types are right."""

    fields: Mapping[str, Any]
    """Attribute name -> value; None for one that is missing or wrong. A section holds those of its fields that are
    right."""
    wrong: frozenset[str]
    """Attribute names of fields that are missing or wrong, or have something in them that is."""
    recipe: Recipe | None
    """The whole recipe when nothing is wrong."""
    findings: tuple[Finding, ...]


def typed_fields(document: Document) -> Typed:
    """Give the fields of a document (a mapping at its top) their types."""
    try:
        recipe = Recipe.model_validate(document.value)
    except ValidationError as error:
        salvaged = _salvaged(Recipe, document.value)
        places = {str(each["loc"][0]) for each in error.errors(include_url=False, include_input=False)}
        wrong = {name for name, info in Recipe.model_fields.items() if (info.alias or name) in places}
        return Typed(
            fields=dict(salvaged),
            wrong=frozenset(wrong),
            recipe=None,
            findings=tuple(type_findings(document, error)),
        )
    return Typed(fields=dict(recipe), wrong=frozenset(), recipe=recipe, findings=())


def _salvaged(section: type[BaseModel], value: Mapping[str, Any]) -> BaseModel:
    """A section without what is wrong in it."""
    said = without_nulls(section, dict(value))
    keys = {info.alias or name: name for name, info in section.model_fields.items()}
    good: dict[str, Any] = {}
    for key, name in keys.items():
        info = section.model_fields[name]
        if key in said:
            good[name] = _salvaged_field(section, name, said[key])
        else:
            good[name] = None if info.is_required() else info.get_default(call_default_factory=True)
    made = section.model_construct(_fields_set={keys[key] for key in said if key in keys}, **good)
    if made.model_extra is not None:
        made.model_extra.update({key: inner for key, inner in said.items() if key not in keys})
    return made


def _salvaged_field(section: type[BaseModel], name: str, value: Any) -> Any:
    try:
        return _adapter(section, name).validate_python(value)
    except ValidationError:
        inner = next(models_in(section.model_fields[name].annotation), None)
        return _salvaged(inner, value) if inner is not None and isinstance(value, dict) else None


@functools.cache
def _adapter(section: type[BaseModel], name: str) -> TypeAdapter[Any]:
    info = section.model_fields[name]
    annotation: Any = getitem(Annotated, (info.annotation, *info.metadata)) if info.metadata else info.annotation
    return TypeAdapter(annotation)
