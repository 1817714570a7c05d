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
from dsgen.dsconfig.kinds import (
    Kind,
    is_surely,
    is_yaml,
    kind_by_content,
    kind_by_name,
    looks_like_config,
    other_kind,
)
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
        return unreadable(str(path), error)
    return lint_bytes(data, str(path), options, guess=guess)


def lint_bytes(data: bytes, file: str, options: Options, *, guess: bool = False) -> Linted | None:
    """Lint the content of a file.

    With `guess` (the files of a folder, which nobody named) a file is passed over with None when it is nothing that
    dsgen knows; else that is a finding, or it is judged as what its name says.
    """
    try:
        linted = _lint(data, file, options, guess=guess)
    except DocumentError as error:
        if guess and (is_yaml(file) or not looks_like_config(data)):
            return None
        return unreadable(file, error, data.decode("utf-8", "replace"))
    if linted is None:
        return None
    text = linted.sources.get(file, "")
    findings = [finding for finding in linted.findings if options.wants(finding)]
    lines = None
    if linted.kind == "ds_config" and linted.document is not None and not is_yaml(file):
        lines = {note.position.line for note in linted.document.notes if note.kind == "comment"}
    findings = list(suppressed(findings, text, file, options.wants_code, lines))
    findings = [finding for finding in findings if options.wants(finding)]
    findings.sort(key=lambda f: (f.position.file != file, f.position.line, f.position.column, f.code))
    return replace(linted, findings=tuple(findings))


def _lint(data: bytes, file: str, options: Options, *, guess: bool) -> Linted | None:
    kind = kind_by_name(file)
    if kind in ("hostfile", "environment"):
        from dsgen.lint.launch_files import lint_launch_file

        document, found = lint_launch_file(data, file, kind)
        return Linted(file=file, kind=kind, findings=tuple(found), document=document, sources=document.sources)
    yaml = is_yaml(file) or (file == STDIN and not data.lstrip(b"\xef\xbb\xbf \t\r\n/#").startswith((b"{", b"[")))
    document = read_yaml_bytes(data, file) if yaml else read_json_bytes(data, file)
    kind = kind_by_content(document.value, yaml=yaml)
    if guess and not is_surely(kind, document.value, yaml=yaml):
        return None
    if kind is None:
        kind = _named_kind(document, yaml=yaml)
    if kind == "recipe":
        findings, sources = _lint_recipe(Path(file), data, options)
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


STDIN = "<stdin>"
"""Name of a file without a name: its content says whether it is JSON or YAML."""


def _named_kind(document: Document, *, yaml: bool) -> Kind:
    """The kind that a file is judged as because somebody named it. Raises DocumentError where that helps nobody."""
    other = other_kind(document.value)
    if other is not None:
        raise DocumentError(f"is {other}, and no config of DeepSpeed", document.at(()), help="name another file")
    return "recipe" if yaml else "ds_config"


def _lint_config(document: Document, options: Options) -> tuple[Finding, ...]:
    if isinstance(document.value, Mapping):
        return tuple(run_rules(dsconfig_view(document, options.job)))
    note = Note("no-mapping", document.at(()), ())
    view = dsconfig_view(replace(document, value={}, notes=(note,)), options.job)
    return tuple(finding for finding in run_rules(view) if finding.code == "REA007")


def _lint_recipe(path: Path, data: bytes, options: Options) -> tuple[tuple[Finding, ...], Mapping[str, str]]:
    # A recipe is checked by the classes of its schema, which are slow to import.
    from dsgen.recipe.check import check_recipe
    from dsgen.recipe.load import load_recipe

    loaded = load_recipe(path, data=data)
    try:
        checked = check_recipe(loaded, deepspeed=options.job.deepspeed, keep_suppressed=True)
        return checked.findings, loaded.document.sources
    except FindingsError as error:
        return error.findings, error.sources


def unreadable(file: str, error: DocumentError, text: str = "") -> Linted:
    """The one finding about a file that cannot be read."""
    finding = Finding(
        code=UNREADABLE, severity=Severity.ERROR, message=error.message, position=error.position, help=error.help
    )
    return Linted(file=file, findings=(finding,), sources={file: text})
