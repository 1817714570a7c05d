from __future__ import annotations

from typing import Any

import pytest

from .conftest import Case, Findings
from .linted import lint_config, said

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


ON_CPU, ON_NVME = {"device": "cpu"}, {"device": "nvme", "nvme_path": "/local_nvme"}
LION = {"optimizer": {"type": "Lion", "params": {"lr": 1e-5}}}
NO_OPTIMIZER = {"optimizer": None}


def zero(stage: int, optimizer: Any = None, parameters: Any = None, **keys: Any) -> dict[str, Any]:
    sections = {"offload_optimizer": optimizer, "offload_param": parameters}
    return {"zero_optimization": {"stage": stage, **{k: v for k, v in sections.items() if v is not None}, **keys}}


def at(key: str, section: str = "offload_optimizer") -> str:
    return f"zero_optimization.{section}" + (f".{key}" if key else "")


CONFIGS: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, str, str]]]] = [
    (zero(2, parameters=ON_CPU), {}, [("OFF001", "error", at("", "offload_param"))]),
    (zero(2, cpu_offload_param=True), {}, [("OFF001", "error", "zero_optimization.cpu_offload_param")]),
    (zero(2, parameters={"device": "none"}), {}, []),
    (zero(0, ON_CPU), {}, [("OFF002", "error", at(""))]),
    (zero(3, {"device": "nvme"}), {}, [("OFF003", "error", at("device"))]),
    (zero(2, {"device": "nvme"}), {}, [("OFF004", "error", at("device"))]),
    (zero(3, ON_NVME), {}, []),
    (zero(2, {"device": "cpu", "buffer_count": 4}), {}, [("OFF005", "warning", at("buffer_count"))]),
    (zero(2, {"device": "none", "pin_memory": True}), {}, [("OFF005", "info", at("pin_memory"))]),
    (zero(2, {"device": "cpu", "ratio": 0.5}), {}, [("OFF007", "error", at("ratio"))]),
    (
        zero(0, {"device": "none", "ratio": 0.5}),
        {},
        [("OFF005", "info", at("ratio")), ("OFF007", "error", at("ratio"))],
    ),
    (zero(3, {"device": "cpu", "ratio": 0.5}), {}, []),
    (zero(3, parameters=ON_NVME), {}, [("OFF008", "error", at("", "offload_param"))]),
    (zero(2, {"device": "cpu", "super_offload": True}), {}, [("OFF009", "error", at("super_offload"))]),
    (
        zero(3, {"device": "cpu", "super_offload": True}),
        {"device": "ascend-910b3-64g"},
        [("OFF009", "error", at("super_offload"))],
    ),
    (zero(3, {"device": "nvme", "nvme_path": "swap"}), {}, [("OFF010", "warning", at("nvme_path"))]),
    (zero(3, {"device": "cpu", "ratio": 0.5}) | LION, {}, [("OFF011", "error", at("ratio"))]),
    (zero(3, {"device": "nvme", "nvme_path": "/path/to/nvme"}), {}, [("OFF012", "warning", at("nvme_path"))]),
    (zero(2, ON_CPU) | NO_OPTIMIZER, {}, [("OFF013", "warning", at(""))]),
    (zero(2, cpu_offload=True) | NO_OPTIMIZER, {}, [("OFF013", "warning", "zero_optimization.cpu_offload")]),
    (zero(2, ON_CPU) | NO_OPTIMIZER, {"framework": "transformers"}, [("OFF013", "info", at(""))]),
    (zero(2, ON_CPU), {"client_optimizer": "AdamW"}, [("OFF013", "error", at(""))]),
    (zero(2, ON_CPU), {"client_optimizer": "DeepSpeedCPUAdam"}, []),
    (zero(2, ON_CPU) | {"zero_force_ds_cpu_optimizer": False}, {"client_optimizer": "AdamW"}, []),
]


@pytest.mark.parametrize(("changes", "job", "expected"), CONFIGS)
def test_in_a_ds_config(changes: dict[str, Any], job: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    assert said(lint_config(changes, "OFF", **job)) == expected
