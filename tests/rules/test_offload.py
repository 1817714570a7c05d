from __future__ import annotations

import pytest

from .conftest import Case, Findings

NVME = "{device: nvme, path: /fast}"

CASES = [
    Case(
        code="OFF001",
        path="zero.offload.parameters",
        wrong="zero:\n  stage: 2\n  offload:\n    parameters: cpu # here",
        right="zero:\n  stage: 3\n  offload:\n    parameters: cpu",
    ),
    Case(
        code="OFF002",
        path="zero.offload.optimizer",
        wrong="zero:\n  stage: 0\n  offload:\n    optimizer: cpu # here",
        right="zero:\n  stage: 1\n  offload:\n    optimizer: cpu",
    ),
    Case(
        code="OFF003",
        path="zero.offload.optimizer.device",
        wrong="zero:\n  stage: 3\n  offload:\n    optimizer: nvme # here",
        right=f"zero:\n  stage: 3\n  offload:\n    optimizer: {NVME}",
    ),
    Case(
        code="OFF010",
        path="zero.offload.optimizer.path",
        wrong="zero:\n  stage: 3\n  offload:\n    optimizer:\n      device: nvme\n      path: ~/fast # here",
        right=f"zero:\n  stage: 3\n  offload:\n    optimizer: {NVME}",
    ),
    Case(
        code="OFF010",
        path="zero.offload.parameters.path",
        wrong="zero: {stage: 3, offload: {optimizer: cpu, parameters: {device: nvme, path: fast}}} # here",
        right=f"zero: {{stage: 3, offload: {{optimizer: cpu, parameters: {NVME}}}}}",
    ),
    Case(
        code="OFF004",
        path="zero.offload.optimizer.device",
        wrong=f"zero: {{stage: 2, offload: {{optimizer: {NVME}}}}} # here",
        right=f"zero: {{stage: 3, offload: {{optimizer: {NVME}}}}}",
    ),
    Case(
        code="OFF005",
        path="zero.offload.optimizer.path",
        wrong="zero:\n  stage: 2\n  offload:\n    optimizer:\n      device: cpu\n      path: /fast # here",
        right="zero:\n  stage: 2\n  offload:\n    optimizer:\n      device: cpu\n      pin_memory: false",
    ),
    Case(
        code="OFF005",
        path="zero.offload.optimizer.pin_memory",
        wrong="zero: {stage: 2, offload: {optimizer: {device: none, pin_memory: true}}} # here",
        right="zero: {stage: 2, offload: {optimizer: none}}",
    ),
    Case(
        code="OFF005",
        path="zero.offload_optimizer.fast_init",
        wrong="zero: {stage: 3, offload_optimizer: {fast_init: true}} # here",
        right=f"zero: {{stage: 3, offload: {{optimizer: {NVME}}}, offload_optimizer: {{fast_init: true}}}}",
    ),
    Case(
        code="OFF006",
        path="optimizer.type",
        wrong="zero: {stage: 2, offload: {optimizer: cpu}}\noptimizer: {type: Muon, lr: 1e-3} # here",
        right="zero: {stage: 2, offload: {optimizer: cpu}}\noptimizer: {type: Lion, lr: 1e-3}",
    ),
    Case(
        code="OFF007",
        path="zero.offload.optimizer.ratio",
        wrong="zero: {stage: 2, offload: {optimizer: {device: cpu, ratio: 50%}}} # here",
        right="zero: {stage: 3, offload: {optimizer: {device: cpu, ratio: 50%}}}",
    ),
    Case(
        code="OFF008",
        path="zero.offload.parameters",
        wrong=f"zero: {{stage: 3, offload: {{parameters: {NVME}}}}} # here",
        right=f"zero: {{stage: 3, offload: {{optimizer: cpu, parameters: {NVME}}}}}",
    ),
    Case(
        code="OFF009",
        path="deepspeed.zero_optimization.offload_optimizer.super_offload",
        wrong="zero: {stage: 2, offload: {optimizer: cpu}}\n"
        "deepspeed: {zero_optimization: {offload_optimizer: {super_offload: true}}} # here",
        right="zero: {stage: 3, offload: {optimizer: cpu}}\n"
        "deepspeed: {zero_optimization: {offload_optimizer: {super_offload: true, cpuadam_cores_perc: 0.5}}}",
    ),
    Case(
        code="OFF009",
        path="zero.offload_optimizer.cpuadam_cores_perc",
        wrong="zero: {stage: 3, offload: {optimizer: cpu}, offload_optimizer: {cpuadam_cores_perc: 0.5}} # here",
        right="zero: {stage: 3, offload: {optimizer: cpu}}",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)


def test_full_ratio_is_no_partial_offload(findings: Findings) -> None:
    for ratio in ("1", "1.0", "100%"):
        assert findings(f"zero: {{stage: 2, offload: {{optimizer: {{device: cpu, ratio: {ratio}}}}}}}") == []
