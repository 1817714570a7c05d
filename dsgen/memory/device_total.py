"""From what tensors hold to what the device's own tools show."""

from __future__ import annotations

from dsgen.memory.calibration import Calibration
from dsgen.memory.job import Job
from dsgen.memory.report import COMMUNICATORS, CONTEXT
from dsgen.recipe.plan import Plan

CONTEXT_BYTES = {"npu": 1 << 30, "cuda": 1343 * 10**6, "cpu": 0}
"""CUDA: 1343 MB measured by others (V100, 2022). NPU: an assumption, no public figure was found."""

_BUFFSIZE_MB = 200
_MIB = 1 << 20


def beside_tensors(plan: Plan, job: Job, calibration: Calibration | None = None) -> dict[str, int]:
    """What no tensor holds: the device's context, and the buffers of the communicators.

    HCCL: twice HCCL_BUFFSIZE (MB) for each communicator (Huawei's documentation of that variable): the world's, below
    stage 3 a copy of it that DeepSpeed makes for data parallelism (utils/groups.py, _clone_world_group; seen on
    the simulated NPU, with one rank too), and one more each for tensor and sequence parallelism. NCCL's are not counted
    separately: the figure for the context is from a job that ran.
    """
    measured = calibration.context_bytes if calibration is not None else None
    held = {CONTEXT: CONTEXT_BYTES[plan.kind] if measured is None else measured}
    if plan.kind == "npu":
        said = next((v.value for v in plan.environment if v.name == "HCCL_BUFFSIZE"), "")
        megabytes = int(said) if said.isdecimal() else _BUFFSIZE_MB
        communicators = (1 if plan.stage == 3 else 2) + (plan.tensor_parallel > 1) + (plan.sequence_parallel > 1)
        held[COMMUNICATORS] = 2 * megabytes * _MIB * communicators
    return held
