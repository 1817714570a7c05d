from __future__ import annotations

from typing import Any

import pytest

from .linted import lint_config, said

NPU = "ascend-910b3-64g"
CUDA = "cuda-a100-80g"
RANDOM_LTD = {"enabled": True, "data_routing": {"enabled": True, "random_ltd": {"enabled": True}}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"aio": {"use_gds": True}}, ("NPU001", "error", "aio.use_gds")),
        ({"compile": {"deepcompile": True}}, ("NPU001", "error", "compile.deepcompile")),
        ({"data_efficiency": RANDOM_LTD}, ("NPU001", "error", "data_efficiency.data_routing.random_ltd.enabled")),
        (
            {"optimizer": {"type": "adam", "params": {"lr": 1e-5, "bias_correction": False}}},
            ("NPU002", "warning", "optimizer.params.bias_correction"),
        ),
        (
            {"zero_optimization": {"stage": 3, "zero_quantized_gradients": True}},
            ("NPU003", "info", "zero_optimization.zero_quantized_gradients"),
        ),
        (
            {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}},
            ("NPU004", "info", "zero_optimization.zero_hpz_partition_size"),
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": True}}},
            ("NPU005", "info", "zero_optimization.offload_param.pin_memory"),
        ),
    ],
)
def test_only_an_npu_has_the_finding(changes: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert said(lint_config(changes, "NPU", device=NPU)) == [expected]
    assert lint_config(changes, "NPU", device=CUDA) == []
    assert lint_config(changes, "NPU") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"aio": {"use_gds": False}},
        {"compile": {"deepcompile": False}},
        {"data_efficiency": {**RANDOM_LTD, "data_routing": {"enabled": False, "random_ltd": {"enabled": True}}}},
        {"optimizer": {"type": "Adam", "params": {"lr": 1e-5, "bias_correction": False, "torch_adam": True}}},
        {"optimizer": {"type": "Adam", "params": {"lr": 1e-5, "bias_correction": True}}},
        {"zero_optimization": {"stage": 2, "zero_hpz_partition_size": 8, "zero_quantized_weights": True}},
        {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu", "pin_memory": True}}},
        {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu", "pin_memory": True}}},
    ],
)
def test_nothing_is_found(changes: dict[str, Any]) -> None:
    assert lint_config(changes, "NPU", device=NPU) == []


def test_direct_storage_is_for_cuda_alone() -> None:
    assert [each.code for each in lint_config({"aio": {"use_gds": True}}, "NPU", device="cpu")] == ["NPU001"]


def test_states_on_the_host_have_another_adam() -> None:
    changes = {
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "bias_correction": False}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}},
    }
    assert lint_config(changes, "NPU", device=NPU) == []
