"""Numbers with units, as people write them: `64GiB`, `2M`, `30min`, `10%`.

Each function takes what YAML gave and returns a plain number in the base unit (bytes, items, seconds,
a fraction), or raises ValueError with a sentence that says what is expected.
"""

from __future__ import annotations

import math
import re
from typing import Any

_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_COUNT = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
_SECONDS = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "seconds": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "minutes": 60,
    "h": 3600,
    "hour": 3600,
    "hours": 3600,
    "d": 86400,
    "day": 86400,
    "days": 86400,
}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z%]*)\s*\Z")
_LIMIT = 2**63 - 1


def number(value: Any) -> float:
    """A finite number; text is refused, since quotes around a number are a slip that DeepSpeed would meet later."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"expected a number, got {shown(value)}")
    try:
        result = float(value)
    except OverflowError:
        raise ValueError("is too large") from None
    if not math.isfinite(result):
        raise ValueError(f"expected a finite number, got {value}")
    return result


def count(value: Any) -> int:
    """A whole number of things: `128`, `5e8`, `2M` (millions), `1.5B` (thousand millions)."""
    if isinstance(value, str):
        amount, unit = _split(value, "a whole number such as 128, 5e8 or 2M")
        if unit.lower() not in _COUNT:
            raise ValueError(f"unit {unit!r} is unknown: write k, M, B (or G), T, or no unit")
        value = amount * _COUNT[unit.lower()]
    return _whole(value)


def size(value: Any) -> int:
    """A number of bytes: `64GiB`, `500MB`, `1TiB`, or a plain number of bytes."""
    if isinstance(value, str):
        amount, unit = _split(value, "a size such as 64GiB")
        if unit.lower() not in _BYTES:
            raise ValueError(f"unit {unit!r} is unknown: write B, KiB, MiB, GiB, TiB, or kB, MB, GB, TB")
        value = amount * _BYTES[unit.lower()]
    result = _whole(value, rounding=True)
    if result < 0:
        raise ValueError("a size cannot be negative")
    return result


def seconds(value: Any) -> float:
    """A duration in seconds: `30min`, `2h`, `90s`, or a plain number of seconds."""
    if isinstance(value, str):
        amount, unit = _split(value, "a duration such as 30min")
        if unit.lower() not in _SECONDS:
            raise ValueError(f"unit {unit!r} is unknown: write s, min, h or d")
        value = amount * _SECONDS[unit.lower()]
    result = number(value)
    if result < 0:
        raise ValueError("a duration cannot be negative")
    return result


def fraction(value: Any) -> float:
    """A part of a whole: `10%` or `0.1`."""
    if isinstance(value, str):
        amount, unit = _split(value, "a part such as 10% or 0.1")
        if unit != "%":
            raise ValueError("write a part as 10% or 0.1")
        value = amount / 100
    result = number(value)
    if not 0 <= result < 1:
        raise ValueError("expected a part between 0% and below 100%")
    return result


def shown(value: Any) -> str:
    """A value as it stands in YAML, shortened, for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _split(text: str, expected: str) -> tuple[float, str]:
    match = _QUANTITY.match(text)
    if match is None or len(text) > 64:
        raise ValueError(f"expected {expected}, got {shown(text)}")
    return float(match[1]), match[2]


def _whole(value: Any, *, rounding: bool = False) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"expected a whole number, got {shown(value)}")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"expected a whole number, got {value}")
        if not rounding and value != int(value):
            raise ValueError(f"expected a whole number, got {value}")
        value = int(value)
    if abs(value) > _LIMIT:
        raise ValueError("is too large")
    return value
