from __future__ import annotations

import json

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
        code="CON005",
        path="container.mounts[1]",
        wrong=f"container:\n  image: {IMAGE}\n  mounts:\n  - /data\n  - /data:// # here",
        right=f"container: {{image: {IMAGE}, mounts: [/data, '/:/host:ro']}}",
    ),
    Case(
        code="CON005",
        path="container.mounts[0]",
        wrong=f"container:\n  image: {IMAGE}\n  mounts:\n  - '/a,readonly' # here",
        right=f'container: {{image: {IMAGE}, mounts: ["/it\'s a"]}}',
    ),
    Case(
        code="CON006",
        path="container.mounts[2]",
        wrong=f"container:\n  image: {IMAGE}\n  mounts:\n  - /b\n  - /data\n  - /c:/data/:ro # here",
        right=f"container: {{image: {IMAGE}, mounts: [/data, '/data:/c', /data/a]}}",
    ),
    Case(
        code="CON004",
        path="container.devices",
        wrong="hardware: {device: cuda-a100-80g, per_node: 8}\n"
        f"container:\n  image: {IMAGE}\n  devices: runtime # here",
        right=f"container: {{image: {IMAGE}, devices: runtime}}",
    ),
]


@pytest.mark.parametrize("character", ['"', ",", "\n", "\r"])
def test_characters_of_mounts(findings: Findings, character: str) -> None:
    for mount in (f"/a{character}b", f"/a:/b{character}"):
        container = json.dumps({"image": IMAGE, "mounts": [mount]})
        assert [each.code for each in findings(f"container: {container}")] == ["CON005"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)
