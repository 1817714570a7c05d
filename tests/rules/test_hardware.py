from __future__ import annotations

import pytest

from .conftest import Case, Findings

NODES = "hardware: {device: ascend-910b3-64g, per_node: 8, nodes: 2, hosts: "

CASES = [
    Case(
        code="HWD001",
        path="hardware.hosts",
        wrong="hardware:\n  device: ascend-910b3-64g\n  nodes: 4\n  hosts: [a, b] # here",
        right="hardware:\n  device: ascend-910b3-64g\n  nodes: 2\n  hosts: [a, b]",
    ),
    Case(
        code="HWD002",
        path="hardware.per_node",
        wrong="batch: {sequence_length: 16, micro: 1, accumulation: 1}\n"
        "hardware: {device: ascend-910b3-64g, per_node: 9} # here",
        right="batch: {sequence_length: 16, micro: 1, accumulation: 1}\n"
        "hardware: {device: ascend-910b3-64g, per_node: 8}",
    ),
    Case(
        code="HWD003",
        path="hardware.per_node",
        wrong="batch: {sequence_length: 16, micro: 1, accumulation: 1}\n"
        "hardware: {device: ascend-910c-64g, per_node: 3} # here",
        right="batch: {sequence_length: 16, micro: 1, accumulation: 1}\n"
        "hardware: {device: ascend-910c-64g, per_node: 4}",
    ),
    Case(
        code="HWD004",
        path="hardware.hosts[1]",
        wrong=f"{NODES}[a, user@b]}} # here",
        right=f"{NODES}[10.0.0.1, b.example.com]}}",
    ),
    Case(code="HWD004", path="hardware.hosts[0]", wrong=f"{NODES}[a, a]}} # here", right=f"{NODES}[a, b]}}"),
    Case(
        code="HWD005",
        path="hardware.nodes",
        wrong="hardware:\n  device: ascend-910b3-64g\n  nodes: 2 # here",
        right="hardware:\n  device: ascend-910b3-64g\n  nodes: 1",
    ),
    Case(
        code="HWD006",
        path="hardware.per_node",
        wrong="batch: {sequence_length: 16, micro: 1, accumulation: 1}\nhardware: {device: cpu, per_node: 257} # here",
        right="batch: {sequence_length: 16, micro: 1, accumulation: 1}\nhardware: {device: cpu, per_node: 256}",
    ),
    Case(
        code="HWD007",
        path="hardware.hosts",
        wrong="hardware:\n  device: ascend-910b3-64g\n  hosts: [a] # here",
        right="hardware:\n  device: ascend-910b3-64g\n  hosts: [a, b]",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)


@pytest.mark.parametrize("host", ["a b", "a:22", "-a", "a.", "::1", "a;rm", "x" * 254, "ä"])
def test_hosts_that_a_hostfile_cannot_carry(host: str, findings: Findings) -> None:
    (found,) = findings(f"{NODES}['{host}', b]}}")
    assert found.code == "HWD004"
