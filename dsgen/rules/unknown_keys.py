"""Keys that a section does not have: what they may mean, and what becomes of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsgen.catalog.deepspeed_keys import Key, Keys, load_keys
from dsgen.catalog.key_history import last_version, next_version, renamed_from, renamed_to
from dsgen.catalog.lookup import alike, nearest
from dsgen.documents.positions import Path
from dsgen.findings import Edit
from dsgen.rules.key_values import taken_as, value_problem
from dsgen.rules.view import View, keys_of, lookup

OWN_RULES = {("optimizer", "params"), ("scheduler", "params")}
"""Sections whose keys depend on the type beside them: the families `optimizer` and `schedule` check them."""


_COMMON = frozenset(
    {
        "",
        "activation_checkpointing",
        "bf16",
        "fp16",
        "optimizer",
        "optimizer.params",
        "scheduler",
        "scheduler.params",
        "zero_optimization",
        "zero_optimization.offload_optimizer",
        "zero_optimization.offload_param",
    }
)
"""Sections that a key in the wrong place is commonly meant for, whether the config has them or not."""


_OFFLOAD_STAGES = {"offload_optimizer": (1, 2, 3), "offload_param": (3,)}
"""Offload section -> the stages at which it does anything."""


_COMMENT_STARTS = ("_", "#", "//", "$")


_COMMENT_WORDS = {"comment", "comments", "note", "notes", "readme", "description", "desc"}


LAUNCHER_KEYS = {
    "hostfile": "--hostfile",
    "include": "--include",
    "exclude": "--exclude",
    "num_nodes": "--num_nodes",
    "num_gpus": "--num_gpus",
    "num_accelerators": "--num_gpus",
    "node_rank": "--node_rank",
    "master_addr": "--master_addr",
    "master_port": "--master_port",
    "launcher": "--launcher",
    "launcher_args": "--launcher_args",
    "local_rank": "--local_rank, which the launcher sets",
    "world_size": "the number of processes that the launcher starts",
}
"""Settings of DeepSpeed's launcher that people write into the config -> where they belong."""


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """A key that its section does not have."""

    path: Path
    section: str
    name: str
    value: Any
    ignored: bool
    version: str
    sections: frozenset[str]
    """Sections that the config has."""

    @property
    def near(self) -> tuple[str, ...]:
        """What it is called in this version; else keys of the section with a similar name, best first."""
        if self.renamed is not None:
            return (self.renamed,)
        return () if "." in self.name else _near(self.version, self.section, self.name)

    @property
    def renamed(self) -> str | None:
        """The name that it has in this version and did not have in another."""
        path = ".".join(map(str, self.path))
        name = renamed_to(path, self.version) or renamed_from(path, self.version)
        return None if name is None else name.rpartition(".")[2]

    @property
    def belongs_to(self) -> tuple[str, ...]:
        """Paths of the keys of this very name in sections that may be meant; empty where they are many."""
        paths = [
            path
            for path in _paths_by_name(self.version).get(self.name, ())
            if (section := path.rpartition(".")[0]) in _COMMON or section in self.sections
        ]
        below = tuple(path for path in paths if self.section and path.startswith(f"{self.section}."))
        return below or (tuple(paths) if len(paths) <= _MANY else ())

    @property
    def is_comment(self) -> bool:
        return self.ignored and (self.name.startswith(_COMMENT_STARTS) or self.name.lower() in _COMMENT_WORDS)

    @property
    def is_launchers(self) -> bool:
        return not self.section and self.name in LAUNCHER_KEYS

    @property
    def where(self) -> str:
        return f"in {self.section}" if self.section else "at the top level"

    @property
    def history(self) -> str:
        """Which other versions of DeepSpeed know it."""
        if self.comes_with is not None:
            return f" (it comes with {self.comes_with})"
        last = None if "." in self.name else last_version(self.newest_path)
        return "" if last is None else f" ({last} was the last to know it)"

    @property
    def newest_path(self) -> str:
        """The path by the names of the newest version."""
        return load_keys().canonical(f"{self.section}.{self.name}" if self.section else self.name)

    @property
    def comes_with(self) -> str | None:
        """The next version that knows it."""
        return None if "." in self.name else next_version(self.newest_path, self.version)

    @property
    def effect(self) -> str:
        return "it is ignored without a word" if self.ignored else "it refuses to start"


def unknown_keys(view: View) -> Iterator[Unknown]:
    """Every key that its section does not have, in the order of the document."""
    keys = view.keys
    sections = frozenset(
        canonical
        for path, value in keys_of(view.config)
        if isinstance(value, Mapping) and (canonical := canonical_path(keys, path)) is not None
    )
    for path, value in keys_of(view.config):
        section, name = ".".join(map(str, path[:-1])), str(path[-1])
        if not _checked(keys, section) or key_at(keys, path) is not None or canonical_path(keys, path) in keys.removed:
            continue
        yield Unknown(
            path=path,
            section=section,
            name=name,
            value=value,
            ignored=keys.section_policy(section) == "ignored",
            version=view.deepspeed,
            sections=sections,
        )


_MANY = 3
"""Sections that have a key of one name in common: with more of them the name says nothing of the place."""


@functools.cache
def _paths_by_name(version: str) -> Mapping[str, tuple[str, ...]]:
    """Name of a key, or another name of it -> the paths where it stands."""
    found: dict[str, tuple[str, ...]] = {}
    for key in load_keys(version):
        for name in (key.name, *key.aliases) if not key.deprecated else ():
            found[name] = (*found.get(name, ()), key.path)
    return found


@functools.lru_cache(maxsize=4096)
def _near(version: str, section: str, name: str) -> tuple[str, ...]:
    keys = load_keys(version)
    beside = keys.canonical(section) if section else ""
    paths = keys.suggestions(f"{section}.{name}" if section else name)
    known = [key for key in map(keys.get, paths) if key is not None and not key.deprecated]
    return tuple(key.name for key in known if key.path.rpartition(".")[0] == beside)


@functools.lru_cache(maxsize=4096)
def near_elsewhere(version: str, name: str) -> tuple[str, ...]:
    """Paths of the keys of common sections that a name can only be a misspelling of."""
    return tuple(
        key.path
        for key in load_keys(version)
        if key.path.rpartition(".")[0] in _COMMON and not key.deprecated and alike(name, key.name)
    )[:_MANY]


def rename(view: View, unknown: Unknown) -> tuple[Edit, ...]:
    """The change of an unknown key into the only one that it can mean."""
    if not unknown.near or nearest(unknown.name, view.own_names.get(unknown.section, ())):
        return ()
    best = unknown.near[0]
    section = lookup(view.config, unknown.path[:-1])
    if (
        not (alike(unknown.name, best) or unknown.renamed)
        or best in section
        or not _fits(view, f"{unknown.section}.{best}".lstrip("."), unknown.value)
    ):
        return ()
    return (Edit(action="rename", path=unknown.path, to=(*unknown.path[:-1], best)),)


def move(view: View, unknown: Unknown) -> tuple[Edit, ...]:
    """The change of place of a key that can stand in one other section only."""
    if len(unknown.belongs_to) != 1 or view.kind != "ds_config":
        return ()
    target = tuple(unknown.belongs_to[0].split("."))
    around = lookup(view.config, target[:-1])
    if target[:1] == unknown.path[:1] and len(unknown.path) > len(target):
        return ()
    if around is not None and (not isinstance(around, Mapping) or target[-1] in around):
        return ()
    if around is None and len(target) > 2:
        return ()
    if ".".join(target[:-1]) not in _COMMON:
        return ()
    if target[0] == "zero_optimization" and target[-1] != "stage":
        stages = _OFFLOAD_STAGES.get(target[1], (0, 1, 2, 3))
        if not isinstance(around, Mapping) or "stage" not in around or view.stage not in stages:
            return ()  # at stage 0, which is the default, it would do nothing there
    return (
        (Edit(action="move", path=unknown.path, to=target),)
        if _fits(view, unknown.belongs_to[0], unknown.value)
        else ()
    )


def with_stage(view: View, unknown: Unknown) -> str:
    """What has to be said of the stage where a key is to go into zero_optimization of a ds_config."""
    if view.kind != "ds_config" or unknown.name == "stage":
        return ""
    if not all(path.startswith("zero_optimization.") for path in unknown.belongs_to):
        return ""
    if lookup(view.config, ("zero_optimization", "stage")) is None:
        return ", and say the stage there: without one it is 0"
    stages = _OFFLOAD_STAGES.get(unknown.name, (0, 1, 2, 3))
    return "" if view.stage is None or view.stage in stages else f", and take stage {stages[-1]}"


def _fits(view: View, path: str, value: Any) -> bool:
    key = view.keys.get(path)
    if key is None:
        return False
    return value_problem(key, value) is None or taken_as(view.keys, key, value) is not None


@functools.lru_cache(maxsize=4096)
def _checked(keys: Keys, section: str) -> bool:
    """Whether unknown keys of a section are worth a word: it is a section, and its keys are not the user's own."""
    if tuple(section.split(".")) in OWN_RULES:
        return False
    return keys.canonical(section) in keys.known_sections and keys.section_policy(section) != "free"


@functools.lru_cache(maxsize=16384)
def canonical_path(keys: Keys, path: Path) -> str | None:
    """A path by the names that DeepSpeed documents; None when a name has a dot in it, which no key has."""
    return None if any("." in str(part) for part in path) else keys.canonical(".".join(map(str, path)))


def key_at(keys: Keys, path: Path) -> Key | None:
    """The key at a path of the config; None when DeepSpeed does not know it."""
    canonical = canonical_path(keys, path)
    return None if canonical is None else keys.get(canonical)
