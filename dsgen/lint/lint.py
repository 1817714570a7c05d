"""One file to its findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dsgen.documents.document import Document
from dsgen.documents.errors import DocumentError
from dsgen.documents.json_reader import read_json_bytes
from dsgen.documents.notes import Note
from dsgen.documents.yaml_reader import read_bytes, read_yaml_bytes
from dsgen.dsconfig.kinds import Kind, is_yaml, kind_by_content, kind_by_name
from dsgen.dsconfig.view import dsconfig_view
from dsgen.findings import Finding, FindingsError, Severity
from dsgen.lint.options import UNREADABLE, Options
from dsgen.rules.registry import run_rules
from dsgen.rules.suppress import suppressed


@dataclass(frozen=True, kw_only=True)
class Linted:
    """What linting one file gave."""

    file: str
    kind: Kind | None = None
    findings: tuple[Finding, ...] = ()
    document: Document | None = None
    """None when the file could not be read."""
    sources: Mapping[str, str] = field(default_factory=dict)


def lint_file(path: Path, options: Options, *, guess: bool = False) -> Linted | None:
    """Read and lint a file; see `lint_bytes`. What cannot be read is a finding."""
    try:
        data = read_bytes(path)
    except DocumentError as error:
        return _unreadable(str(path), error)
    return lint_bytes(data, str(path), options, guess=guess)


def lint_bytes(data: bytes, file: str, options: Options, *, guess: bool = False) -> Linted | None:
    """Lint the content of a file.

    A file that is nothing that dsgen knows is taken for a ds_config.json; with `guess` (the files of a folder, which
    nobody named) it is passed over with None.
    """
    try:
        linted = _lint(data, file, options, guess=guess)
    except DocumentError as error:
        if guess and not _looks_like_config(data):
            return None
        return _unreadable(file, error, data.decode("utf-8", "replace"))
    if linted is None:
        return None
    text = linted.sources.get(file, "")
    findings = [finding for finding in linted.findings if options.wants(finding)]
    findings = [finding for finding in suppressed(findings, text, file) if options.wants(finding)]
    findings.sort(key=lambda f: (f.position.file != file, f.position.line, f.position.column, f.code))
    return replace(linted, findings=tuple(findings))


def _lint(data: bytes, file: str, options: Options, *, guess: bool) -> Linted | None:
    kind = kind_by_name(file)
    if kind in ("hostfile", "environment"):
        from dsgen.lint.launch_files import lint_launch_file

        document, found = lint_launch_file(data, file, kind)
        return Linted(file=file, kind=kind, findings=tuple(found), document=document, sources=document.sources)
    yaml = is_yaml(file)
    document = read_yaml_bytes(data, file) if yaml else read_json_bytes(data, file)
    kind = kind_by_content(document.value, yaml=yaml)
    if kind is None:
        if guess:
            return None
        kind = "recipe" if yaml else "ds_config"
    if kind == "recipe":
        findings, sources = _lint_recipe(Path(file))
        return Linted(file=file, kind=kind, findings=findings, document=document, sources=sources)
    if kind == "accelerate":
        from dsgen.dsconfig.accelerate import accelerate_findings

        findings, sources = accelerate_findings(document, options.job)
        return Linted(file=file, kind=kind, findings=findings, document=document, sources=sources)
    return Linted(
        file=file,
        kind=kind,
        findings=_lint_config(document, options),
        document=document,
        sources=document.sources,
    )


def _lint_config(document: Document, options: Options) -> tuple[Finding, ...]:
    if isinstance(document.value, Mapping):
        return tuple(run_rules(dsconfig_view(document, options.job)))
    note = Note("no-mapping", document.at(()), ())
    view = dsconfig_view(replace(document, value={}, notes=(note,)), options.job)
    return tuple(finding for finding in run_rules(view) if finding.code == "REA007")


def _lint_recipe(path: Path) -> tuple[tuple[Finding, ...], Mapping[str, str]]:
    # A recipe is checked by the classes of its schema, which are slow to import.
    from dsgen.recipe.check import check_recipe
    from dsgen.recipe.load import load_recipe

    loaded = load_recipe(path)
    try:
        return check_recipe(loaded, keep_suppressed=True).findings, loaded.document.sources
    except FindingsError as error:
        return error.findings, error.sources


def _looks_like_config(data: bytes) -> bool:
    return b"zero_optimization" in data or b"train_micro_batch_size_per_gpu" in data


def _unreadable(file: str, error: DocumentError, text: str = "") -> Linted:
    finding = Finding(
        code=UNREADABLE, severity=Severity.ERROR, message=error.message, position=error.position, help=error.help
    )
    return Linted(file=file, findings=(finding,), sources={file: text})
