from __future__ import annotations

from typing import Any

import pytest

from .linted import lint_config, said

SECTION = "activation_checkpointing"
CONTIGUOUS = f"{SECTION}.contiguous_memory_optimization"
FULL = {"partition_activations": True, "contiguous_memory_optimization": True, "number_checkpoints": 4}

CONFIGS: list[tuple[dict[str, Any], list[tuple[str, str, str]]]] = [
    ({}, []),
    ({"partition_activations": False, "number_checkpoints": None}, []),
    ({"cpu_checkpointing": True}, [("ACT001", "warning", SECTION)]),
    (FULL, [("ACT001", "warning", SECTION)]),
    (FULL | {"number_checkpoints": None}, [("ACT001", "warning", SECTION), ("ACT002", "warning", CONTIGUOUS)]),
    (FULL | {"partition_activations": False}, [("ACT001", "warning", SECTION), ("ACT002", "warning", CONTIGUOUS)]),
]


@pytest.mark.parametrize(("section", "expected"), CONFIGS)
def test_in_a_ds_config(section: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    assert said(lint_config({SECTION: section}, "ACT")) == expected


def test_what_a_trainer_has_instead() -> None:
    (finding,) = lint_config({SECTION: {"partition_activations": True}}, "ACT", framework="transformers")
    assert "gradient_checkpointing in TrainingArguments" in finding.help
