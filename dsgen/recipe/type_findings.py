"""pydantic's errors in the words of a recipe, one finding per place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from dsgen.catalog.lookup import alike, nearest
from dsgen.documents.document import Document
from dsgen.documents.positions import Path, dotted
from dsgen.findings import Edit, Finding, Severity
from dsgen.recipe.schema import Recipe
from dsgen.recipe.units import shown

_CODES = {"extra_forbidden": "REC001", "missing": "REC003"}
_WRONG_VALUE = "REC002"


def type_findings(document: Document, error: ValidationError) -> Iterator[Finding]:
    """What is unknown, missing or of a wrong type."""
    places: dict[Path, list[Any]] = {}
    for each in error.errors(include_url=False, include_input=False):
        path = _document_path(document.value, each["loc"], with_last=each["type"] in _CODES)
        places.setdefault(path, []).append(each)
    entered = {path[:end] for path in places for end in range(len(path))}
    for path, errors in places.items():
        # An error at a place with errors inside it comes from the branches of a union that were not meant.
        if path not in entered:
            yield _finding(document, path, errors)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that an annotation names, inside unions and lists too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from models_in(inner)


def _document_path(value: Any, loc: tuple[int | str, ...], *, with_last: bool) -> Path:
    """pydantic's location without the names of union branches, which stand nowhere in the document.

    `with_last`: the last part is a key, whether or not the document has it.
    """
    path: list[str | int] = []
    for index, part in enumerate(loc):
        inside = part in value if isinstance(value, dict) else isinstance(value, list) and part in range(len(value))
        if inside:
            value = value[part]
        if inside or (with_last and index == len(loc) - 1):
            path.append(part)
    return tuple(path)


def _finding(document: Document, path: Path, errors: list[Any]) -> Finding:
    name = dotted(path)
    code = _CODES.get(errors[0]["type"], _WRONG_VALUE)
    position, help = document.at(path), _description(path)
    fix: tuple[Edit, ...] = ()
    keys = _keys(path)
    if keys and any(each["type"] == "model_type" for each in errors):
        help += f" Its keys: {', '.join(keys)}."
    if code == "REC001":
        known = _keys(path[:-1])
        near = nearest(str(path[-1]), known, 1)
        message = f"unknown field {name}: it would do nothing"
        position = document.at_key(path)
        help = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        if near and alike(str(path[-1]), near[0]) and not document.has((*path[:-1], near[0])):
            fix = (Edit(action="rename", path=path, to=(*path[:-1], near[0])),)
    elif code == "REC003":
        message = f"{name} is missing"
        position = document.at_key(path[:-1])
    else:
        message = f"{name}: {_wrong_value(errors, _value_at(document.value, path))}"
    return Finding(
        code=code, severity=Severity.ERROR, message=message, position=position, path=name, help=help, fix=fix
    )


def _wrong_value(errors: list[Any], value: Any) -> str:
    """`expected A, B or C, got D`, or the sentence of the one who refused the value."""
    said = list(dict.fromkeys(_sentence(each) for each in errors))
    if not all(each.startswith("expected ") for each in said):
        return next(each for each in said if not each.startswith("expected "))
    *others, last = (each.removeprefix("expected ") for each in said)
    words = ", ".join(others).replace(" or ", ", ") + f" or {last}" if others else last
    return f"expected {words}, got {shown(value)}"


def _sentence(error: Any) -> str:
    kind, context = error["type"], error.get("ctx") or {}
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"expected {context['expected']}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}"
    key, words = _BOUNDS[kind]
    limit = context[key]
    return f"expected {words} {limit if isinstance(limit, int) else format(limit, 'g')}"


_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
    "string_type": "text",
    "string_pattern_mismatch": "letters, digits, dot, dash and underscore, starting with a letter or digit",
    "too_short": "at least one item",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def _value_at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _fields(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """Fields by the name that a recipe gives them."""
    return {info.alias or name: info for name, info in section.model_fields.items()}


def _section(path: Path) -> type[BaseModel] | None:
    section: type[BaseModel] | None = Recipe
    for part in path:
        info = _fields(section).get(str(part)) if section is not None else None
        section = next(models_in(info.annotation), None) if info is not None else None
    return section


def _keys(path: Path) -> list[str]:
    section = _section(path)
    return [*(_fields(section) if section is not None else ()), *(["extends"] if section is Recipe else [])]


def _description(path: Path) -> str:
    """The description of a field, or of the nearest one around it."""
    for end in range(len(path), 0, -1):
        section = _section(path[: end - 1])
        info = _fields(section).get(str(path[end - 1])) if section is not None else None
        if info is not None:
            return info.description or ""
    return ""
