"""What DeepSpeed makes of the value of a key: whether it takes it, and as what."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dsgen.catalog.deepspeed_keys import Key, Keys
from dsgen.catalog.lookup import alike
from dsgen.rules.view import shown


def value_problem(key: Key | None, value: Any) -> str | None:
    """What is wrong with a value, as a sentence; None when DeepSpeed takes it. `key` is None for an unknown key."""
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, float) and not math.isfinite(item) for item in items):
        return "expected a finite number, which is all that JSON can hold"
    if key is None:
        return None
    if not _has_type(key, value):
        return f"expected {' or '.join(_TYPE_WORDS[kind] for kind in key.types)}, got {shown(value)}"
    if key.path in _TEXTS and any(not isinstance(item, str) for item in items):
        return f"expected text in the list, got {shown(next(item for item in items if not isinstance(item, str)))}"
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


_TEXTS = frozenset(
    {
        "data_types.keep_in_fp32_modules",
        "zero_optimization.leaf_module.classes",
        "zero_optimization.leaf_module.names",
        "zero_optimization.leaf_module.name_suffixes",
    }
)
"""Lists that DeepSpeed checks to hold text only (runtime/zero/leaf_module_config.py, runtime/config.py)."""


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
    "python": "an object that the program makes, and no value of a config",
}


def _has_type(key: Key, value: Any) -> bool:
    kinds = set(key.types)
    if "python" in kinds:
        return False  # an object of the program, which no JSON value can be
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


def default_help(key: Key | None) -> str:
    """What the key is when nobody says it, as help; empty where that helps nobody."""
    if key is None or key.default is None:
        return ""
    if key.path in _TEXTS:
        return "write names in quotes"
    return f"DeepSpeed's own default is {shown(key.default)}"


_DTYPE_WORDS = {
    "half": "fp16",
    "float16": "fp16",
    "fp_16": "fp16",
    "bfloat16": "bf16",
    "bfp16": "bf16",
    "bfloat": "bf16",
    "float32": "fp32",
    "float": "fp32",
}
"""Names of number types elsewhere -> DeepSpeed's."""


def meant_value(key: Key, value: Any) -> Any:
    """The value that one of a wrong type or name stands for, where DeepSpeed takes that; None where nothing is near."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    text = value.strip()
    candidates: list[Any] = []
    if key.path == "fp16.loss_scale" and text.lower() == "dynamic":
        candidates.append(0)
    if {"int", "float"} & set(key.types):
        candidates.extend(_numbers(text.replace("_", ""), whole="float" not in key.types))
    if "bool" in key.types and text.lower() in (*_TRUE, *_FALSE):
        candidates.append(text.lower() in _TRUE)
    if key.choices:
        words = [choice for choice in key.choices if isinstance(choice, str)]
        candidates.extend(choice for choice in words if choice.lower() == text.lower())
        candidates.append(_DTYPE_WORDS.get(text.lower().removeprefix("torch."), text.lower()))
        candidates.extend(choice for choice in words if alike(text, choice))
    return next((each for each in candidates if value_problem(key, each) is None), None)


def _numbers(text: str, *, whole: bool) -> Iterator[int | float]:
    try:
        number = float(text)
    except ValueError:
        return
    if math.isfinite(number):
        if number.is_integer() and abs(number) < 2**63 and (whole or text.lstrip("+-").isdecimal()):
            yield int(number)
        yield number


def is_same(value: str, meant: Any) -> bool:
    """Whether a value that DeepSpeed refuses only writes another one differently, so that it may be changed."""
    if isinstance(meant, str):
        return value.strip().lower() == meant.lower()
    return not isinstance(meant, bool) and value.strip().lower() != "dynamic"


def written(value: Any) -> str:
    """A value as JSON has it."""
    return f'"{value}"' if isinstance(value, str) else shown(value)


def explained(key: Key | None, value: Any) -> str:
    """What else is to be said of the value that is meant."""
    return ", which means dynamic" if key is not None and str(value).strip().lower() == "dynamic" else ""


def is_interval(key: Key, value: Any) -> bool:
    """Whether it is a number of steps that is not whole, which DeepSpeed takes (runtime/engine.py)."""
    return key.path == "steps_per_print" and isinstance(value, float) and 0 < value < 2**63


def taken_as(keys: Keys, key: Key, value: Any) -> Any:
    """What DeepSpeed makes of a value of a wrong type; None when it refuses it or fails on it."""
    section = key.path.rpartition(".")[0]
    lenient = bool(section) and keys.section_policy(section) == "refused"  # read by pydantic, which converts
    taken: Any = None
    if isinstance(value, bool) and {"int", "float"} & set(key.types):
        if key.path in _NO_BOOLEANS:
            return None
        taken = int(value)
    elif not lenient and key.types == ("bool",) and key.path not in ADDED_UP:
        # read by hand: whatever is true for Python counts as true, every text for one
        right = value is None or isinstance(value, (int, float)) or str(value).lower() in _TRUE
        taken = bool(value) if right else None
    elif lenient and "bool" in key.types and str(value).lower() in (*_TRUE, *_FALSE, "1.0", "0.0"):
        taken = str(value).lower() in (*_TRUE, "1.0")
    elif lenient and isinstance(value, str) and {"int", "float"} & set(key.types):
        try:
            taken = int(value) if "int" in key.types and "float" not in key.types else float(value)
        except ValueError:
            return None
    return taken if taken is not None and value_problem(key, taken) is None else None


_NO_BOOLEANS = ("fp16.loss_scale", "fp16.loss_scale_window", "fp16.min_loss_scale")
"""Numbers whose validators refuse true and false (runtime/precision_config.py)."""


ADDED_UP = ("wall_clock_breakdown",)
"""Read by hand with `|`, which takes numbers and booleans only (runtime/config.py)."""


_TRUE = ("true", "on", "yes", "y", "t", "1")


_FALSE = ("false", "off", "no", "n", "f", "0")
"""Words that pydantic takes for a boolean."""
