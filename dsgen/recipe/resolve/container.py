"""The container of the job: what of the host it sees."""

from __future__ import annotations

from pathlib import PurePosixPath

from dsgen.recipe.plan import Container, Mount
from dsgen.recipe.schema import Recipe
from dsgen.recipe.view import data_files


def decide_container(recipe: Recipe) -> Container | None:
    """The container, or None. Absolute paths that the recipe reads are mounted where they are, read-only."""
    said = recipe.container
    if said is None:
        return None
    mounts = {mount.target: mount for mount in map(read_mount, said.mounts)}
    for path in _absolute_paths(recipe):
        mounts.setdefault(path, Mount(source=path, target=path, read_only=True))
    return Container(
        image=said.image,
        engine=said.engine,
        devices=said.devices,
        shm_bytes=said.shm_size,
        network=said.network,
        mounts=tuple(mounts.values()),
    )


def read_mount(text: str) -> Mount:
    """`PATH`, `PATH:PLACE` or `PATH:PLACE:ro`; the rules have refused what is none of these."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    return Mount(source=source, target=target or source, read_only=mode == "ro")


def _absolute_paths(recipe: Recipe) -> list[str]:
    """Folders of the absolute paths that the recipe reads; of a glob, the folder above its first pattern."""
    files = data_files(recipe.data.files) if recipe.data else None
    script = recipe.entrypoint.script if recipe.entrypoint else None
    found: dict[str, None] = {}
    for name in (*(files or ()), script):
        if name and name.startswith("/"):
            fixed = PurePosixPath(name)
            while any(set("*?[") & set(part) for part in fixed.parts):
                fixed = fixed.parent
            found[str(fixed.parent if fixed == PurePosixPath(name) else fixed)] = None
    for name in (recipe.weights, recipe.tokenizer):
        if name and name.startswith("/"):
            found[name] = None
    return [path for path in found if path != "/"]
