"""The order in which modules run, against the hooks of the real engine at stage 3."""

from __future__ import annotations

from typing import Any

import pytest

from dsgen.memory.job import read_job
from dsgen.memory.module_order import Modules

from .conftest import Engine, Planner, engine_job

SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
}
ATTENTION = ["q_proj", "v_proj"]


@pytest.mark.parametrize("chunk", [None, 40])
@pytest.mark.parametrize(
    ("checkpointing", "targets", "model"),
    [
        ("none", None, {}),
        ("full", None, {"tie_word_embeddings": True}),
        ({"every": 2}, None, {}),
        ("full", None, {"model_type": "qwen3"}),
        ("none", "all-linear", {}),
        ("full", ATTENTION, {}),
        ({"every": 2}, ATTENTION, {"tie_word_embeddings": True}),
        ("none", ["up_proj"], {}),
        ({"every": 2}, ["down_proj"], {"model_type": "qwen2"}),
        ("full", "all-linear", {}),
    ],
)
def test_the_order_is_that_of_the_real_engine(
    checkpointing: Any, targets: Any, model: dict[str, Any], chunk: int | None, plan: Planner, engine: Engine
) -> None:
    planned = plan(
        model=SMALL | model,
        precision="bf16",
        zero={"stage": 3, "stage3_param_persistence_threshold": 3000},
        batch={"sequence_length": 64, "micro": 2, "accumulation": 2},
        activation_checkpointing=checkpointing,
        optimizer={"type": "AdamW", "lr": 1e-4, "torch_adam": True},
        hardware={"device": "cpu", "per_node": 2},
        data={"builtin": "python-topics"},
        tokenizer="bytes",
        loss=chunk and {"chunk_tokens": chunk},
        adapter=targets and {"rank": 4, "targets": targets},
    )
    asked = engine.measure(engine_job(planned, order=True))["order"]
    expected = [
        [not event.ends, event.elements]
        for event in Modules(read_job(planned)).order().events
        if event.elements or not event.ends
    ]
    # Modules without parameters need not be told when they end.
    assert [each for each in asked if each[0] or each[1]] == expected
