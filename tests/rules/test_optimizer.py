from __future__ import annotations

import pytest

from .conftest import Case, Findings

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
