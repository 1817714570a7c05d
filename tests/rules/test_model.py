from __future__ import annotations

import pytest

from .conftest import Case, Findings

LLAMA = (
    "{model_type: llama, hidden_size: 64, intermediate_size: 96, num_hidden_layers: 2, num_attention_heads: 4, "
    "vocab_size: 300"
)
BAICHUAN = "model: baichuan2-13b\nweights: ./weights\ntrust_remote_code: "

CASES = [
    Case(
        code="MOD001",
        path="batch.sequence_length",
        wrong="batch: {sequence_length: 4097, micro: 1, global: 64} # here",
        right="batch: {sequence_length: 4096, micro: 1, global: 64}",
    ),
    Case(
        code="MOD002",
        path="adapter.targets[1]",
        wrong="adapter:\n  rank: 8\n  targets:\n  - q_proj\n  - v_prj # here",
        right="adapter:\n  rank: 8\n  targets: [q_proj, v_proj, lm_head, embed_tokens]",
    ),
    Case(
        code="MOD003",
        path="activation_checkpointing.every",
        wrong="activation_checkpointing: {every: 33} # here",
        right="activation_checkpointing: {every: 32}",
    ),
    Case(
        code="MOD004",
        path="model",
        wrong="model: baichuan2-13b # here",
        right=f"{BAICHUAN}true",
    ),
    Case(
        code="MOD005",
        path="adapter.rank",
        wrong="adapter: {rank: 4096} # here",
        right="adapter: {rank: 4095}",
    ),
    Case(
        code="MOD006",
        path="model.num_key_value_head",
        wrong=f"batch: {{sequence_length: 16, micro: 1, global: 64}}\nmodel: {LLAMA}, num_key_value_head: 2}} # here",
        right=f"batch: {{sequence_length: 16, micro: 1, global: 64}}\nmodel: {LLAMA}, num_key_value_heads: 2, "
        "rope_theta: 1e4}",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)


def test_near_names_are_offered(findings: Findings) -> None:
    (found,) = findings("adapter: {rank: 8, targets: [q_prj]}")
    assert found.help == "did you mean q_proj?"
    (found,) = findings("adapter: {rank: 8, targets: [xyz]}")
    assert found.help.startswith("choose among q_proj, k_proj, v_proj")


def test_remote_code_has_to_be_allowed(findings: Findings) -> None:
    assert [each.code for each in findings(f"{BAICHUAN}false")] == ["MOD004"]
