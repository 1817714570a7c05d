"""What offload and the processes themselves hold in a node's memory: bytes of one rank."""

from __future__ import annotations

from collections.abc import Iterator

from dsgen.memory.job import Job
from dsgen.memory.report import BUCKETS, GRADIENTS, MASTER, PROCESSES, ROUNDING, STATES, WEIGHTS
from dsgen.memory.states import compact, kept_on_device, largest_sub_group, owned_elements, partition_elements

PROCESS_BYTES = {"npu": 2 << 30, "cuda": 2 << 30, "cpu": 1 << 30}
"""Python, torch, DeepSpeed and transformers: 0.45 GiB (measured on CPU); what CANN and CUDA add is an assumption."""


def processes(job: Job) -> dict[str, int]:
    """The rank's process without any tensor."""
    return {PROCESSES: PROCESS_BYTES[job.kind]}


def initialized(job: Job) -> dict[str, int]:
    """Host memory when DeepSpeed is ready, before the first step makes the optimizer's states.

    Stages 1 and 2 (runtime/zero/stage_1_and_2.py, __init__ and initialize_optimizer_states): per parameter and rank
    4 master + 4 fp32 gradient + the weights' buffer, and one buffer as large as the largest parameter.
    Stage 3 (runtime/zero/stage3.py): 4 master + 4 fp32 gradient + the accumulated gradient; with offload_param the
    weights themselves (_create_param_groups_fp16_flat_cpu_memory).
    NVMe: the buffers that tensors pass through, and what never leaves the host.
    """
    e, size = job.element, partition_elements(job)
    held: dict[str, int] = {}
    if job.offload_optimizer == "cpu":
        moved = size - kept_on_device(job)
        held[MASTER] = 4 * moved
        held[GRADIENTS] = 4 * moved
    elif job.offload_optimizer == "nvme":
        held[BUCKETS] = 4 * job.optimizer_buffers * largest_sub_group(job)
    if job.offload_optimizer != "none":
        if job.stage == 3:
            held[GRADIENTS] = held.get(GRADIENTS, 0) + job.accumulate * size
        else:
            held[WEIGHTS] = e * size
            held[BUCKETS] = e * job.trained.largest
    if job.offload_parameters == "cpu":
        held[WEIGHTS] = e * (size + -(-job.frozen_elements // job.ranks))
    elif job.offload_parameters == "nvme":
        held[BUCKETS] = held.get(BUCKETS, 0) + e * job.parameter_buffers_elements
    return held


def accumulating(job: Job, rank: int) -> dict[str, int]:
    """Gradients that stage 2 with offload keeps on the host between micro batches (runtime/zero/stage_1_and_2.py,
    async_accumulate_grad_in_cpu_via_gpu); with fp32 accumulation, and at stage 1, they stay on the device."""
    if job.offload_optimizer == "none" or job.stage != 2 or job.accumulation == 1 or compact(job):
        return {}
    return {GRADIENTS: job.element * owned_elements(job, rank)}


def optimizer_states(job: Job) -> dict[str, int]:
    """The states that the first step makes."""
    if job.offload_optimizer != "cpu":
        return {}
    return {STATES: job.optimizer.states * (partition_elements(job) - kept_on_device(job))}


def rounding(job: Job) -> dict[str, int]:
    """What page-locked buffers take beyond their size: torch's host allocator, and torch_npu's, round each up to a
    power of two (ATen/core/CachingHostAllocator.h). Nothing on CPU, where nothing is locked."""
    if job.kind == "cpu":
        return {}
    more = sum(_power_of_two(size) - size for size in _locked(job) if size)
    return {ROUNDING: more} if more else {}


def _locked(job: Job) -> Iterator[int]:
    e, size = job.element, partition_elements(job)
    moved = size - kept_on_device(job)
    if job.offload_optimizer != "none" and job.pinned_optimizer:
        if job.stage < 3:
            yield from (4 * size, 4 * size, e * size, e * job.trained.largest)
        else:
            group = largest_sub_group(job)
            yield job.accumulate * size
            if job.offload_optimizer == "cpu":
                yield from (4 * group for _ in range(moved // group))
                yield 4 * (moved % group)
    if job.offload_parameters == "cpu":
        # Locked whatever pin_memory says (runtime/zero/stage3.py, _create_param_groups_fp16_flat_cpu_memory).
        yield e * size


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
