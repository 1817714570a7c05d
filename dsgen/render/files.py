"""The set of files that a recipe renders to, in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dsgen.catalog.deepspeed_keys import DEFAULT_VERSION
from dsgen.findings import DsgenError, Finding
from dsgen.recipe.check import CheckedRecipe, check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve import resolve
from dsgen.render.lock import LOCK_NAME, lock_text
from dsgen.render.settings import CLASSES, settings
from dsgen.render.templates import environment, render_template
from dsgen.resources import shipped

RUNTIME_API = (1, 1)
"""Version of dsgen.runtime's API that the templates are written for."""

MAX_TEMPLATE_BYTES = 2**20

_ALWAYS = {"ds_config.json": "ds_config.json.j2", "launch.sh": "launch.sh.j2"}
_OWN_LOOP = {"train.py": "train.py.j2"}
_ENTRYPOINT = {"settings.json": "settings.json.j2"}
_SEVERAL_NODES = {"hostfile": "hostfile.j2", ".deepspeed_env": "deepspeed_env.j2"}
_CONTAINER = {"container.sh": "container.sh.j2"}
_EXECUTABLE = {"launch.sh", "container.sh"}


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """Files by name, the plan they come from, and the warnings and infos of the check."""

    files: dict[str, bytes]
    plan: Plan
    checked: CheckedRecipe
    findings: tuple[Finding, ...]

    def executable(self, name: str) -> bool:
        """Whether a file is to be executable."""
        return name in _EXECUTABLE


def render_recipe(
    path: Path,
    overrides: Iterable[str] = (),
    *,
    overlay: Path | None = None,
    deepspeed: str = DEFAULT_VERSION,
    cached: bool = False,
) -> Rendered:
    """Load, check, resolve and render a recipe; nothing is written but, with `cached`, compiled templates.

    `overlay` is a folder whose templates replace shipped ones of the same name; `deepspeed` the release that the config
    is written for.
    Raises DocumentError or FindingsError for a bad recipe, DsgenError for a bad template.
    """
    checked = check_recipe(load_recipe(path, overrides), deepspeed=deepspeed)
    plan = resolve(checked)
    names = _ALWAYS | (_ENTRYPOINT if plan.entrypoint else _OWN_LOOP) | (_SEVERAL_NODES if plan.nodes > 1 else {})
    names |= _CONTAINER if plan.container else {}
    context = {"plan": plan, "settings": settings(plan), "classes": CLASSES, "api": RUNTIME_API}
    sources, replaced = template_sources(overlay)
    env = environment(sources, cached=cached)
    files = {name: render_template(env, template, **context).encode() for name, template in names.items()}
    if overlay is not None:
        _check_replaced(files, names, replaced)
    files[LOCK_NAME] = lock_text(checked, plan, files, overlay, replaced).encode()
    return Rendered(files=files, plan=plan, checked=checked, findings=checked.findings)


def _check_replaced(files: dict[str, bytes], names: dict[str, str], replaced: dict[str, bytes]) -> None:
    """Raise DsgenError when a template of the user's renders to a file that nothing can read."""
    for name, template in names.items():
        if template not in replaced:
            continue
        try:
            if name.endswith(".json") and not isinstance(json.loads(files[name]), dict):
                raise ValueError("not a JSON object")
            if name == "train.py":
                compile(files[name], name, "exec", dont_inherit=True)
        except (ValueError, SyntaxError) as error:
            raise DsgenError(
                f"template {template} of --templates renders a {name} that cannot be read: {error}"
            ) from None


def template_sources(overlay: Path | None) -> tuple[dict[str, str], dict[str, bytes]]:
    """Template sources by name, shipped ones overlaid by the user's; and the user's files that took part.

    Raises DsgenError when the overlay cannot be read or replaces nothing.
    """
    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted(shipped("templates").glob("*.j2"))}
    replaced: dict[str, bytes] = {}
    if overlay is None:
        return sources, replaced
    if not overlay.is_dir():
        raise DsgenError(f"--templates {overlay}: is no folder")
    shipped_names = frozenset(sources)
    for path in sorted(overlay.glob("*.j2")):
        try:
            data = path.read_bytes()
            if len(data) > MAX_TEMPLATE_BYTES:
                raise ValueError("larger than 1 MiB")
            sources[path.name] = data.decode("utf-8")
        except (OSError, ValueError) as error:
            raise DsgenError(f"{path}: cannot be read as a template: {error}") from None
        replaced[path.name] = data
    if not replaced:
        raise DsgenError(
            f"--templates {overlay}: holds no *.j2 file",
            help=f"name a template as the shipped one that it replaces: {', '.join(sorted(shipped_names))}",
        )
    if not shipped_names & replaced.keys():
        raise DsgenError(
            f"--templates {overlay}: {', '.join(replaced)} replaces no shipped template",
            help=f"the shipped ones are {', '.join(sorted(shipped_names))}",
        )
    return sources, replaced
