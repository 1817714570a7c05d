"""From a document to a Recipe: types, then every rule; all that is wrong is said at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from dsgen.catalog.models import Architecture
from dsgen.documents.document import Document
from dsgen.documents.positions import Path, dotted
from dsgen.findings import Finding, FindingsError, Severity, has_errors
from dsgen.recipe.load import Input, LoadedRecipe
from dsgen.recipe.model_source import ModelProblem, read_model
from dsgen.recipe.schema import Recipe
from dsgen.recipe.units import shown
from dsgen.recipe.view import recipe_view
from dsgen.rules.registry import run_rules


@dataclass(frozen=True, kw_only=True)
class CheckedRecipe:
    """A recipe without errors, the model it names, the files that were read, and warnings and infos."""

    loaded: LoadedRecipe
    recipe: Recipe
    architecture: Architecture
    inputs: tuple[Input, ...]
    findings: tuple[Finding, ...]


def check_recipe(loaded: LoadedRecipe) -> CheckedRecipe:
    """Check a loaded recipe. Raises FindingsError with every finding when any is an error."""
    document = loaded.document
    findings: list[Finding] = []
    fields, recipe = _typed_fields(document, findings)

    architecture = None
    inputs = loaded.inputs
    if fields.get("model") is not None:
        try:
            architecture, model_inputs = read_model(fields["model"], loaded.folder, document)
            inputs += model_inputs
        except ModelProblem as problem:
            findings.append(problem.finding)

    view, more = recipe_view(fields, architecture, document)
    findings += more
    findings += run_rules(view)
    findings.sort(key=lambda f: (f.severity is not Severity.ERROR, f.position.file, f.position.line, f.position.column))
    if has_errors(findings) or recipe is None or architecture is None:
        raise FindingsError(findings, sources=document.sources)
    return CheckedRecipe(
        loaded=loaded, recipe=recipe, architecture=architecture, inputs=inputs, findings=tuple(findings)
    )


def _typed_fields(document: Document, findings: list[Finding]) -> tuple[Mapping[str, Any], Recipe | None]:
    """Every top-level field that has the right type, by attribute name; the whole Recipe if all have."""
    value = document.value
    try:
        recipe = Recipe.model_validate(value)
        return {name: getattr(recipe, name) for name in Recipe.model_fields}, recipe
    except ValidationError as error:
        findings += _type_findings(document, error)
        bad = {str(e["loc"][0]) for e in error.errors(include_url=False, include_context=False, include_input=False)}
    fields: dict[str, Any] = {}
    for name, info in Recipe.model_fields.items():
        key = info.alias or name
        if key in bad:
            fields[name] = _salvage(info.annotation, value.get(key))
        elif key in value:
            adapter: TypeAdapter[Any] = TypeAdapter(_annotated(info))
            fields[name] = adapter.validate_python(value[key])
        else:
            fields[name] = info.get_default(call_default_factory=True)
    return fields, None


def _annotated(info: Any) -> Any:
    from typing import Annotated

    return Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation


def _salvage(annotation: Any, value: Any) -> Any:
    """A section with a wrong field: the section without that field, so that rules still see the rest."""
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(value, dict)):
        return None
    good: dict[str, Any] = {}
    for name, info in annotation.model_fields.items():
        key = info.alias or name
        if key in value:
            adapter: TypeAdapter[Any] = TypeAdapter(_annotated(info))
            try:
                good[name] = adapter.validate_python(value[key])
            except ValidationError:
                good[name] = None
        else:
            default = info.get_default(call_default_factory=True)
            good[name] = None if info.is_required() else default
    if annotation.model_config.get("extra") == "allow":
        known = {info.alias or name for name, info in annotation.model_fields.items()}
        good |= {key: inner for key, inner in value.items() if key not in known}
    return annotation.model_construct(**good)


def _type_findings(document: Document, error: ValidationError) -> Iterator[Finding]:
    """One finding per place; the branches of a union that all failed are told as one."""
    grouped: dict[tuple[Path, str], list[Any]] = {}
    for each in error.errors(include_url=False):
        kind = each["type"]
        path = _document_path(document.value, each["loc"], keep_last=kind in ("missing", "extra_forbidden"))
        code = {"missing": "REC003", "extra_forbidden": "REC001"}.get(kind, "REC002")
        grouped.setdefault((path, code), []).append(each)
    covered = {path for path, code in grouped if code == "REC002"}
    for (path, code), errors in grouped.items():
        if code != "REC002" and any(path[:end] in covered for end in range(len(path))):
            continue  # a branch of a union that was not meant
        yield _type_finding(document, path, code, errors)


def _type_finding(document: Document, path: Path, code: str, errors: list[Any]) -> Finding:
    name = dotted(path)
    if code == "REC001":
        known = _known_keys(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.6)
        message = f"unknown field {name}: it would do nothing"
        help = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        position = document.at_key(path)
    elif code == "REC003":
        message = f"{name} is missing"
        help = _description(path)
        position = document.at_key(path[:-1]) if len(path) > 1 else document.at(())
    else:
        said = _value_at(document.value, path)
        wanted = list(dict.fromkeys(_expectation(each) for each in errors))
        message = f"{name}: {' or '.join(wanted)}" + ("" if ", got " in wanted[0] else f", got {shown(said)}")
        help = _description(path)
        position = document.at(path)
    return Finding(code=code, severity=Severity.ERROR, message=message, position=position, path=name, help=help)


def _expectation(error: Any) -> str:
    kind, context = error["type"], error.get("ctx") or {}
    if kind == "value_error":
        return str(context.get("error", error["msg"]))
    if kind == "literal_error":
        return f"expected {context['expected']}"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return "expected a mapping"
    if kind == "list_type":
        return "expected a list"
    if kind == "string_type":
        return "expected text"
    if kind == "bool_type":
        return "expected true or false"
    if kind == "string_pattern_mismatch":
        return "expected letters, digits, dot, dash and underscore, starting with a letter or digit"
    bounds = {
        "greater_than_equal": ("ge", "at least"),
        "greater_than": ("gt", "more than"),
        "less_than_equal": ("le", "at most"),
        "less_than": ("lt", "less than"),
    }
    if kind in bounds:
        key, words = bounds[kind]
        return f"expected {words} {context[key]:g}"
    return str(error["msg"])


def _document_path(value: Any, loc: tuple[int | str, ...], *, keep_last: bool) -> Path:
    """pydantic's location without the names of union branches, which stand nowhere in the document."""
    path: list[str | int] = []
    at = value
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        inside = (isinstance(at, dict) and part in at) or (
            isinstance(at, list) and isinstance(part, int) and part < len(at)
        )
        if inside:
            path.append(part)
            at = at[part]
        elif last and keep_last:
            path.append(part)
    return tuple(path)


def _value_at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _model_at(path: Path) -> type[BaseModel] | None:
    model: type[BaseModel] = Recipe
    for part in path:
        found = None
        for name, info in model.model_fields.items():
            if (info.alias or name) == part:
                found = next((m for m in _models_in(info.annotation)), None)
        if found is None:
            return None
        model = found
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models_in(inner)


def _known_keys(path: Path) -> list[str]:
    model = _model_at(path)
    keys = [info.alias or name for name, info in model.model_fields.items()] if model else []
    return [*keys, "extends"] if model is Recipe else keys


def _description(path: Path) -> str:
    model = _model_at(path[:-1]) if path else None
    for name, info in (model.model_fields if model else {}).items():
        if path and (info.alias or name) == path[-1]:
            return info.description or ""
    return ""
