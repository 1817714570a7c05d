from __future__ import annotations

from typing import Any

import pytest

from .conftest import Case, Findings
from .linted import lint_config, said

CASES = [
    Case(
        code="OPT001",
        path="optimizer.type",
        wrong="optimizer: {type: OneBitAdam, lr: 1e-5} # here",
        right="optimizer: {type: adamw, lr: 1e-5}",
    ),
    Case(
        code="OPT002",
        path="optimizer.weigth_decay",
        wrong="optimizer:\n  type: AdamW\n  lr: 1e-5\n  weigth_decay: 0.1 # here",
        right="optimizer:\n  type: AdamW\n  lr: 1e-5\n  weight_decay: 0.1",
    ),
    Case(
        code="OPT002",
        path="deepspeed.optimizer.params.foo",
        wrong="deepspeed: {optimizer: {params: {foo: 3}}} # here",
        right="deepspeed: {optimizer: {params: {eps: 1e-6}}}",
    ),
    Case(
        code="OPT003",
        path="optimizer.betas",
        wrong="optimizer:\n  type: AdamW\n  lr: 1e-5\n  betas: [0.9] # here",
        right="optimizer:\n  type: AdamW\n  lr: 1e-5\n  betas: [0.9, 0.95]",
    ),
    Case(
        code="OPT003",
        path="optimizer.betas",
        wrong="optimizer: {type: AdamW, lr: 1e-5, betas: [0.9, 1.0]} # here",
        right="optimizer: {type: AdamW, lr: 1e-5, betas: [0, 0.999]}",
    ),
    Case(
        code="OPT003",
        path="optimizer.eps",
        wrong="optimizer: {type: AdamW, lr: 1e-5, eps: .nan} # here",
        right="optimizer: {type: AdamW, lr: 1e-5, eps: 1e-6}",
    ),
    Case(
        code="OPT004",
        path="optimizer.type",
        wrong="optimizer: {type: Lamb, lr: 1e-5} # here",
        right="optimizer: {type: Lamb, lr: 1e-5}\ndeepspeed: {zero_allow_untested_optimizer: true}",
    ),
    Case(
        code="OPT005",
        path="optimizer.type",
        wrong="optimizer: {type: Adam, lr: 1e-5, weight_decay: 0.1} # here",
        right="optimizer: {type: Adam, lr: 1e-5, weight_decay: 0.1, adam_w_mode: false}",
    ),
    Case(
        code="OPT006",
        path="optimizer.fused",
        wrong="optimizer: {type: AdamW, lr: 1e-5, fused: true} # here",
        right="optimizer: {type: AdamW, lr: 1e-5, fused: true, torch_adam: true}",
    ),
    Case(
        code="OPT006",
        path="optimizer.bias_correction",
        wrong="optimizer: {type: AdamW, lr: 1e-5, bias_correction: false, torch_adam: true} # here",
        right="optimizer: {type: AdamW, lr: 1e-5, bias_correction: false}",
    ),
    Case(
        code="OPT006",
        path="optimizer.set_grad_none",
        wrong="zero: {stage: 2, offload: {optimizer: cpu}}\n"
        "optimizer: {type: Lion, lr: 1e-5, set_grad_none: true} # here",
        right="zero: {stage: 2}\noptimizer: {type: Lion, lr: 1e-5, set_grad_none: true}",
    ),
    Case(
        code="OPT006",
        path="optimizer.amsgrad",
        wrong="optimizer: {type: AdamW, lr: 1e-5, amsgrad: true} # here",
        right="optimizer: {type: AdamW, lr: 1e-5, amsgrad: false}",
    ),
    Case(
        code="OPT007",
        path="optimizer.adam_w_mode",
        wrong="optimizer: {type: AdamW, lr: 1e-5, adam_w_mode: false} # here",
        right="optimizer: {type: Adam, lr: 1e-5, adam_w_mode: false}",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)


def test_hints(findings: Findings) -> None:
    (found,) = findings("optimizer: {type: Adamw2, lr: 1e-5}")
    assert found.help == "did you mean AdamW or Adam?"
    (found,) = findings("optimizer: {type: AdamW, lr: 1e-5, max_grad_norm: 1}")
    assert (found.code, found.help) == ("OPT002", "write gradient_clipping at the top level instead")


def test_untested_optimizers_are_fine_without_zero(findings: Findings) -> None:
    assert findings("optimizer: {type: Lamb, lr: 1e-5}\nzero: {stage: 0}") == []


NONE = {"optimizer": None}
UNTESTED = {"zero_allow_untested_optimizer": True}


def optimizer(type: str, **params: Any) -> dict[str, Any]:
    return {"optimizer": {"type": type, "params": {"lr": 1e-5, **params}}}


def zero(stage: int, **keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **keys}}


def at(key: str) -> str:
    return f"optimizer.params.{key}"


CONFIGS: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, str, str]]]] = [
    (optimizer("AdmaW"), {}, [("OPT001", "error", "optimizer.type")]),
    (optimizer("OneBitAdam"), {}, [("OPT001", "error", "optimizer.type")]),
    (optimizer("sgd") | UNTESTED, {}, [("OPT001", "error", "optimizer.type")]),
    (optimizer("LION"), {}, []),
    (optimizer("MuAdamW"), {}, [("OPT013", "warning", "optimizer.type")]),
    (optimizer("NAdam", momentum_decay=0.1) | UNTESTED, {}, []),
    (optimizer("AdmaW"), {"client_optimizer": "AdamW"}, [("OPT008", "warning", "optimizer")]),
    (optimizer("AdamW", learning_rate=1), {}, [("OPT002", "error", at("learning_rate"))]),
    (optimizer("AdamW", max_grad_norm=1), {}, [("OPT002", "error", at("max_grad_norm"))]),
    (optimizer("SGD", max_grad_norm=1) | UNTESTED, {}, [("OPT002", "error", at("max_grad_norm"))]),
    (optimizer("AdamW", lr="1e-5"), {}, [("OPT003", "error", at("lr"))]),
    (optimizer("AdamW", weight_decay=-1), {}, [("OPT003", "warning", at("weight_decay"))]),
    (optimizer("AdamW", weight_decay=-1, torch_adam=True), {}, [("OPT003", "error", at("weight_decay"))]),
    (optimizer("AdamW", amsgrad=1, torch_adam=True), {}, [("OPT003", "warning", at("amsgrad"))]),
    (optimizer("AdamW", lr="auto", betas="auto"), {}, []),
    (optimizer("AdamW", torch_adam="true"), {}, [("OPT003", "warning", at("torch_adam"))]),
    (optimizer("AdamW", torch_adam="false"), {}, [("OPT003", "error", at("torch_adam"))]),
    (NONE, {"client_optimizer": "torch.optim.AdamW"}, []),
    (NONE, {"client_optimizer": "torch.optim.SGD"}, [("OPT004", "error", "zero_optimization.stage")]),
    (NONE, {"client_optimizer": "None"}, [("OPT009", "error", "optimizer")]),
    (optimizer("SGD"), {}, [("OPT004", "error", "optimizer.type")]),
    (optimizer("SGD") | zero(0), {}, []),
    (NONE, {"client_optimizer": "SGD"}, [("OPT004", "error", "zero_optimization.stage")]),
    (NONE | UNTESTED, {"client_optimizer": "SGD"}, []),
    (NONE, {"client_optimizer": "FusedAdam"}, []),
    (optimizer("Adam", weight_decay=0.1), {}, [("OPT005", "warning", "optimizer.type")]),
    (optimizer("Adam"), {}, [("OPT005", "info", "optimizer.type")]),
    (optimizer("Adam", torch_adam=True), {}, [("OPT005", "warning", "optimizer.type")]),
    (optimizer("Adam", torch_adam=True, weight_decay=0), {}, [("OPT005", "info", "optimizer.type")]),
    (optimizer("Adam", adam_w_mode=False, weight_decay=0.1), {}, []),
    (optimizer("AdamW", fused=True), {}, [("OPT006", "error", at("fused"))]),
    (optimizer("AdamW", fused=True, torch_adam=True), {}, []),
    (optimizer("AdamW", adam_w_mode=False), {}, [("OPT007", "warning", at("adam_w_mode"))]),
    (NONE, {}, [("OPT009", "warning", "optimizer")]),
    (NONE, {"framework": "transformers"}, []),
    (NONE, {"client_optimizer": "AdamW"}, []),
    (NONE, {"client_optimizer": "none"}, [("OPT009", "error", "optimizer")]),
    (NONE | zero(0), {"client_optimizer": "none"}, [("OPT009", "error", "optimizer")]),
    (NONE | zero(2, offload_optimizer={"device": "cpu"}), {}, []),
    ({"optimizer": {"params": {"lr": 1e-5}}}, {"framework": "transformers"}, [("OPT010", "error", "optimizer")]),
    (optimizer("Muon") | zero(3), {}, [("OPT011", "error", "optimizer.type")]),
    (optimizer("Muon") | zero(3, reduce_scatter=False), {}, []),
    (optimizer("Muon") | zero(2), {}, []),
    (
        optimizer("Lamb") | zero(0) | {"fp16": {"enabled": False, "loss_scale": 8}},
        {},
        [("OPT012", "error", "fp16.loss_scale")],
    ),
]


@pytest.mark.parametrize(("changes", "job", "expected"), CONFIGS)
def test_in_a_ds_config(changes: dict[str, Any], job: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    assert said(lint_config(changes, "OPT", **job)) == expected


@pytest.mark.parametrize(
    ("stage", "effect"),
    [
        (0, "DeepSpeed fails in the first training step"),
        (1, "DeepSpeed refuses to start at stage 1"),
        (3, "DeepSpeed fails in the first backward pass"),
    ],
)
def test_what_becomes_of_a_job_without_an_optimizer(stage: int, effect: str) -> None:
    (finding,) = lint_config(NONE | zero(stage), "OPT009")
    assert finding.message.endswith(f"unless the script passes one to deepspeed.initialize, {effect}")


@pytest.mark.parametrize(
    ("params", "name", "to"),
    [
        ({"weight_deacy": 0.1}, "weight_decay", "weight_decay"),
        ({"learning_rate": 1e-4}, "lr", None),  # beside an lr
        ({"epsilon": 1e-8}, "eps", "eps"),
        ({"decay": 0.1}, "weight_decay", None),
    ],
)
def test_what_a_parameter_is_called(params: dict[str, Any], name: str, to: str | None) -> None:
    (finding,) = lint_config(optimizer("AdamW", **params), "OPT002")
    assert finding.help == f"did you mean {name}?"
    assert [edit.to for edit in finding.fix] == ([("optimizer", "params", to)] if to else [])


@pytest.mark.parametrize(
    ("name", "help"),
    [
        ("FusedAdam", "write AdamW: DeepSpeed builds its FusedAdam for that"),
        ("DeepSpeedCPUAdam", "write AdamW: DeepSpeed builds its DeepSpeedCPUAdam for that with offload_optimizer"),
        ("FusedLamb", "write Lamb: DeepSpeed builds its FusedLamb for that"),
    ],
)
def test_classes_that_are_no_types(name: str, help: str) -> None:
    (finding,) = lint_config(optimizer(name), "OPT001")
    assert finding.help == help


def test_the_decay_that_nobody_said() -> None:
    (finding,) = lint_config(optimizer("Adam", torch_adam=True), "OPT005")
    assert "whose weight decay is 0.01 where none is said" in finding.message
