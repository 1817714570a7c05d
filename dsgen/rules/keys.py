"""Keys of ds_config.json: known, in the right place, of the right type, and not said twice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dsgen.catalog.deepspeed_keys import Key, Keys, load_keys
from dsgen.catalog.lookup import nearest
from dsgen.documents.positions import Path
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, keys_of, shown

_OWN_RULES = {("optimizer", "params"), ("scheduler", "params")}
"""Sections whose keys depend on the type beside them: the families `optimizer` and `schedule` check them."""

WITHOUT_EFFECT: Mapping[str, str] = {
    "activation_checkpointing": "the models of train.py do not call DeepSpeed's checkpoint function; write "
    "`activation_checkpointing` at the top of the recipe",
    "autotuning": "nothing here starts DeepSpeed's tuner",
    "compile": "train.py does not call engine.compile()",
    "data_efficiency": "train.py reads the data itself",
    "dataloader_drop_last": "train.py reads the data itself",
    "disable_allgather": "DeepSpeed does not read it",
    "pipeline": "the models of train.py are no pipelines",
    "vocabulary_size": "DeepSpeed does not read it",
}
"""Keys that DeepSpeed knows and that change nothing in the rendered train.py: key -> why."""


@rule("KEY001")
def key_is_known(view: View) -> Iterator[Problem]:
    """A key that DeepSpeed does not know.

    At the top level and in the sections that DeepSpeed reads by hand it is ignored without a word
    (`zero_optimisation` trains at stage 0); in the others DeepSpeed refuses to start.
    """
    keys = load_keys()
    for path, _ in keys_of(view.config):
        section, name = ".".join(map(str, path[:-1])), str(path[-1])
        if not _checked(keys, section) or _key(keys, path) is not None or _canonical(keys, path) in keys.removed:
            continue
        ignored = keys.section_policy(section) == "ignored"
        near = nearest(name, view.own_names.get(section, ())) or _suggestions(keys, section, name)
        yield Problem(
            path=path,
            message=f"DeepSpeed {keys.version} knows no key {name!r} "
            + (f"in {section}" if section else "at the top level")
            + (": it would be ignored without a word" if ignored else ": it refuses to start"),
            help=f"did you mean {' or '.join(near)}?" if near else "remove it",
            on_key=True,
        )


@rule("KEY002")
def key_is_not_removed(view: View) -> Iterator[Problem]:
    """A key that DeepSpeed no longer has: its presence alone is an error, whatever its value."""
    keys = load_keys()
    for path, _ in keys_of(view.config):
        if _canonical(keys, path) in keys.removed:
            yield Problem(
                path=path,
                message=f"DeepSpeed {keys.version} refuses to start with {path[-1]}, which it no longer has",
                help="remove it",
                on_key=True,
            )


@rule("KEY003")
def value_is_right(view: View) -> Iterator[Problem]:
    """A value of a type, range or set that DeepSpeed does not take.

    `auto` belongs to Hugging Face's integration: DeepSpeed itself drops it for its own default in some sections, and
    fails on it late in others.
    """
    keys = load_keys()
    for path, value in keys_of(view.config):
        key = _key(keys, path)
        if path[:2] in _OWN_RULES and len(path) > 2:
            continue
        problem = value_problem(key, value)
        if problem is not None:
            yield Problem(path=path, message=f"{path[-1]}: {problem}", help=_default_help(key))


@rule("KEY004")
def raw_key_agrees(view: View) -> Iterator[Problem]:
    """A raw key says what a field of the recipe decides, and says it differently.

    Everything that dsgen derives (buckets, memory, ranks) follows the field, so the two must not part.
    """
    keys = load_keys()
    for path, value in keys_of(view.raw):
        canonical = _canonical(keys, path)
        if canonical is None or value_problem(keys.get(canonical), value) is not None:
            continue  # other rules say so
        decided = view.decided.get(canonical)
        if decided is not None and value != decided.value:
            yield Problem(
                path=path,
                message=f"the raw key says {shown(value)}, {decided.field} decides it"
                + (f" as {shown(decided.value)}" if decided.value is not None else ""),
                help=f"write {decided.field} instead",
            )
        inside = sorted({each.field for name, each in view.decided.items() if name.startswith(f"{canonical}.")})
        if inside and not isinstance(value, Mapping):
            yield Problem(
                path=path,
                message=f"the raw key replaces the section that {', '.join(inside)} belong to",
                help="name the keys of the section that are to change",
            )


@rule("KEY005")
def key_is_current(view: View) -> Iterator[Problem]:
    """A key that DeepSpeed still reads under an old name; a later version refuses or ignores it."""
    keys = load_keys()
    for path, _ in keys_of(view.config):
        key = _key(keys, path)
        if key is not None and key.deprecated and path[:2] not in _OWN_RULES:
            instead = " or ".join(view.spell(each) for each in key.replaced_by)
            yield Problem(
                path=path,
                message=f"{path[-1]} is an old name that DeepSpeed is about to drop",
                help=f"write {instead}" if instead else "remove it",
                on_key=True,
            )


@rule("KEY006")
def key_has_one_name(view: View) -> Iterator[Problem]:
    """One key under two of its names (`bf16` and `bfloat16`): DeepSpeed takes one of the two values without a word."""
    keys = load_keys()
    seen: dict[str, Path] = {}
    for path, _ in keys_of(view.config):
        canonical = _canonical(keys, path)
        first = seen.setdefault(canonical, path) if canonical is not None else path
        if first != path and first[:-1] == path[:-1]:
            yield Problem(
                path=path,
                message=f"{path[-1]} and {first[-1]} are two names of one key: only one of them would count",
                help="remove one of the two",
                on_key=True,
            )


@rule("KEY007")
def raw_key_has_an_effect(view: View) -> Iterator[Problem]:
    """A raw key that DeepSpeed knows and that changes nothing in the rendered train.py."""
    for key, reason in WITHOUT_EFFECT.items():
        if key in view.raw:
            yield Problem(path=(key,), message=f"{key} does nothing: {reason}", help="remove it", on_key=True)


def value_problem(key: Key | None, value: Any) -> str | None:
    """What is wrong with a value, as a sentence; None when DeepSpeed takes it. `key` is None for an unknown key."""
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, float) and not math.isfinite(item) for item in items):
        return "expected a finite number, which is all that JSON can hold"
    if key is None:
        return None
    if value == "auto" and "auto" not in (*key.choices, key.default):
        return "'auto' is for a trainer that resolves it: DeepSpeed alone drops it or fails on it later"
    if not _has_type(key, value):
        return f"expected {' or '.join(_TYPE_WORDS[kind] for kind in key.types)}, got {shown(value)}"
    if key.choices and value is not None and not isinstance(value, Mapping):
        known = {_comparable(key, choice) for choice in key.choices}
        for item in items:
            if _comparable(key, item) not in known:
                return f"expected one of {', '.join(map(str, key.choices))}, got {shown(item)}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if "float" not in key.types and abs(value) >= 2**63:
            return f"expected a number below 2^63, got {value:g}"
        limits = (
            (key.minimum, value < (key.minimum or 0), "at least"),
            (key.exclusive_minimum, value <= (key.exclusive_minimum or 0), "more than"),
            (key.maximum, value > (key.maximum or 0), "at most"),
            (key.exclusive_maximum, value >= (key.exclusive_maximum or 0), "less than"),
        )
        for limit, crossed, words in limits:
            if limit is not None and crossed:
                return f"expected {words} {limit:g}, got {value}"
    return None


def _comparable(key: Key, value: Any) -> str:
    """A choice as text, so that 2.0 is 2, as it is when DeepSpeed reads a file."""
    text = str(int(value) if isinstance(value, float) and value.is_integer() else value)
    return text.lower() if key.any_case else text


_TYPE_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "dict": "a mapping",
    "null": "null",
}


def _has_type(key: Key, value: Any) -> bool:
    kinds = set(key.types)
    if "python" in kinds:
        return True  # DeepSpeed does not say what it takes
    if value is None:
        return "null" in kinds
    if isinstance(value, bool):
        return "bool" in kinds
    if isinstance(value, int):
        return bool(kinds & {"int", "float"})
    if isinstance(value, float):
        return "float" in kinds or ("int" in kinds and value.is_integer())
    if isinstance(value, str):
        return "str" in kinds
    if isinstance(value, list):
        return "list" in kinds
    return "dict" in kinds


def _default_help(key: Key | None) -> str:
    if key is None or key.default is None:
        return ""
    return f"DeepSpeed's own default is {shown(key.default)}"


def _checked(keys: Keys, section: str) -> bool:
    """Whether unknown keys of a section are worth a word: it is a section, and its keys are not the user's own."""
    if tuple(section.split(".")) in _OWN_RULES:
        return False
    return keys.canonical(section) in keys.known_sections and keys.section_policy(section) != "free"


def _suggestions(keys: Keys, section: str, name: str) -> list[str]:
    """Known keys that an unknown one may mean: those beside it by their name, others by their path."""
    if "." in name:
        return []
    paths = keys.suggestions(f"{section}.{name}" if section else name)
    known = [key for key in map(keys.get, paths) if key is not None and not key.deprecated]
    beside = keys.canonical(section)
    return [key.name if key.path.rpartition(".")[0] == beside else key.path for key in known]


def _canonical(keys: Keys, path: Path) -> str | None:
    """A path by the names that DeepSpeed documents; None when a name has a dot in it, which no key has."""
    return None if any("." in str(part) for part in path) else keys.canonical(".".join(map(str, path)))


def _key(keys: Keys, path: Path) -> Key | None:
    canonical = _canonical(keys, path)
    return None if canonical is None else keys.get(canonical)
