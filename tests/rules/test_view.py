from __future__ import annotations

from typing import Any

import pytest

from dsgen.documents.positions import Position
from dsgen.rules.view import Neutral, View, dtype_named, number, truth


def view(deepspeed: str) -> View:
    def locate(path: Neutral, *, key: bool = False) -> Position:
        return Position("ds_config.json")

    def spell(path: Neutral) -> str:
        return str(path)

    return View(locate=locate, spell=spell, deepspeed=deepspeed)


@pytest.mark.parametrize(
    ("deepspeed", "version", "expected"),
    [
        ("0.19.8", "0.19.8", True),
        ("0.19.8", "0.19.10", False),
        ("0.19.8", "0.9.9", True),
        ("0.19.8", "0.18.10", True),
        ("0.19.8", "1.0", False),
    ],
)
def test_versions_are_compared_by_their_numbers(deepspeed: str, version: str, expected: bool) -> None:
    assert view(deepspeed).since(version) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, True), ("TRUE", True), (1, True), (0.0, False), ("off", False), (2, None), ("auto", None), ([], None)],
)
def test_truth(value: Any, expected: bool | None) -> None:
    assert truth(value) is expected


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), float("inf"), 10**400, -(2**63)])
def test_what_is_no_number(value: Any) -> None:
    assert number(value) is None


def test_numbers_and_types() -> None:
    assert [number(value) for value in (0, -1.5, 2**62)] == [0, -1.5, 2**62]
    assert [dtype_named(value) for value in ("bfloat16", "half", "torch.float32", "int8", 1)] == [
        "bf16",
        "fp16",
        "fp32",
        None,
        None,
    ]
