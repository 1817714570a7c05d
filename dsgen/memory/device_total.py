"""From what tensors hold to what the device's own tools show."""

from __future__ import annotations

from dsgen.memory.job import Job
from dsgen.memory.report import COMMUNICATORS, CONTEXT
from dsgen.recipe.plan import Plan

RESERVED = (1.0, 1.06)
RESERVED_SOURCE = (
    "shapes that never change: 1.00 to 1.05 in published runs (torchtune, torchtitan); 1.03 to 1.06 in replays of "
    "ZeRO-2 jobs through a model of torch's allocator"
)
RESERVED_VARIABLE = (1.0, 1.3)
RESERVED_VARIABLE_SOURCE = "a script may change shapes from step to step: up to 1.3 in published runs, 1.6 in a few"

CONTEXT_BYTES = {"npu": 1 << 30, "cuda": 1343 * 10**6, "cpu": 0}
"""CUDA: 1343 MB measured by others (V100, 2022). NPU: an assumption, no public figure was found."""

_BUFFSIZE_MB = 200
_MIB = 1 << 20


def reserved(plan: Plan) -> tuple[tuple[float, float], str]:
    """The range of reserved / allocated, and where it is from."""
    if plan.kind == "cpu":
        return (1.0, 1.0), "the CPU has no caching allocator"
    if plan.entrypoint is not None:
        return RESERVED_VARIABLE, RESERVED_VARIABLE_SOURCE
    return RESERVED, RESERVED_SOURCE


def beside_tensors(plan: Plan, job: Job) -> dict[str, int]:
    """What no tensor holds: the device's context, and the buffers of the communicators.

    HCCL: twice HCCL_BUFFSIZE (MB) for each communicator (Huawei's documentation of that variable); there is one, the
    world's, unless tensor or sequence parallelism makes more. NCCL's are not counted separately: the figure for the
    context is from a job that ran.
    """
    held = {CONTEXT: CONTEXT_BYTES[plan.kind]}
    if plan.kind == "npu" and plan.world_size > 1:
        said = next((v.value for v in plan.environment if v.name == "HCCL_BUFFSIZE"), "")
        megabytes = int(said) if said.isdecimal() else _BUFFSIZE_MB
        communicators = 1 + (plan.tensor_parallel > 1) + (plan.sequence_parallel > 1)
        held[COMMUNICATORS] = 2 * megabytes * _MIB * communicators
    return held
