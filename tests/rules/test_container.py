from __future__ import annotations

import pytest

from .conftest import Case, Findings

IMAGE = "registry.example:5000/ascend/cann:9.1.0-910b"
NODES = "hardware: {device: ascend-910b3-64g, per_node: 8, nodes: 2, hosts: [a, b]}\n"

CASES = [
    Case(
        code="CON001",
        path="launcher",
        wrong=f"{NODES}container: {IMAGE}\nlauncher: deepspeed # here",
        right=f"{NODES}container: {IMAGE}\nlauncher: torchrun",
    ),
    Case(
        code="CON001",
        path="container.network",
        wrong=f"{NODES}launcher: torchrun\ncontainer:\n  image: {IMAGE}\n  network: bridge # here",
        right=f"container: {{image: {IMAGE}, network: bridge}}",
    ),
    Case(
        code="CON002",
        path="container.image",
        wrong="container: {image: '-v /:/host'} # here",
        right=f"container: {IMAGE}@sha256:{'0a' * 32}",
    ),
    Case(
        code="CON003",
        path="container.mounts[1]",
        wrong=f"container:\n  image: {IMAGE}\n  mounts:\n  - /data\n  - data:/data # here",
        right=f"container: {{image: {IMAGE}, mounts: [/data, '/a:/b', '/a:/c:ro']}}",
    ),
    Case(
        code="CON004",
        path="container.devices",
        wrong="hardware: {device: cuda-a100-80g, per_node: 8}\n"
        f"container:\n  image: {IMAGE}\n  devices: runtime # here",
        right=f"container: {{image: {IMAGE}, devices: runtime}}",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)
