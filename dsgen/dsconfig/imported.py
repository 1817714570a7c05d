"""From the document of a ds_config.json to the text of a recipe, checked on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath

from dsgen.documents.document import Document
from dsgen.documents.positions import undotted
from dsgen.documents.yaml_reader import read_yaml_text
from dsgen.dsconfig.import_notes import FILL_IN
from dsgen.dsconfig.job import Job
from dsgen.dsconfig.kinds import kind_by_content
from dsgen.dsconfig.recipe_from import Imported, Surroundings, blocking, recipe_from
from dsgen.dsconfig.recipe_text import recipe_text
from dsgen.dsconfig.settled import with_right_types
from dsgen.dsconfig.view import dsconfig_view
from dsgen.findings import DsgenError, Finding, FindingsError, Severity, has_errors
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import LoadedRecipe
from dsgen.rules.registry import run_rules


@dataclass(frozen=True, kw_only=True)
class Import:
    """A recipe's text, what there is to say about it, and what `dsgen render` finds in it."""

    source: str
    text: str
    imported: Imported
    findings: tuple[Finding, ...]
    """Of the recipe; errors about its placeholders are not among them."""
    sources: Mapping[str, str]

    @property
    def errors(self) -> bool:
        """Whether `dsgen render` refuses the recipe for more than its placeholders."""
        return has_errors(self.findings)


def import_config(document: Document, job: Job, around: Surroundings, target: FilePath | None) -> Import:
    """The recipe of a config. Relative paths count from the folder of `target`, the recipe's file.

    Raises FindingsError for a config with errors, DsgenError for a document of another kind.
    """
    config = document.value
    if not isinstance(config, Mapping):
        raise DsgenError(f"{document.file} holds no mapping at its top: it is no ds_config.json")
    if kind_by_content(config, yaml=False) == "accelerate":
        raise DsgenError(
            f"{document.file} is a config of accelerate, not of DeepSpeed",
            help="import the file that its deepspeed_config_file names",
        )
    found = tuple(run_rules(dsconfig_view(document, job)))
    imported = recipe_from(with_right_types(config, found), job, around)
    refused = blocking(found, config, imported)
    if refused:
        raise FindingsError(refused, sources=document.sources)
    text = recipe_text(imported.recipe, imported.comments, _head(document.file, imported))
    findings, sources = _checked(text, target or FilePath("recipe.yaml"), imported)
    return Import(source=document.file, text=text, imported=imported, findings=findings, sources=sources)


def _head(source: str, imported: Imported) -> list[str]:
    name = FilePath(source).name
    head = [f"Imported from {name}. Lines that say `{FILL_IN}` hold what the config does not say."]
    if imported.of_kind("default"):
        head.append("Where a line says `DeepSpeed's default`, dsgen decides a value itself once the line is removed.")
    for remark in imported.of_kind("left-out"):
        head.append(f"left out: {remark.path}: {remark.text}")
    return head


def _checked(text: str, path: FilePath, imported: Imported) -> tuple[tuple[Finding, ...], Mapping[str, str]]:
    document = read_yaml_text(text, str(path))
    loaded = LoadedRecipe(path=path, folder=path.parent, document=document, inputs=(), overrides=())
    open_fields = {undotted(remark.path) for remark in imported.of_kind("fill-in")}
    try:
        findings = check_recipe(loaded).findings
    except FindingsError as error:
        findings = error.findings
    return tuple(
        finding
        for finding in findings
        if finding.severity is Severity.ERROR and undotted(finding.path) not in open_fields
    ), document.sources
