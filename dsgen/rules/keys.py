"""Keys of ds_config.json: known, in the right place, of the right type, and not said twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsgen.catalog.deepspeed_keys import Key, Keys, load_keys
from dsgen.documents.positions import Path
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, lookup

_OWN_RULES = {("optimizer", "params"), ("scheduler", "params")}
"""Sections whose keys depend on the type beside them: the families `optimizer` and `schedule` check them."""


@rule("KEY001")
def key_is_known(view: View) -> Iterator[Problem]:
    """A key that DeepSpeed does not know.

    At the top level and in the sections that DeepSpeed reads by hand it is ignored without a word
    (`zero_optimisation` trains at stage 0); in the others DeepSpeed refuses to start.
    """
    keys = load_keys()
    for path, _ in _said(view.config):
        section, name = ".".join(map(str, path[:-1])), str(path[-1])
        if not _checked(keys, section) or _known(keys, section, name) or ".".join(map(str, path)) in keys.removed:
            continue
        ignored = keys.section_policy(section) == "ignored"
        near = keys.suggestions(f"{section}.{name}" if section else name) if "." not in name else ()
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
    for path, _ in _said(view.config):
        reason = keys.removed.get(".".join(map(str, path)))
        if reason is not None:
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
    for path, value in _said(view.config):
        key = keys.get(".".join(map(str, path))) if all("." not in str(part) for part in path) else None
        if key is None or path[:2] in _OWN_RULES:
            continue
        problem = value_problem(key, value)
        if problem is not None:
            yield Problem(path=path, message=f"{path[-1]}: {problem}", help=_default_help(key))


@rule("KEY004")
def raw_key_agrees(view: View) -> Iterator[Problem]:
    """A raw key says what a field of the recipe decides, and says it differently.

    Everything that dsgen derives (buckets, memory, ranks) follows the field, so the two must not part.
    """
    owned: dict[str, Any] = {
        "train_batch_size": view.global_batch,
        "train_micro_batch_size_per_gpu": view.micro_batch,
        "gradient_accumulation_steps": view.accumulation,
        "zero_optimization.stage": view.stage,
        "zero_optimization.offload_optimizer.device": view.offload_optimizer or "none",
        "zero_optimization.offload_param.device": view.offload_parameters or "none",
        "fp16.enabled": None if view.precision is None else view.precision == "fp16",
        "bf16.enabled": None if view.precision is None else view.precision == "bf16",
        "bfloat16.enabled": None if view.precision is None else view.precision == "bf16",
        "data_types.grad_accum_dtype": view.accumulate,
        "optimizer.type": view.optimizer,
        "scheduler.type": view.schedule or "",
        "sequence_parallel_size": view.sequence_parallel,
        "tensor_parallel.autotp_size": view.tensor_parallel,
    }
    for path, decided in owned.items():
        raw = lookup(view.raw, path)
        if raw is None or raw == decided:
            continue
        field = FIELDS[path]
        said = f"the recipe decides it as {decided!r}" if decided not in (None, "") else "a field of the recipe decides it"
        yield Problem(
            path=tuple(path.split(".")), message=f"the raw key says {raw!r}, {said}", help=f"write {field} instead"
        )


@rule("KEY005")
def key_is_current(view: View) -> Iterator[Problem]:
    """A key that DeepSpeed still reads under an old name. Newer versions drop such keys, and then refuse or ignore them."""
    keys = load_keys()
    for path, _ in _said(view.config):
        key = keys.get(".".join(map(str, path))) if all("." not in str(part) for part in path) else None
        if key is not None and key.deprecated:
            instead = " or ".join(key.replaced_by)
            yield Problem(
                path=path,
                message=f"{path[-1]} is an old name that DeepSpeed is about to drop",
                help=f"write {instead}" if instead else "remove it",
                on_key=True,
            )


FIELDS: Mapping[str, str] = {
    "train_batch_size": "batch.global",
    "train_micro_batch_size_per_gpu": "batch.micro",
    "gradient_accumulation_steps": "batch.accumulation",
    "zero_optimization.stage": "zero.stage",
    "zero_optimization.offload_optimizer.device": "zero.offload.optimizer",
    "zero_optimization.offload_param.device": "zero.offload.parameters",
    "fp16.enabled": "precision",
    "bf16.enabled": "precision",
    "bfloat16.enabled": "precision",
    "data_types.grad_accum_dtype": "precision.accumulate",
    "optimizer.type": "optimizer.type",
    "scheduler.type": "schedule.type",
    "sequence_parallel_size": "parallel.sequence",
    "tensor_parallel.autotp_size": "parallel.tensor",
}
"""ds_config.json keys that fields of a recipe decide."""


def value_problem(key: Key, value: Any) -> str | None:
    """What is wrong with a value of a key, as a sentence; None when DeepSpeed takes it."""
    if value == "auto" and "auto" not in key.choices:
        return "'auto' is for a trainer that resolves it: DeepSpeed alone drops it or fails on it later"
    if not _has_type(key, value):
        return f"expected {' or '.join(_TYPE_WORDS.get(t, t) for t in key.types)}, got {_shown(value)}"
    items = value if isinstance(value, list) else [value]
    if key.choices and value is not None and not isinstance(value, Mapping):
        known = {str(choice).lower() for choice in key.choices} if key.any_case else set(map(str, key.choices))
        for item in items:
            if (str(item).lower() if key.any_case else str(item)) not in known:
                return f"expected one of {', '.join(map(str, key.choices))}, got {_shown(item)}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
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
    if "python" in kinds or not kinds & set(_TYPE_WORDS):
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


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def _default_help(key: Key) -> str:
    return f"DeepSpeed's own default is {key.default!r}" if key.has_default and key.default is not None else ""


def _said(config: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every key of nested mappings with its value, parents before children."""
    for name, value in config.items():
        inner = (*path, name)
        yield inner, value
        if isinstance(value, Mapping):
            yield from _said(value, inner)


def _checked(keys: Keys, section: str) -> bool:
    """Whether unknown keys of a section are worth a word: it is a section, and its keys are not the user's own."""
    if tuple(section.split(".")) in _OWN_RULES:
        return False
    return keys.canonical(section) in keys.known_sections and keys.section_policy(section) != "free"


def _known(keys: Keys, section: str, name: str) -> bool:
    if "." in name:
        return False
    return keys.get(f"{section}.{name}" if section else name) is not None
