from __future__ import annotations

import pytest

from .conftest import Case, Findings

NODES = "hardware: {device: ascend-910b3-64g, nodes: 2, hosts: [a, b]}\n"
CUDA = "hardware: {device: cuda-a100-80g, per_node: 8}\n"

CASES = [
    Case(
        code="ENV001",
        path="environment.A-B",
        wrong="environment:\n  A: 1\n  A-B: 1 # here",
        right="environment:\n  A: 1\n  A_B: 1",
    ),
    Case(
        code="ENV002",
        path="environment.A",
        wrong='environment: {A: "x\\ny"} # here',
        right='environment: {A: "x y"}',
    ),
    Case(
        code="ENV003",
        path="environment.HCCL_CONNECT_TIMEOUT",
        wrong="environment: {HCCL_CONNECT_TIMEOUT: 60} # here",
        right="environment: {HCCL_CONNECT_TIMEOUT: 600.0}",
    ),
    Case(
        code="ENV003",
        path="environment.TASK_QUEUE_ENABLE",
        wrong="environment: {TASK_QUEUE_ENABLE: 3} # here",
        right=f"{CUDA}environment: {{TASK_QUEUE_ENABLE: 3}}",
    ),
    Case(
        code="ENV004",
        path="environment.PYTORCH_NPU_ALLOC_CONF",
        wrong="environment: {PYTORCH_NPU_ALLOC_CONF: 'expandable_segments:True,max_split_size_mb:64'} # here",
        right="environment: {PYTORCH_NPU_ALLOC_CONF: 'expandable_segments:False,max_split_size_mb:64'}",
    ),
    Case(
        code="ENV004",
        path="environment.PYTORCH_NPU_ALLOC_CONF",
        wrong="environment:\n  PYTORCH_ALLOC_CONF: 'expandable_segments:True'\n"
        "  PYTORCH_NPU_ALLOC_CONF: 'expandable_segments:True' # here",
        right="environment: {PYTORCH_ALLOC_CONF: 'expandable_segments:True'}",
    ),
    Case(
        code="ENV004",
        path="environment.HCCL_EVENT_TIMEOUT",
        wrong="environment: {HCCL_EXEC_TIMEOUT: 2000, HCCL_EVENT_TIMEOUT: 2000} # here",
        right="environment: {HCCL_EXEC_TIMEOUT: 2000, HCCL_EVENT_TIMEOUT: 2001}",
    ),
    Case(
        code="ENV004",
        path="environment.HCCL_EVENT_TIMEOUT",
        wrong="environment: {HCCL_EVENT_TIMEOUT: 1836} # here",
        right="environment: {HCCL_EXEC_TIMEOUT: 3600}",
    ),
    Case(
        code="ENV005",
        path="environment.DS_ACCELERATOR",
        wrong="environment: {DS_ACCELERATOR: cuda} # here",
        right="environment: {DS_ACCELERATOR: npu}",
    ),
    Case(
        code="ENV006",
        path="environment.HCCL_IF_IP",
        wrong=f"{NODES}environment: {{HCCL_IF_IP: 10.0.0.1}} # here",
        right="environment: {HCCL_IF_IP: 10.0.0.1}",
    ),
    Case(
        code="ENV007",
        path="environment.LOCAL_RANK",
        wrong="environment: {LOCAL_RANK: 0} # here",
        right="environment: {LOCAL: 0}",
    ),
    Case(
        code="ENV008",
        path="environment.ASCEND_LAUNCH_BLOCKING",
        wrong="environment: {ASCEND_LAUNCH_BLOCKING: true} # here",
        right="environment: {ASCEND_LAUNCH_BLOCKING: false}",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)


@pytest.mark.parametrize("name", ["A.B", "a[0]", "", "1A", "Ä", "A=B", "A B"])
def test_names_keep_their_place(name: str, findings: Findings) -> None:
    (found,) = findings(f"environment:\n  B: 1\n  '{name}': 1")
    assert (found.code, found.position.line, found.position.column) == ("ENV001", 14, 3)
