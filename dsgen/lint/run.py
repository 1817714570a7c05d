"""Many files: finding them, the settings of the project that each belongs to, and linting them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsgen.dsconfig.job import Job, job_named
from dsgen.dsconfig.kinds import kind_by_name
from dsgen.findings import DsgenError
from dsgen.lint.lint import STDIN, Linted, lint_bytes, lint_file
from dsgen.lint.options import Options
from dsgen.lint.project import Project, project_of
from dsgen.rules.registry import all_codes

_SUFFIXES = (".json", ".hjson", ".yaml", ".yml")
_PASSED_OVER = {"node_modules", "__pycache__"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a command line asks for; it comes before what projects say."""

    job: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `job_named`."""
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    stdin: Callable[[], bytes] | None = None
    stdin_name: str = STDIN
    filtered: bool = False
    """Whether named files are treated like those of a folder: excluded and unrelated ones are passed over."""


def lint_all(paths: Iterable[Path], request: Request) -> list[Linted]:
    """Lint files and the files of folders. Raises DsgenError for an unknown code, version, device or model."""
    _known(request.select + request.ignore)
    linted: list[Linted] = []
    for path, found_there in _files(paths):
        guess = found_there or request.filtered
        if str(path) == "-":
            options = options_of(Path(request.stdin_name), request)
            data = request.stdin() if request.stdin is not None else b""
            found = lint_bytes(data, request.stdin_name, options)
        elif guess and _project_in(path.parent.absolute()).excludes(path):
            continue
        else:
            found = lint_file(path, options_of(path, request), guess=guess)
        if found is not None:
            linted.append(found)
    return _once(linted)


def _once(linted: list[Linted]) -> list[Linted]:
    """Findings in files that several others name, once each, and with the file itself where that is linted too."""
    own = {each.file for each in linted}
    seen: set[tuple[str, int, int, str, str]] = set()
    kept = []
    for each in linted:
        findings = []
        for finding in each.findings:
            place = finding.position
            key = (place.file, place.line, place.column, finding.code, finding.message)
            if place.file == each.file or (place.file not in own and key not in seen):
                seen.add(key)
                findings.append(finding)
        kept.append(replace(each, findings=tuple(findings)))
    return kept


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Every file once, and whether it was found in a folder rather than named."""
    seen = set()
    for path in paths:
        inside = sorted(_inside(path)) if path.is_dir() else [path]
        for each in inside:
            if each not in seen:
                seen.add(each)
                yield each, each != path


def _inside(folder: Path) -> Iterator[Path]:
    try:
        found = list(folder.iterdir())
    except PermissionError:
        yield folder  # reading it says what is wrong
        return
    for each in found:
        if each.name in _PASSED_OVER or (each.is_dir() and each.name.startswith(".")):
            continue
        if each.is_dir() and not each.is_symlink():
            yield from _inside(each)
        elif each.is_file() and _could_be(each.name):
            yield each


def _could_be(name: str) -> bool:
    if name.startswith(".dsgen"):
        return False
    return kind_by_name(name) is not None or Path(name).suffix.lower() in _SUFFIXES


def options_of(path: Path, request: Request) -> Options:
    """What holds for one file: what was asked for, else what its project says. Raises DsgenError."""
    project = _project_in(path.parent.absolute())
    _known(project.select + project.ignore + tuple(c for codes in project.per_file_ignores.values() for c in codes))
    said = {**_said(project), **request.job}
    return Options(
        job=_job(tuple(said.items())),
        select=request.select or project.select,
        ignore=request.ignore + project.ignored_in(path),
    )


@functools.cache
def _project_in(folder: Path) -> Project:
    return project_of(folder.resolve())


@functools.cache
def _job(said: tuple[tuple[str, Any], ...]) -> Job:
    return job_named(**dict(said))


def _said(project: Project) -> dict[str, Any]:
    names = ("deepspeed", "framework", "world_size", "device", "model", "client_optimizer")
    return {name: getattr(project, name) for name in names if getattr(project, name) is not None}


def _known(codes: Iterable[str]) -> None:
    known = all_codes()
    for code in codes:
        if not any(each.startswith(code) for each in known):
            raise DsgenError(f"no rule has a code that starts with {code!r}", help="`dsgen explain` lists them")
