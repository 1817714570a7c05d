from __future__ import annotations

import pytest

from dsgen.catalog.devices import device_ids, load_device

from .conftest import Case, Findings

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
