from __future__ import annotations

import json
from typing import Any

import pytest

from .linted import SOUND, lint_config, lint_text, said

ZERO = "zero_optimization"
TRAINER = {"framework": "transformers"}
FILLED = {"gradient_clipping": "auto"}


def zero(**keys: Any) -> dict[str, Any]:
    return {ZERO: {"stage": 2, **keys}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps_per_print": "auto"}, []),
        (zero(reduce_bucket_size="auto", stage3_prefetch_bucket_size="auto"), []),
        (zero(stage="auto"), [("warning", f"{ZERO}.stage")]),
        (zero(offload_optimizer={"device": "auto"}), [("warning", f"{ZERO}.offload_optimizer.device")]),
        (zero(overlap_comm="auto"), [("error", f"{ZERO}.overlap_comm")]),
        (zero(offload_optimizer={"pin_memory": "auto"}), [("error", f"{ZERO}.offload_optimizer.pin_memory")]),
        (zero(offload_optimizer="auto"), [("error", f"{ZERO}.offload_optimizer")]),
        (zero(offload_param="auto"), [("error", f"{ZERO}.offload_param")]),
        ({ZERO: "auto"}, [("error", ZERO)]),
        ({"bf16": None, "bfloat16": {"enabled": "auto"}}, [("error", "bfloat16.enabled")]),
        # under this name neither of them looks for it
        (zero(gather_16bit_weights_on_model_save="auto"), [("error", f"{ZERO}.gather_16bit_weights_on_model_save")]),
        ({"data_types": {"keep_in_fp32_modules": "auto"}}, [("error", "data_types.keep_in_fp32_modules")]),
        (
            {"optimizer": {"type": "AdamW", "params": {"torch_adam": "auto"}}},
            [("error", "optimizer.params.torch_adam")],
        ),
        # KEY001 says so
        ({"foo": "auto"}, []),
    ],
)
def test_what_is_left_stops_accelerate(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    found = said(lint_config(FILLED | changes, "AUT002", **TRAINER))
    assert [(severity, path) for _, severity, path in found] == expected


def test_the_name_that_is_filled_in() -> None:
    (finding,) = lint_config(FILLED | {"bf16": None, "bfloat16": {"enabled": "auto"}}, "AUT002")
    assert finding.help == "it is filled in under the name bf16.enabled"


def test_an_auto_of_deepspeeds_own_is_not_for_a_trainer() -> None:
    found = lint_config({"data_types": {"keep_in_fp32_modules": "auto"}, ZERO: None}, "")
    assert [each for each in found if each.severity.value != "info"] == []
    # It may be one for DeepSpeed alone, which drops it.
    assert said(lint_config(zero(overlap_comm="auto"), "AUT002")) == [("AUT002", "warning", f"{ZERO}.overlap_comm")]


def test_deepspeed_drops_a_section_that_is_auto() -> None:
    found = lint_config(zero(offload_param="auto"), "AUT002", framework="native")
    assert said(found) == [("AUT002", "warning", f"{ZERO}.offload_param")]


@pytest.mark.parametrize(
    ("changes", "job", "expected"),
    [
        ({ZERO: None}, TRAINER, [("ACC014", "error", ZERO)]),
        (FILLED | {ZERO: None}, {}, [("ACC014", "error", ZERO)]),
        ({ZERO: None}, {"framework": "native"}, []),
        ({}, TRAINER, []),
        # KEY001 says what is meant
        ({ZERO: None, "zero_optimisation": {"stage": 2}}, TRAINER, []),
    ],
)
def test_accelerate_wants_zero(
    changes: dict[str, Any], job: dict[str, str], expected: list[tuple[str, str, str]]
) -> None:
    assert said(lint_config(changes, "ACC", **job)) == expected


def test_zero_that_is_just_true() -> None:
    assert said(lint_config({ZERO: True}, "ZRO006", **TRAINER)) == [("ZRO006", "error", ZERO)]
    assert said(lint_config({ZERO: True}, "ZRO006", framework="native")) == [("ZRO006", "warning", ZERO)]


def test_a_byte_order_mark_stops_a_trainer() -> None:
    text = "\ufeff" + json.dumps(SOUND)
    assert ("REA006", "error", "") in said(lint_text(text, "ds_config.json", **TRAINER))
    assert ("REA006", "info", "") in said(lint_text(text, "ds_config.json", framework="native"))


YAML = "train_micro_batch_size_per_gpu: 1\nzero_optimization:\n  stage: 2\n"


@pytest.mark.parametrize(
    ("text", "framework", "severity", "effect"),
    [
        (YAML, "native", "warning", "hjson takes it for something else"),
        (YAML + "timers: {throughput: [}\n".replace("[", "'{'"), "native", "warning", ""),
        (YAML, "transformers", "error", "json.load, which transformers and accelerate read with, refuses it"),
        ("train_micro_batch_size_per_gpu: 1\n", "transformers", "error", ""),
        ("train_micro_batch_size_per_gpu: 1\n", "native", None, ""),
        (json.dumps(SOUND), "transformers", None, ""),
    ],
)
def test_a_config_in_yaml(text: str, framework: str, severity: str | None, effect: str) -> None:
    found = [each for each in lint_text(text, "ds_config.yaml", framework=framework) if each.code == "REA008"]
    assert [each.severity.value for each in found] == ([severity] if severity else [])
    assert all(effect in each.message for each in found)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(
    "text",
    [
        '{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": NUMBER}',
        '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "reduce_bucket_size": NUMBER}}',
        '{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": NUMBER}}}',
        '{"train_batch_size": 1, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": NUMBER}}}',
    ],
)
def test_a_number_that_is_not_finite_is_said_once(text: str, number: str) -> None:
    found = lint_text(text.replace("NUMBER", number), "ds_config.json", framework="native")
    assert [each.code for each in found if each.severity.value == "error"] == ["REA004"]


def test_an_auto_that_only_accelerate_sets_is_told_where_nothing_else_says_trainer() -> None:
    (found,) = lint_config({"steps_per_print": "auto"}, "AUT")
    assert (found.code, found.severity.value, found.path) == ("AUT002", "warning", "steps_per_print")
    with_trainer = lint_config({"steps_per_print": "auto", "train_batch_size": "auto"}, "AUT")
    assert [each.code for each in with_trainer] == ["AUT001"]
