"""Numbers with units, as people write them: `64GiB`, `2M`, `30min`, `10%`.

Each function takes what YAML gave and returns a plain number in the base unit (bytes, items, seconds,
a fraction), or raises ValueError: with `expected ...`, which the reader of the message sees beside what was given,
or with a sentence of its own.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
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
    "": 1,
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
_QUANTITY = re.compile(r"\s*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-z%]*)\s*\Z")
_LIMIT = 2**63 - 1
_LONGEST_SECONDS = 10 * 366 * 86400


def number(value: Any) -> float:
    """A finite number; text is refused, since quotes around a number are a slip that DeepSpeed would meet later."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("expected a number")
    try:
        result = float(value)
    except OverflowError:
        raise ValueError("expected a number below 1e308") from None
    if not math.isfinite(result):
        raise ValueError("expected a finite number")
    return result


def text(value: Any) -> str:
    """Text with something in it."""
    if not isinstance(value, str):
        raise ValueError("expected text")
    if not value.strip():
        raise ValueError("expected text that is not empty")
    return value


def choice(value: Any) -> Any:
    """A value to compare with a few small numbers; true and false, which Python takes for 1 and 0, as text."""
    unlike = isinstance(value, bool) or (isinstance(value, int) and abs(value) > _LIMIT)
    return str(value) if unlike else value


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
        raise ValueError("expected a size of at least 0")
    return result


def seconds(value: Any) -> float:
    """A duration in seconds: `30min`, `2h`, `90s`, or a plain number of seconds."""
    if isinstance(value, str):
        amount, unit = _split(value, "a duration such as 30min")
        if unit.lower() not in _SECONDS:
            raise ValueError(f"unit {unit!r} is unknown: write s, min, h or d")
        value = float(amount * _SECONDS[unit.lower()])
    result = number(value)
    if not 0 <= result <= _LONGEST_SECONDS:
        raise ValueError("expected a duration between 0 and 10 years")
    return result


def fraction(value: Any) -> float:
    """A part of a whole: `10%` or `0.1`."""
    if isinstance(value, str):
        amount, unit = _split(value, "a part such as 10% or 0.1")
        if unit != "%":
            raise ValueError("expected a part such as 10% or 0.1")
        value = float(amount / 100)
    result = number(value)
    if not 0 <= result <= 1:
        raise ValueError("expected a part from 0% to 100%")
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
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _split(text: str, expected: str) -> tuple[Decimal, str]:
    """The amount and the unit of a quantity; exact, so that 1.001k is 1001."""
    match = _QUANTITY.match(text)
    if match is None or len(text) > 64:
        raise ValueError(f"expected {expected}")
    return Decimal(match[1]), match[2]


def _whole(value: Any, *, rounding: bool = False) -> int:
    """`value` as an int. Raises ValueError unless it is whole, finite and below 2^63."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise ValueError("expected a whole number")
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("expected a whole number")
    if not -_LIMIT <= value <= _LIMIT:
        raise ValueError("expected a number below 2^63")
    if not rounding and value != int(value):
        raise ValueError("expected a whole number")
    return int(value)
