from __future__ import annotations

from typing import Any

import pytest

from .linted import lint_config, said

NVME: dict[str, Any] = {
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}}
}
SAMPLING = "data_efficiency.data_sampling"
DEEP: dict[str, Any] = {"zero_optimization": {"stage": 3}, "compile": {"deepcompile": True, "offload_opt_states": True}}
ASCEND = {"device": "ascend-910b3-64g"}


def sampling(**sections: Any) -> dict[str, Any]:
    return {"data_efficiency": {"data_sampling": sections}}


def writer(stage: int, **keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage}, "checkpoint": {"writer": {"type": "FAST", **keys}}}


CONFIGS: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, str, str]]]] = [
    (NVME | {"aio": {"queue_depth": 0}}, {}, [("SCT001", "error", "aio.queue_depth")]),
    ({"aio": {"queue_depth": 0}}, {}, [("SCT002", "info", "aio"), ("SCT001", "warning", "aio.queue_depth")]),
    (NVME | {"aio": {"queue_depth": 8}}, {}, []),
    ({"aio": {"queue_depth": 8}, "zero_optimization": {"stage": "auto"}}, {}, []),
    (NVME | {"aio": {"use_gds": True}}, ASCEND, [("SCT003", "error", "aio.use_gds")]),
    (NVME | {"aio": {"use_gds": True}}, {}, []),
    ({"tensorboard": {"enabled": True}, "wandb": {"enabled": False}}, {}, [("SCT004", "warning", "tensorboard")]),
    ({"csv_monitor": {"enabled": True}}, {}, []),
    ({"datastates_ckpt": {}}, {}, [("SCT004", "warning", "datastates_ckpt")]),
    ({"datastates_ckpt": False}, {}, []),
    (sampling(curriculum_learning={"enabled": True}), {}, [("SCT005", "error", f"{SAMPLING}.curriculum_learning")]),
    (sampling(curriculum_learning={"enabled": True, "curriculum_metrics": {}}), {}, []),
    (sampling(dynamic_batching={"enabled": True}), {}, [("SCT005", "error", f"{SAMPLING}.dynamic_batching")]),
    ({"autotuning": {"results_dir": "", "exps_dir": "a"}}, {}, [("SCT006", "error", "autotuning.results_dir")]),
    (writer(2), {}, [("SCT007", "warning", "checkpoint.writer")]),
    (writer(2, data_parallel="replica"), {}, []),
    (writer(3), {}, []),
    ({"pipeline": {"stages": 2}}, {}, [("SCT008", "warning", "pipeline.stages")]),
    ({"pipeline": {"stages": "auto", "grad_partitioned": True}}, {}, []),
    (DEEP, {}, []),
    (
        DEEP | {"compile": DEEP["compile"] | {"offload_parameters": True}},
        {},
        [("SCT009", "error", "compile.offload_parameters")],
    ),
    (NVME | {"compile": DEEP["compile"]}, {}, [("SCT009", "error", "compile.offload_opt_states")]),
    (
        DEEP | {"compile": DEEP["compile"] | {"offload_activation": True}},
        {},
        [("SCT009", "error", "compile.offload_activation")],
    ),
]


@pytest.mark.parametrize(("changes", "job", "expected"), CONFIGS)
def test_in_a_ds_config(changes: dict[str, Any], job: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    assert said(lint_config(changes, "SCT", **job)) == expected
