from __future__ import annotations

from typing import Any

import pytest

from dsgen.catalog.devices import device_ids, load_device

from .conftest import Case, Findings
from .linted import lint_config, said

OLD = "hardware: {device: ascend-910a-32g}\n"

CASES = [
    Case(code="PRE001", path="precision.type", wrong=f"{OLD}precision: bf16 # here", right=f"{OLD}precision: fp16"),
    Case(
        code="PRE001",
        path="precision.type",
        wrong=f"{OLD}precision:\n  type: bf16 # here",
        right="hardware: {device: cuda-a100-80g}\nprecision:\n  type: bf16",
    ),
    Case(
        code="PRE002",
        path="precision.type",
        wrong="hardware: {device: cpu}\nprecision: fp16 # here",
        right="hardware: {device: cpu}\nprecision: bf16",
    ),
    Case(
        code="PRE003",
        path="precision.hysteresis",
        wrong="precision:\n  type: bf16\n  hysteresis: 2 # here",
        right="precision:\n  type: fp16\n  hysteresis: 2",
    ),
    Case(
        code="PRE004",
        path="precision.loss_scale_window",
        wrong="precision:\n  type: fp16\n  loss_scale: 128\n  loss_scale_window: 10 # here",
        right="precision:\n  type: fp16\n  loss_scale: dynamic\n  loss_scale_window: 10",
    ),
    Case(
        code="PRE005",
        path="precision.accumulate",
        wrong="precision: {type: bf16, accumulate: fp16} # here",
        right="precision: {type: bf16, accumulate: fp32}",
    ),
    Case(
        code="PRE005",
        path="precision.accumulate",
        wrong="zero: {stage: 0}\nprecision: {type: bf16, accumulate: fp32} # here",
        right="zero: {stage: 0}\nprecision: {type: bf16, accumulate: bf16}",
    ),
    Case(
        code="PRE005",
        path="precision.accumulate",
        wrong="precision: {type: fp32, accumulate: bf16} # here",
        right="precision: {type: fp32, accumulate: fp32}",
    ),
    Case(
        code="PRE006",
        path="precision.loss_scale",
        wrong="precision: {type: fp16, loss_scale: 0} # here",
        right="precision: {type: fp16, loss_scale: 1}",
    ),
    Case(
        code="PRE007",
        path="precision.loss_scale",
        wrong=f"{OLD}precision: {{type: fp16, loss_scale: 1024}} # here",
        right=f"{OLD}precision: {{type: fp16, loss_scale: dynamic}}",
    ),
    Case(
        code="PRE008",
        path="deepspeed.fp16.loss_scale",
        wrong="deepspeed:\n  fp16:\n    loss_scale: 128 # here",
        right="deepspeed: {fp16: {enabled: false}, bf16: {check_grad_overflow: false}}",
    ),
    Case(
        code="PRE008",
        path="deepspeed.bfloat16.check_grad_overflow",
        wrong="precision: fp32\ndeepspeed: {bfloat16: {check_grad_overflow: true}} # here",
        right="deepspeed: {bfloat16: {check_grad_overflow: true}}",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)


@pytest.mark.parametrize("device", device_ids())
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_precision_is_the_devices(device: str, precision: str, findings: Findings) -> None:
    found = findings(
        f"hardware: {{device: {device}, per_node: 1}}\nprecision: {precision}\n"
        "batch: {sequence_length: 16, micro: 1, global: 64}"
    )
    refused = {each.code for each in found if each.code in ("PRE001", "PRE002")}
    assert bool(refused) is not load_device(device).supports(precision)


OFF = {"bf16": {"enabled": False}}
CPU = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
MASTER = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}
STATES = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
BOTH_MASTERS = "fp16.fp16_master_weights_and_grads"
NO_MODULES = "torch_autocast.lower_precision_safe_modules"


def fp16(**keys: Any) -> dict[str, Any]:
    return {**OFF, "fp16": {"enabled": True, **keys}}


def autocast(**keys: Any) -> dict[str, Any]:
    return {**OFF, "torch_autocast": {"enabled": True, "dtype": "bfloat16", **keys}}


def accumulate(stage: int, dtype: str) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage}, "data_types": {"grad_accum_dtype": dtype}}


def torch_adam(value: bool) -> dict[str, Any]:
    return {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": value}}}


CONFIGS: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, str, str]]]] = [
    ({}, {"device": "ascend-910a"}, [("PRE001", "error", "bf16.enabled")]),
    (fp16(), {"device": "cpu"}, [("PRE002", "warning", "fp16.enabled")]),
    (fp16(loss_scale=128, hysteresis=2), {}, [("PRE004", "warning", "fp16.hysteresis")]),
    (fp16(loss_scale=0, hysteresis=2), {}, []),
    (accumulate(0, "fp32"), {}, [("PRE005", "error", "data_types.grad_accum_dtype")]),
    (accumulate(2, "fp16"), {}, [("PRE005", "warning", "data_types.grad_accum_dtype")]),
    (accumulate(2, "fp32"), {}, []),
    (fp16(loss_scale=-1), {}, [("PRE006", "error", "fp16.loss_scale")]),
    ({"fp16": {"enabled": False, "loss_scale": -1}}, {}, [("PRE006", "error", "fp16.loss_scale")]),
    (fp16(loss_scale=8), {"device": "ascend-910a"}, [("PRE007", "warning", "fp16.loss_scale")]),
    ({"fp16": {"enabled": "true"}}, {}, [("PRE009", "error", "fp16.enabled")]),
    ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, {}, []),
    (MASTER, {}, [("PRE010", "error", "bf16.bf16_master_weights_and_grads")]),
    (MASTER | {"zero_optimization": {"stage": 0}}, {}, [("PRE010", "error", "bf16.bf16_master_weights_and_grads")]),
    (MASTER | {"zero_optimization": CPU}, {}, []),
    (
        MASTER | {"zero_optimization": CPU} | torch_adam(True),
        {},
        [("PRE010", "error", "bf16.bf16_master_weights_and_grads")],
    ),
    (STATES, {}, []),
    (
        {"bf16": {"enabled": True, "bf16_optimizer_states": True}},
        {},
        [("PRE010", "error", "bf16.bf16_optimizer_states")],
    ),
    (
        MASTER | {"fp16": {"fp16_master_weights_and_grads": True}, "zero_optimization": CPU},
        {},
        [("PRE010", "error", BOTH_MASTERS)],
    ),
    ({"data_types": {"param_dtype": "fp16"}}, {}, [("PRE011", "error", "data_types.param_dtype")]),
    ({"data_types": {"param_dtype": "bfloat16"}}, {}, []),
    (autocast(), {}, []),
    (autocast() | {"bf16": {"enabled": True}}, {}, [("PRE012", "warning", "torch_autocast.enabled")]),
    (autocast(dtype=None), {}, [("PRE012", "warning", "torch_autocast.dtype")]),
    (
        autocast(lower_precision_safe_modules=["torch.nn.Linaer", "torch.nn.Linear", "mine.Linaer"]),
        {},
        [("PRE012", "error", NO_MODULES)],
    ),
    (autocast(lower_precision_safe_modules=["Linear"]), {}, [("PRE012", "error", NO_MODULES)]),
    (
        autocast() | {"zero_optimization": {"stage": 3, "zero_quantized_weights": True}},
        {},
        [("PRE012", "error", "zero_optimization.zero_quantized_weights")],
    ),
    (fp16(loss_scale_window=0), {}, [("PRE013", "error", "fp16.loss_scale_window")]),
    (fp16(min_loss_scale=0), {}, [("PRE013", "error", "fp16.min_loss_scale")]),
    (fp16(min_loss_scale=0, enabled="auto"), {}, [("PRE013", "warning", "fp16.min_loss_scale")]),
    (fp16(min_loss_scale=0, loss_scale=8), {}, [("PRE004", "warning", "fp16.min_loss_scale")]),
    ({"fp16": {"enabled": False, "min_loss_scale": 0}}, {}, []),
    (fp16(initial_scale_power=64), {}, [("PRE013", "error", "fp16.initial_scale_power")]),
    (fp16(initial_scale_power=63), {}, []),
    ({"bf16": None, "bfloat16": {"enabled": True}}, {}, [("PRE014", "warning", "bfloat16")]),
]


@pytest.mark.parametrize(("changes", "job", "expected"), CONFIGS)
def test_in_a_ds_config(changes: dict[str, Any], job: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    assert said(lint_config(changes, "PRE", **job)) == expected


def test_the_old_name_of_bf16_is_mended() -> None:
    (finding,) = lint_config({"bf16": None, "bfloat16": {"enabled": True}}, "PRE014")
    assert [(edit.action, edit.path, edit.to) for edit in finding.fix] == [("rename", ("bfloat16",), ("bf16",))]
