from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgen.recipe import units


@pytest.mark.parametrize(
    ("read", "said", "value"),
    [
        (units.count, 128, 128),
        (units.count, 128.0, 128),
        (units.count, 5e8, 500_000_000),
        (units.count, "5e8", 500_000_000),
        (units.count, "2M", 2_000_000),
        (units.count, "2 m", 2_000_000),
        (units.count, "1.001k", 1001),
        (units.count, "1.5B", 1_500_000_000),
        (units.count, "1G", 10**9),
        (units.count, "3T", 3 * 10**12),
        (units.count, "-3", -3),
        (units.count, ".5k", 500),
        (units.size, 1024, 1024),
        (units.size, "64GiB", 64 * 2**30),
        (units.size, "500MB", 500_000_000),
        (units.size, "1TiB", 2**40),
        (units.size, "1.5 kib", 1536),
        (units.size, "7b", 7),
        (units.seconds, 90, 90.0),
        (units.seconds, "30min", 1800.0),
        (units.seconds, "1.5h", 5400.0),
        (units.seconds, "2 days", 172_800.0),
        (units.seconds, "90", 90.0),
        (units.fraction, "10%", 0.1),
        (units.fraction, "12.5 %", 0.125),
        (units.fraction, 0.25, 0.25),
        (units.fraction, "100%", 1.0),
        (units.fraction, 0, 0.0),
        (units.number, 3, 3.0),
        (units.text, " a ", " a "),
    ],
)
def test_quantities(read: Callable[[Any], Any], said: object, value: object) -> None:
    assert read(said) == value
    assert type(read(said)) is type(value)


@pytest.mark.parametrize(
    ("read", "said", "problem"),
    [
        (units.count, "2.5", "expected a whole number"),
        (units.count, 1.5, "expected a whole number"),
        (units.count, True, "expected a whole number"),
        (units.count, None, "expected a whole number"),
        (units.count, float("nan"), "expected a whole number"),
        (units.count, float("inf"), "expected a number below 2^63"),
        (units.count, 2**63, "expected a number below 2^63"),
        pytest.param(units.count, 10**400, "expected a number below 2^63", id="count-huge"),
        (units.count, "1e999", "expected a number below 2^63"),
        (units.count, "many", "expected a whole number such as 128, 5e8 or 2M"),
        (units.count, "1e99999999999", "expected a whole number such as 128, 5e8 or 2M"),
        (units.count, "9" * 70, "expected a whole number such as 128, 5e8 or 2M"),
        (units.count, "2GB", "unit 'GB' is unknown: write k, M, B (or G), T, or no unit"),
        (units.size, "64G", "unit 'G' is unknown: write B, KiB, MiB, GiB, TiB, or kB, MB, GB, TB"),
        (units.size, "-1GiB", "expected a size of at least 0"),
        (units.size, "10%", "unit '%' is unknown: write B, KiB, MiB, GiB, TiB, or kB, MB, GB, TB"),
        (units.seconds, "1h30min", "expected a duration such as 30min"),
        (units.seconds, "3 parsecs", "unit 'parsecs' is unknown: write s, min, h or d"),
        (units.seconds, -1, "expected a duration between 0 and 10 years"),
        (units.seconds, "1e99h", "expected a duration between 0 and 10 years"),
        (units.seconds, "1e999", "expected a finite number"),
        (units.fraction, "0.1", "expected a part such as 10% or 0.1"),
        (units.fraction, 10, "expected a part from 0% to 100%"),
        (units.fraction, "-5%", "expected a part from 0% to 100%"),
        (units.number, "1e-5", "expected a number"),
        (units.number, False, "expected a number"),
        (units.number, float("inf"), "expected a finite number"),
        pytest.param(units.number, 10**400, "expected a number below 1e308", id="number-huge"),
        (units.text, 3, "expected text"),
        (units.text, " \t", "expected text that is not empty"),
    ],
)
def test_what_is_refused(read: Callable[[Any], Any], said: object, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(said)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"),
        (True, "true"),
        ("a\nb", r"'a\nb'"),
        ("x" * 70, repr("x" * 57 + "...")),
        ({}, "an empty mapping"),
        ({"a": 1}, "a mapping"),
        ([], "an empty list"),
        ([1], "a list"),
        (10**50, "1" + "0" * 36 + "..."),
        (2.5, "2.5"),
    ],
)
def test_values_are_shown_as_yaml_has_them(value: object, text: str) -> None:
    assert units.shown(value) == text


@given(st.decimals(0, 10**6, places=3), st.sampled_from(["k", "M", "B"]))
def test_decimal_counts_are_exact(amount: Any, unit: str) -> None:
    assert units.count(f"{amount}{unit}") == int(amount * {"k": 10**3, "M": 10**6, "B": 10**9}[unit])


@given(st.text(max_size=20) | st.floats() | st.integers() | st.none() | st.lists(st.none()))
def test_anything_else_is_a_value_error(value: object) -> None:
    for read in (units.count, units.size, units.seconds, units.fraction, units.number, units.text):
        try:
            read(value)
        except ValueError as error:
            assert str(error)
