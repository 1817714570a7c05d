"""The keys of DeepSpeed's configuration, by version: types, limits, defaults, and what becomes of an unknown key.

The data files are derived from DeepSpeed itself by `tools/derive_deepspeed_keys.py`, one for each release. What changed
from one to the next: `dsgen.catalog.key_history`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dsgen.catalog.datafiles import names, read_json
from dsgen.catalog.lookup import nearest

Policy = Literal["ignored", "refused", "free"]
"""What becomes of a key that a section does not know: no effect, an error, or (free) the keys are the user's own."""


class UnknownVersion(ValueError):
    """No key data for that version of DeepSpeed; `known` are the versions that there are data for."""

    def __init__(self, version: str, known: tuple[str, ...]) -> None:
        self.version = version
        self.known = known
        super().__init__(f"no data on the keys of DeepSpeed {version}; there are data for {known[0]} to {known[-1]}")


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key, by its canonical path."""

    path: str
    """Dotted, as in ds_config.json: `zero_optimization.stage3_max_live_parameters`."""
    types: tuple[str, ...]
    """What the value may be: bool, int, float, str, list, dict, null; `python` for what no JSON file can hold."""
    default: Any = field(default=None, hash=False)
    """None as well when there is no default or it is not known: see `has_default`."""
    has_default: bool = False
    minimum: float | None = None
    exclusive_minimum: float | None = None
    maximum: float | None = None
    exclusive_maximum: float | None = None
    choices: tuple[Any, ...] = ()
    """The only values there are (or, for a list, the only items); empty when any will do."""
    any_case: bool = False
    """Whether choices are compared without case."""
    aliases: tuple[str, ...] = ()
    """Other last names that mean the same key."""
    deprecated: bool = False
    replaced_by: tuple[str, ...] = ()
    """Paths of the keys to use instead."""
    reader: str
    """Where DeepSpeed reads it: file and function (or model class), relative to the package."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit(".", 1)[-1]


@dataclass(frozen=True, kw_only=True)
class Params:
    """What an optimizer or a scheduler takes as `params`."""

    names: tuple[str, ...]
    """What at least one of its classes takes."""
    by_place: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    """For an optimizer: where its states live (`device`, or `host` with offload; `torch` with `torch_adam`) -> what the
    class that DeepSpeed builds there takes."""
    required: tuple[str, ...] = ()
    unknown: Policy = "refused"
    zero: bool = False
    """For an optimizer: whether ZeRO takes it without `zero_allow_untested_optimizer`."""


class Keys:
    """The keys of one version of DeepSpeed."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.version: str = document["deepspeed"]
        self._entries: Mapping[str, Mapping[str, Any]] = document["keys"]
        self._readers: Mapping[str, str] = document["readers"]
        self._built: dict[str, Key] = {}
        self._sections: dict[str, Policy] = dict(document["sections"])
        self._canonical = {
            _join(_section(path), alias): path
            for path, entry in self._entries.items()
            for alias in entry.get("aliases", ())
        }
        self.removed = frozenset(document["removed"])
        """Paths of the keys that this version refuses to see at all."""
        self.optimizers: Mapping[str, Params] = {
            name: _optimizer_params(entry) for name, entry in document["optimizers"].items()
        }
        """Optimizer type in lower case -> the params that it takes. Another type is the name of a class in
        `torch.optim`, or one of the `mup` package."""
        self.schedulers: Mapping[str, Params] = {
            name: Params(names=tuple(entry["params"]), required=tuple(entry["required"]))
            for name, entry in document["schedulers"].items()
        }
        """Scheduler type -> its params. Another type is the name of a class in `torch.optim.lr_scheduler`."""

    def __iter__(self) -> Iterator[Key]:
        return map(self._key, self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def known_sections(self) -> frozenset[str]:
        """Paths of all sections (keys whose value is a mapping); the top level is the empty path."""
        return frozenset(self._sections)

    def canonical(self, path: str) -> str:
        """The path with every part under its canonical name; parts that are not known stay as they are."""
        done = ""
        for part in path.split("."):
            done = _join(done, part)
            done = self._canonical.get(done, done)
        return done

    def get(self, path: str) -> Key | None:
        """The key of that path, by its canonical name or an alias; None when DeepSpeed does not know it."""
        canonical = self.canonical(path)
        return self._key(canonical) if canonical in self._entries else None

    def children(self, section: str) -> tuple[Key, ...]:
        """The keys that stand directly in a section, sorted; empty for a path that is no section."""
        wanted = self.canonical(section) if section else ""
        return tuple(self._key(path) for path in self._entries if _section(path) == wanted)

    def section_policy(self, section: str) -> Policy:
        """What becomes of an unknown key in a section; the top level is the empty path.

        Raises ValueError for a path that is no section.
        """
        wanted = self.canonical(section) if section else ""
        if wanted not in self._sections:
            raise ValueError(f"{section!r} is no section of DeepSpeed {self.version}")
        return self._sections[wanted]

    def suggestions(self, path: str) -> tuple[str, ...]:
        """Paths of known keys that an unknown path may mean, best first: in its section, else of its name elsewhere."""
        section, _, name = self.canonical(path).rpartition(".")
        beside = nearest(name, (other for key in self.children(section) for other in (key.name, *key.aliases)))
        if beside:
            return tuple(dict.fromkeys(self.canonical(_join(section, other)) for other in beside))
        return tuple(key.path for key in self if name in (key.name, *key.aliases))

    def _key(self, path: str) -> Key:
        # Hardly any config names more than a tenth of them.
        if path not in self._built:
            reader = self._readers.get(path) or self._readers[_join(_section(path), "*")]
            self._built[path] = _key(path, self._entries[path], reader)
        return self._built[path]


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@functools.cache
def known_versions() -> tuple[str, ...]:
    """The versions of DeepSpeed that there are key data for, oldest first."""
    return tuple(sorted((name for name in names("deepspeed", ".json") if name[0].isdigit()), key=_number))


DEFAULT_VERSION = known_versions()[-1]
"""The newest version of DeepSpeed that there are key data for."""

_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:\.[x*]|(?:[-+]|\.?(?:a|b|rc|dev|post)).*)?")


def nearest_version(text: str) -> str:
    """The known version that a text stands for.

    `0.19.7` is itself, and so is a build of it (`0.19.7+abc`, `0.19.7.dev1`); `0.19` or `0.19.x` is the last 0.19; what
    is newer than all that are known is the newest of them.

    Raises UnknownVersion for anything else.
    """
    known, match = known_versions(), _VERSION.fullmatch(text.strip())
    if match is None:
        raise UnknownVersion(text, known)
    wanted = _number(match[1])
    if wanted > _number(known[-1]):
        return known[-1]
    within = [version for version in known if _number(version)[: len(wanted)] == wanted]
    if not within:
        raise UnknownVersion(text, known)
    return within[-1]


def load_keys(version: str = DEFAULT_VERSION) -> Keys:
    """The keys of a version of DeepSpeed.

    Raises UnknownVersion.
    """
    if version not in known_versions():
        raise UnknownVersion(version, known_versions())
    return _load(version)


@functools.cache
def _load(version: str) -> Keys:
    return Keys(read_json(f"deepspeed/{version}.json"))


def _key(path: str, entry: Mapping[str, Any], reader: str) -> Key:
    return Key(
        path=path,
        types=tuple(entry["type"].split(" or ")),
        default=entry.get("default"),
        has_default="default" in entry,
        minimum=entry.get("minimum"),
        exclusive_minimum=entry.get("exclusive_minimum"),
        maximum=entry.get("maximum"),
        exclusive_maximum=entry.get("exclusive_maximum"),
        choices=tuple(entry.get("choices", ())),
        any_case=entry.get("any_case", False),
        aliases=tuple(entry.get("aliases", ())),
        deprecated=entry.get("deprecated", False),
        replaced_by=tuple(entry.get("replaced_by", ())),
        reader=reader,
    )


def _optimizer_params(entry: Mapping[str, Any]) -> Params:
    places = {place: frozenset(names) for place, names in entry["params"].items()}
    return Params(
        names=tuple(sorted(frozenset().union(*places.values()))),
        by_place=places,
        unknown=entry["unknown_params"],
        zero=entry["zero"],
    )


def _section(path: str) -> str:
    return path.rpartition(".")[0]


def _join(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name
