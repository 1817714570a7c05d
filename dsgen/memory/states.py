"""Weights, master weights, optimizer states and gradients as DeepSpeed 0.19.8 keeps them from step to step."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from dsgen.memory.job import Job, Weights
from dsgen.memory.report import BUCKETS, GATHERED, GRADIENTS, MASTER, STATES, WEIGHTS


def aligned_elements(job: Job) -> int:
    """All trained parameters in one flat buffer that divides into equal partitions (stages 1 and 2).

    runtime/zero/stage_1_and_2.py, __init__: the alignment is 2 elements x ranks.
    """
    alignment = 2 * job.ranks
    return -(-job.trained.elements // alignment) * alignment


def partition_elements(job: Job) -> int:
    """Trained parameters that one rank updates.

    Stages 1 and 2 cut the flat buffer; stage 3 cuts every parameter, rounded up
    (runtime/zero/partition_parameters.py, _partition_param).
    """
    if job.stage == 0:
        return job.trained.elements
    if job.stage < 3:
        return aligned_elements(job) // job.ranks
    return partitioned(job.trained, job.ranks)


def partitioned(weights: Weights, ranks: int) -> int:
    """Elements of one rank's parts when every parameter is cut for itself."""

    def parts(some: tuple[int, ...]) -> int:
        return sum(-(-elements // ranks) for elements in some)

    before, layer, after = (tuple(w.elements for w in some) for some in (weights.before, weights.layer, weights.after))
    return parts(before) + weights.layers * parts(layer) + parts(after)


def owned(job: Job, rank: int) -> Iterator[tuple[int, int]]:
    """Parameters that lie, whole or in part, in the partition of `rank` (stages 1 and 2): the elements of each, and how
    many of them lie there."""
    trained, size = job.trained, partition_elements(job)
    start, end = rank * size, (rank + 1) * size
    before, layer = trained.per(trained.before), trained.per(trained.layer)
    passed = min(trained.layers, max(0, start - before) // max(1, layer))
    offset = before + passed * layer if passed else 0
    skipped = len(trained.before) + passed * len(trained.layer) if passed else 0
    for weight in itertools.islice(trained.in_order(), skipped, None):
        if offset >= end:
            break
        inside = min(offset + weight.elements, end) - max(offset, start)
        if inside > 0:
            yield weight.elements, inside
        offset += weight.elements


def owned_elements(job: Job, rank: int) -> int:
    """Elements of the parameters that lie, whole or in part, in the partition of `rank` (stages 1 and 2).

    runtime/zero/stage_1_and_2.py, copy_grads_in_partition: the buffer of gradients is as large as all of them.
    """
    return sum(elements for elements, _ in owned(job, rank))


def largest_sub_group(job: Job) -> int:
    """Elements of the largest group of parameters that stage 3 updates at once.

    runtime/zero/stage3.py, _create_fp16_sub_groups: parameters are added until the limit is reached or passed.
    """
    total = partition_elements(job)
    return total if job.sub_group_elements >= total else _largest_of(job.trained, job.ranks, job.sub_group_elements)


@functools.lru_cache(maxsize=64)
def _largest_of(trained: Weights, ranks: int, limit: int) -> int:
    before, layer, after = (
        [-(-weight.elements // ranks) for weight in some] for some in (trained.before, trained.layer, trained.after)
    )
    largest = filled = 0
    for part in itertools.chain(before, layer * trained.layers, after):
        filled += part
        if filled >= limit:
            if filled > largest:
                largest = filled
            filled = 0
    return max(largest, filled)


def gathers(job: Job) -> bool:
    """Whether a whole parameter is at stage 3 another tensor than the part that a rank keeps of it.

    runtime/zero/partition_parameters.py, NoGatherHandle: one rank moves its parameters to the device, which copies
    nothing where they are there already.
    """
    return job.ranks > 1 or (job.offload_parameters != "none" and job.kind != "cpu")


def persistent_elements(job: Job) -> int:
    """Parameters that stage 3 keeps whole on every rank: those not above the persistence threshold.

    runtime/zero/parameter_offload.py, mark_persistent_parameters.
    """
    if not gathers(job):
        return 0
    adapters = job.trained.in_order() if job.adapter_rank else ()
    every = itertools.chain(job.parameters.in_order(), adapters)
    return sum(w.elements for w in every if w.elements <= job.persistence_elements)


def compact(job: Job) -> bool:
    """Whether stages 1 and 2 sum gradients in one fp32 buffer of the partition's size
    (runtime/zero/stage_1_and_2.py, _use_compact_grad_partition_buffer)."""
    return job.stage in (1, 2) and job.accumulate == 4 > job.element


def kept_on_device(job: Job) -> int:
    """Trained elements whose master weights and states are on the device: none with offload, but for the sub-groups
    that `ratio` leaves there (runtime/zero/stage3.py, _create_fp32_partitions, subgroup_to_device; not measured)."""
    size = partition_elements(job)
    if job.offload_optimizer == "none":
        return size
    group = largest_sub_group(job)
    groups = -(-size // group) if group else 0
    return min(size, int((1 - job.offload_ratio) * groups) * group)


def between_steps(job: Job) -> dict[str, int]:
    """What the device holds from the end of a step to the next forward pass.

    Measured on 2 ranks against the live storages of the real engine (bytes per parameter, n ranks, 16 bits, Adam):
    stage 0: 2 + 12; stages 1 and 2: 2 + 12/n; stage 1 with fp32 accumulation (BF16_Optimizer, bf16_optimizer.py,
    _setup_for_real_optimizer): 4 more, a whole copy of the gradients; stage 3: (2 + 2 + 12)/n and one bucket, which
    is permanent (runtime/zero/stage3.py, _setup_for_real_optimizer).
    """
    e, trained, size = job.element, job.trained.elements, partition_elements(job)
    offloaded = job.offload_optimizer != "none"
    held: dict[str, int] = {}
    if job.stage == 3:
        if job.offload_parameters == "none":
            held[WEIGHTS] = e * (size + -(-job.frozen_elements // job.ranks))
            if job.secondary_ranks > 1:
                # runtime/zero/partition_parameters.py, ds_secondary_tensor; not measured.
                held[WEIGHTS] += e * -(-job.parameters.elements // job.secondary_ranks)
        held[GATHERED] = e * persistent_elements(job)
        held[BUCKETS] = job.sent * job.bucket_elements if job.contiguous else 0
    else:
        flat = trained if job.stage == 0 else aligned_elements(job)
        held[WEIGHTS] = e * (flat + job.frozen_elements)
    own = kept_on_device(job)
    if own:
        # Stage 0 in fp32 updates the weights themselves.
        held[MASTER] = 0 if job.stage == 0 and e == 4 else 4 * own
        held[STATES] = job.optimizer.states * own
        if job.stage == 3:
            held[GRADIENTS] = (4 if offloaded else job.accumulate) * own
    if offloaded and job.stage < 3:
        # temp_grad_buffer_for_gpu_offload
        held[BUCKETS] = e * job.trained.largest
    if job.bf16_optimizer:
        held[GRADIENTS] = job.accumulate * aligned_elements(job)
    return held


def accumulated(job: Job, rank: int) -> dict[str, int]:
    """What the device holds besides between two micro batches of a step.

    Stages 0 and 1 keep whole gradients until the last micro batch; stage 1 its bucket as well, since only the last one
    releases it (runtime/zero/stage_1_and_2.py, setup_buckets). Stage 2 keeps its partition. Stage 3 holds its
    partition anyway.
    """
    if job.accumulation == 1 or job.stage == 3:
        return {}
    if job.stage == 0 or job.bf16_optimizer:
        return {GRADIENTS: job.element * job.trained.elements}
    if job.stage == 1:
        whole = job.accumulate if compact(job) else job.element
        return {GRADIENTS: whole * job.trained.elements, BUCKETS: bucket_bytes(job)}
    if job.offload_optimizer != "none":
        return {GRADIENTS: 4 * partition_elements(job)} if compact(job) else {}
    return {GRADIENTS: partition_gradients(job, rank)}


def partition_gradients(job: Job, rank: int) -> int:
    """Bytes of the gradients of a rank's partition at stages 1 and 2."""
    if compact(job):
        return job.accumulate * partition_elements(job)
    return job.element * owned_elements(job, rank)


def bucket_bytes(job: Job) -> int:
    """The buffers that gradients are reduced from at stages 1 and 2.

    runtime/zero/stage_1_and_2.py, setup_buckets: `reduce_bucket_size` in full whatever the model's size, twice with
    overlap_comm, in fp32 where stage 1 accumulates so.
    """
    if not job.contiguous:
        return 0
    element = job.accumulate if job.stage == 1 and compact(job) else job.element
    return job.bucket_elements * element * (2 if job.overlap else 1)
