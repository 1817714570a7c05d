"""What `dsgen launch` is given, a recipe or a rendered folder, as files and the facts that launching needs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsgen.documents.atomic import write_set
from dsgen.documents.document import Document
from dsgen.findings import DsgenError, Finding
from dsgen.launch.run_folder import base_of_run

if TYPE_CHECKING:
    from dsgen.recipe.load import LoadedRecipe
    from dsgen.recipe.plan import Plan

NEEDED = ("launch.sh", "ds_config.json")
"""Files without which a folder cannot be launched."""

TRAIN, SETTINGS = "train.py", "settings.json"
"""One of them is there too: the rendered loop, or what the user's own script may read."""

_FACT = re.compile(r"^(name|kind|nodes|per_node|script)=(.*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What launching needs to know of a job."""

    name: str
    kind: str
    """DeepSpeed accelerator: npu, cuda or cpu."""
    nodes: int
    per_node: int
    base_dir: Path
    """Where relative paths of the recipe count from."""
    own_script: bool = False
    """Whether the user's own script trains, which need not leave a report."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A job and its files."""

    job: Job
    files: dict[str, bytes]
    executable: frozenset[str] = frozenset()
    plan: Plan | None = None
    """None for a rendered folder."""
    loaded: LoadedRecipe | None = None
    """What the plan was resolved from."""
    findings: tuple[Finding, ...] = ()
    """Warnings and infos of the recipe."""
    document: Document
    """The recipe, for the places of its fields; an empty one for a rendered folder."""

    def write(self, folder: Path) -> None:
        """Put the files into `folder`, all or none. Raises DsgenError when they cannot be written."""
        try:
            write_set(folder, {name: (content, name in self.executable) for name, content in self.files.items()})
        except OSError as error:
            raise DsgenError(f"{folder} cannot be written: {error.strerror}") from error

    def differs_from(self, folder: Path) -> list[str]:
        """Names of files that stand in `folder` with another content, or are missing there."""
        return [
            name
            for name, content in self.files.items()
            if not (folder / name).is_file() or (folder / name).read_bytes() != content
        ]


def read_source(path: Path, overrides: Iterable[str]) -> Source:
    """Render the recipe at `path`, or read the rendered folder at `path`; nothing is written.

    Raises DsgenError when neither is there, DocumentError or FindingsError for a bad recipe.
    """
    overrides = tuple(overrides)
    if path.is_dir():
        if overrides:
            raise DsgenError(
                f"--set changes a recipe, and {path} is a rendered folder",
                help="give the recipe instead, or render it again with --set",
            )
        return _read_folder(path)
    return _render(path, overrides)


def _render(path: Path, overrides: tuple[str, ...]) -> Source:
    from dsgen.render import render_recipe

    rendered = render_recipe(path, overrides)
    return Source(
        job=job_of_plan(rendered.plan, path),
        files=rendered.files,
        executable=frozenset(name for name in rendered.files if rendered.executable(name)),
        plan=rendered.plan,
        loaded=rendered.checked.loaded,
        findings=rendered.findings,
        document=rendered.checked.loaded.document,
    )


def job_of_plan(plan: Plan, recipe: Path) -> Job:
    """The facts of a resolved recipe."""
    return Job(
        name=plan.name,
        kind=plan.kind,
        nodes=plan.nodes,
        per_node=plan.per_node,
        base_dir=recipe.absolute().parent,
        own_script=plan.entrypoint is not None,
    )


def _read_folder(folder: Path) -> Source:
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    facts = _facts(folder / "launch.sh")
    beside = SETTINGS if "script" in facts else TRAIN
    if not (folder / beside).is_file():
        missing.append(beside)
    if missing:
        raise DsgenError(
            f"{folder} is no rendered folder: it has no {', no '.join(missing)}",
            help="give a recipe, or a folder that `dsgen render RECIPE -o FOLDER` wrote",
        )
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_file() and _is_copied(entry.name))
        files = {name: (folder / name).read_bytes() for name in names}
    except OSError as error:
        raise DsgenError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    try:
        job = Job(
            name=_safe(facts["name"]),
            kind=facts["kind"],
            nodes=int(facts.get("nodes", "1")),
            per_node=int(facts["per_node"]),
            base_dir=base_of_run(folder) or folder.absolute(),
            own_script="script" in facts,
        )
    except (KeyError, ValueError):
        raise DsgenError(
            f"{folder / 'launch.sh'} does not say name, kind and per_node near its top",
            help="render the recipe again, or start it yourself: bash launch.sh",
        ) from None
    return Source(
        job=job,
        files=files,
        executable=frozenset({"launch.sh"}),
        document=Document(file=str(folder), value=None),
    )


def _facts(script: Path) -> dict[str, str]:
    """What a rendered launch.sh says of the job near its top; nothing when it cannot be read."""
    facts: dict[str, str] = {}
    text = ""
    with suppress(OSError):
        text = script.read_text(encoding="utf-8", errors="replace")
    for name, value in _FACT.findall(text):
        try:
            facts.setdefault(name, shlex.split(value)[0])
        except (ValueError, IndexError):
            break
    return facts


def _is_copied(name: str) -> bool:
    """Rendered files, and modules that an edited train.py may import; nothing that a run wrote."""
    return name in (
        *NEEDED,
        SETTINGS,
        "container.sh",
        "hostfile",
        ".deepspeed_env",
        "dsgen.lock.yaml",
    ) or name.endswith(".py")


def _safe(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(name)
    return name
