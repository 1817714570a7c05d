from __future__ import annotations

import pytest

from .conftest import Case, Findings

SMALL = (
    "batch: {sequence_length: 16, micro: 1, global: 64}\n"
    "model: {model_type: llama, hidden_size: 64, intermediate_size: 96, num_hidden_layers: 2, num_attention_heads: 4, "
    "vocab_size: "
)

CASES = [
    Case(
        code="DAT001",
        path="data",
        wrong="data: {files: a.txt, builtin: python-topics} # here",
        right="data: {builtin: python-topics}",
    ),
    Case(code="DAT001", path="data", wrong="data: {} # here", right="data: {files: [a.txt, b.jsonl]}"),
    Case(code="DAT001", path="data.files", wrong="data: {files: []} # here", right="data: {files: [a.txt]}"),
    Case(
        code="DAT002",
        path="data.files[1]",
        wrong="data:\n  files:\n  - a.txt\n  - b.csv # here",
        right="data:\n  files:\n  - a.txt\n  - b.parquet",
    ),
    Case(code="DAT002", path="data.files[0]", wrong="data: {files: data} # here", right="data: {files: data/*}"),
    Case(code="DAT002", path="data.files[0]", wrong="data: {files: ' '} # here", right="data: {files: 'x.json?'}"),
    Case(
        code="DAT003",
        path="data.mode",
        wrong="data:\n  builtin: python-topics\n  mode: instruction # here",
        right="data:\n  builtin: python-topics\n  mode: truncated",
    ),
    Case(
        code="DAT003",
        path="data.files[0]",
        wrong="data: {files: a.txt, mode: instruction} # here",
        right="data: {files: a.jsonl, mode: instruction}",
    ),
    Case(
        code="DAT004",
        path="tokenizer",
        wrong=f"{SMALL}255}}\ntokenizer: bytes # here",
        right=f"{SMALL}256}}\ntokenizer: bytes",
    ),
    Case(
        code="DAT005",
        path="data.prompt_field",
        wrong="data:\n  files: a.jsonl\n  prompt_field: q # here",
        right="data:\n  files: a.jsonl\n  prompt_field: q\n  mode: instruction",
    ),
    Case(
        code="DAT005",
        path="data.field",
        wrong="data:\n  builtin: python-topics\n  field: text # here",
        right="data:\n  files: a.jsonl\n  field: text",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)


def test_a_file_list_of_a_wrong_type_is_not_a_missing_one(findings: Findings) -> None:
    assert [(each.code, each.path) for each in findings("data: {files: [a.txt, 3]}")] == [("REC002", "data.files[1]")]
