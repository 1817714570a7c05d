"""From a document to a Recipe: types, then every rule; all that is wrong is said at once."""

from __future__ import annotations

from dataclasses import dataclass

from dsgen.catalog.deepspeed_keys import DEFAULT_VERSION
from dsgen.catalog.models import Architecture
from dsgen.findings import Finding, FindingsError, Severity, has_errors
from dsgen.recipe.load import Input, LoadedRecipe
from dsgen.recipe.model_source import ModelProblem, read_model
from dsgen.recipe.schema import Recipe
from dsgen.recipe.typed import typed_fields
from dsgen.recipe.unbuilt import only_its_run
from dsgen.recipe.view import recipe_view
from dsgen.rules.registry import run_rules
from dsgen.rules.suppress import UNUSED, suppressed


@dataclass(frozen=True, kw_only=True)
class CheckedRecipe:
    """A recipe without errors, the model it names, the files that were read, and warnings and infos."""

    loaded: LoadedRecipe
    recipe: Recipe
    architecture: Architecture
    inputs: tuple[Input, ...]
    findings: tuple[Finding, ...]
    deepspeed: str = DEFAULT_VERSION
    """The release of DeepSpeed that it was checked for."""


def check_recipe(
    loaded: LoadedRecipe,
    *,
    deepspeed: str = DEFAULT_VERSION,
    keep_suppressed: bool = False,
    to_run: bool = True,
) -> CheckedRecipe:
    """Check a loaded recipe. Raises FindingsError with every finding when any is an error.

    Comments in the recipe leave out warnings and infos, but no errors: what is wrong cannot be rendered.
    `keep_suppressed` keeps those too, for a caller that looks at the comments itself. With `to_run` false a recipe
    passes that can be estimated although its run is not built.
    """
    document = loaded.document
    typed = typed_fields(document)
    findings = list(typed.findings)

    architecture = None
    inputs = loaded.inputs
    if typed.fields["model"] is not None:
        try:
            architecture, model_inputs = read_model(typed.fields["model"], loaded.folder, document)
            inputs += model_inputs
        except ModelProblem as problem:
            findings.append(problem.finding)

    view, more = recipe_view(typed, architecture, document, deepspeed)
    findings += more
    findings += run_rules(view)
    if not to_run:
        findings = [finding for finding in findings if not only_its_run(finding)]
    if not keep_suppressed:
        errors = [finding for finding in findings if finding.severity is Severity.ERROR]
        others = [finding for finding in findings if finding.severity is not Severity.ERROR]
        for file, text in document.sources.items():
            others = [each for each in suppressed(others, text, file) if each.code != UNUSED]
        findings = errors + others
    findings.sort(key=lambda f: (f.severity is not Severity.ERROR, f.position.file, f.position.line, f.position.column))
    if has_errors(findings) or typed.recipe is None or architecture is None:
        raise FindingsError(findings, sources=document.sources)
    return CheckedRecipe(
        loaded=loaded,
        recipe=typed.recipe,
        architecture=architecture,
        inputs=inputs,
        findings=tuple(findings),
        deepspeed=deepspeed,
    )
