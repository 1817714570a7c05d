"""The phases of a job, and what each of them holds at its highest moments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsgen.memory import activations, host
from dsgen.memory.gathering import Gathered, gathered
from dsgen.memory.job import Job
from dsgen.memory.reduction import Held, backward_pass, loss_moments
from dsgen.memory.report import (
    ACTIVATIONS,
    BUCKETS,
    GATHERED,
    GRADIENTS,
    LOSS,
    MASTER,
    STATES,
    TEMPORARIES,
    WEIGHTS,
    Moment,
    Phase,
)
from dsgen.memory.states import (
    accumulated,
    aligned_elements,
    between_steps,
    bucket_bytes,
    compact,
    largest_sub_group,
    partition_elements,
    partition_gradients,
)

_NORM_BYTES = 8
"""Norms are taken in fp64 (runtime/zero/utils.py, get_norm_dtype)."""


def add(*some: Mapping[str, int]) -> dict[str, int]:
    """Parts added up; parts of nothing are left out."""
    total: dict[str, int] = {}
    for parts in some:
        for part, size in parts.items():
            if size:
                total[part] = total.get(part, 0) + size
    return total


def phases(job: Job, rank: int) -> tuple[Phase, ...]:
    """Every phase of the job of `rank`, in order."""
    live = gathered(job) if job.stage == 3 else None
    steady, summed = between_steps(job), accumulated(job, rank)
    base_host = host.processes(job)
    ready_host = add(base_host, host.initialized(job), host.rounding(job))
    train_host = add(ready_host, host.optimizer_states(job), host.accumulating(job, rank))
    found = [
        _phase("load", [_load(job, base_host)]),
        _phase("initialize", list(_initialize(job, ready_host))),
        _phase("forward", [_forward(job, live, add(steady, summed), train_host)]),
        _phase("loss", [_moment(held, add(steady, summed), train_host) for held in loss_moments(job, live)]),
        _highest("backward", backward_pass(job, rank, live), steady, train_host),
        _phase("step", list(_step(job, rank, steady, train_host))),
    ]
    if job.stage > 0 and job.ranks > 1:
        found.append(_phase("all-gather", [_all_gather(job, steady, train_host)]))
    if job.saves:
        found.append(_phase("save", [_save(job, steady, train_host)]))
    return tuple(found)


def _phase(name: str, moments: list[Moment]) -> Phase:
    return Phase(
        name=name,
        device=max(moments, key=lambda moment: moment.device_bytes),
        host=max(moments, key=lambda moment: moment.host_bytes),
    )


def _highest(name: str, several: Iterator[Held], steady: Mapping[str, int], on_host: Mapping[str, int]) -> Phase:
    """`several` count the gradients of earlier micro batches themselves."""
    highest = max(several, key=lambda held: held.all)
    return _phase(name, [_moment(highest, steady, on_host)])


def _moment(held: Held, steady: Mapping[str, int], on_host: Mapping[str, int]) -> Moment:
    parts = {
        ACTIVATIONS: held.activations,
        LOSS: held.loss,
        GRADIENTS: held.gradients,
        BUCKETS: held.buckets,
        GATHERED: held.gathered,
        TEMPORARIES: held.temporaries,
    }
    return Moment(name=held.name, device=add(steady, parts), host=on_host)


def _load(job: Job, on_host: Mapping[str, int]) -> Moment:
    """The model as dsgen's runtime builds it: on the device in its own type; at stage 3 every parameter is partitioned
    as soon as it exists (deepspeed.zero.Init), and made whole once more while it is filled. Not measured."""
    e = job.element
    if job.stage < 3:
        elements = job.parameters.elements + (job.trained.elements if job.adapter_rank else 0)
        return Moment(name="model", device={WEIGHTS: e * elements}, host=on_host)
    part = {WEIGHTS: e * -(-job.parameters.elements // job.ranks)}
    offloaded = job.offload_parameters != "none"
    return Moment(
        name="model",
        device=add({} if offloaded else part, {GATHERED: 2 * e * job.parameters.largest}),
        host=add(on_host, part if job.offload_parameters == "cpu" else {}),
    )


def _initialize(job: Job, ready_host: Mapping[str, int]) -> Iterator[Moment]:
    """What deepspeed.initialize holds on its way."""
    frozen = {WEIGHTS: job.element * job.frozen_elements} if job.stage < 3 else {}
    if job.stage == 0:
        moments = _initialize_whole(job)
    elif job.stage < 3:
        moments = _initialize_flat(job)
    else:
        moments = _initialize_partitioned(job)
    for name, device, on_host in moments:
        yield Moment(name=name, device=add(frozen, device), host=add(ready_host, on_host))


_Made = Iterator[tuple[str, dict[str, int], dict[str, int]]]


def _initialize_whole(job: Job) -> _Made:
    """Stage 0: runtime/fp16/fused_optimizer.py, __init__, clones every weight and flattens the clones;
    initialize_optimizer_states steps once with gradients of zero. In fp32 nothing is made before the first step."""
    e, trained = job.element, job.trained.elements
    weights = {WEIGHTS: e * trained}
    if e == 4:
        yield "ready", weights, {}
        return
    yield "flattening", weights | {TEMPORARIES: 2 * e * trained}, {}
    made = {MASTER: 4 * trained, STATES: job.optimizer.states * trained}
    yield "first states", weights | made | {TEMPORARIES: (4 + job.optimizer.temporaries) * trained}, {}


def _initialize_flat(job: Job) -> _Made:
    """Stages 1 and 2: runtime/zero/stage_1_and_2.py, __init__; runtime/bf16_optimizer.py, _setup_for_real_optimizer."""
    e, trained, flat, size = job.element, job.trained.elements, aligned_elements(job), partition_elements(job)
    weights = {WEIGHTS: e * flat}
    if job.bf16_optimizer or _flattens_on_device(job):
        yield "flattening", {WEIGHTS: e * trained, TEMPORARIES: e * flat}, {}
    else:
        yield "flattening on the host", weights, {TEMPORARIES: e * (trained + flat)}
    if job.bf16_optimizer:
        yield "ready", weights | {MASTER: 4 * size, GRADIENTS: job.accumulate * flat}, {}
    elif job.offload_optimizer != "none":
        yield "copying the partition", weights | {TEMPORARIES: e * size}, {}
        yield "ready", weights | {BUCKETS: e * job.trained.largest}, {}
    else:
        yield "copying the partition", weights | {MASTER: 4 * size, TEMPORARIES: e * size}, {}
        yield "gradients of zero", weights | {MASTER: 4 * size, TEMPORARIES: 4 * size}, {}


def _initialize_partitioned(job: Job) -> _Made:
    """Stage 3: runtime/zero/stage3.py, __init__: defragment moves the weights through the host; _create_fp32_partitions
    clones what it has converted; create_reduce_and_remove_grad_hooks makes every parameter whole for a moment."""
    e, size, group = job.element, partition_elements(job), largest_sub_group(job)
    on_device = job.offload_parameters == "none"
    weights = {WEIGHTS: e * (size + -(-job.frozen_elements // job.ranks))} if on_device else {}
    if on_device:
        yield "defragmenting", weights, {TEMPORARIES: e * size}
    if job.offload_optimizer == "none":
        yield "master weights", weights | {MASTER: 4 * size, TEMPORARIES: 4 * group}, {}
    else:
        # initialize_optimizer_states: a buffer for the largest sub-group beside the buffers of all.
        yield "gradients of zero", weights, {TEMPORARIES: 4 * group}
    ready = between_steps(job)
    for later in (STATES, GATHERED):
        ready.pop(later, None)
    largest = job.trained.largest
    own = 0 if on_device else -(-largest // job.ranks)
    yield "hooks", ready | {GATHERED: e * (largest + own)}, {}


def _flattens_on_device(job: Job) -> bool:
    """runtime/zero/stage_1_and_2.py, __init__: flat_buffer_bytes against accelerator.available_memory().

    The CPU accelerator answers with the memory of the host, which is enough wherever the model could be built.
    """
    if job.device_bytes is None:
        return True
    used = job.element * (job.trained.elements + job.frozen_elements)
    return job.device_bytes - used >= job.element * aligned_elements(job)


def _forward(job: Job, live: Gathered | None, steady: Mapping[str, int], on_host: Mapping[str, int]) -> Moment:
    layer = activations.layer_bytes(job)
    kept = activations.kept_between_layers(job, layer, job.architecture.layers) + activations.around_layers(job)
    parts = {
        ACTIVATIONS: job.tokens * (kept + activations.forward_of_layer(job)),
        GATHERED: job.element * live.forward if live else 0,
    }
    return Moment(name="last layer", device=add(steady, parts), host=on_host)


def _step(job: Job, rank: int, steady: Mapping[str, int], on_host: Mapping[str, int]) -> Iterator[Moment]:
    """The optimizer's step.

    Stage 0 (runtime/fp16/fused_optimizer.py, step): every gradient in fp32, then all of them flat, beside the
    gradients themselves. Stages 1 and 2 (runtime/zero/stage_1_and_2.py, step): the partition's gradients are flattened
    in 16 bits and then made fp32, and none is freed before; fp32 sums are used in place. Stage 3 (runtime/zero/
    stage3.py, _prepare_fp32_grad_for_sub_group): the same for one sub-group at a time.
    """
    e, trained, size = job.element, job.trained.elements, partition_elements(job)
    temporaries = job.optimizer.temporaries

    def moment(name: str, gradients: int, temporary: int, buckets: int = 0) -> Moment:
        parts = {GRADIENTS: gradients, TEMPORARIES: temporary, BUCKETS: buckets}
        return Moment(name=name, device=add(steady, parts), host=on_host)

    if job.offload_optimizer != "none":
        gradients = 4 * size if compact(job) else 0
        yield moment("on the host", gradients, 0)
    elif job.stage == 0:
        if e == 4:
            # On CPU torch's optimizers take one parameter at a time.
            yield moment("update", e * trained, temporaries * (job.trained.largest if job.kind == "cpu" else trained))
        else:
            yield moment("gradients in fp32", e * trained, 8 * trained)
            yield moment("update", 0, (4 + temporaries) * trained)
    elif job.bf16_optimizer:
        yield moment("update", e * trained, temporaries * size)
    elif job.stage < 3:
        largest = _largest_owned(job, rank)
        own = partition_gradients(job, rank)
        # At stage 1 reduced gradients are still views of the bucket.
        yield moment("norm", own, _NORM_BYTES * largest, bucket_bytes(job) if job.stage == 1 else 0)
        if compact(job):
            yield moment("update", own, temporaries * size)
        else:
            flat = e * size
            yield moment("gradients in fp32", own, flat + (4 * size if e < 4 else 0))
            yield moment("update", 0, (4 + temporaries) * size)
    else:
        group = largest_sub_group(job)
        flat = job.accumulate * group
        yield moment("norm", 0, _NORM_BYTES * -(-job.trained.largest // job.ranks))
        if job.scaled:
            # torch.isinf of the whole buffer: its absolute value, and a byte for each element.
            yield moment("overflow check", 0, (job.accumulate + 1) * size)
        yield moment("gradients in fp32", 0, flat + (4 * group if job.accumulate < 4 else 0))
        yield moment("update", 0, (4 + temporaries) * group)


def _largest_owned(job: Job, rank: int) -> int:
    size = partition_elements(job)
    start, end = rank * size, (rank + 1) * size
    offset = largest = 0
    for weight in job.trained.in_order():
        if offset >= end:
            break
        # The norm is taken of the piece that lies in the partition.
        largest = max(largest, min(offset + weight.elements, end) - max(offset, start))
        offset += weight.elements
    return largest


def _all_gather(job: Job, steady: Mapping[str, int], on_host: Mapping[str, int]) -> Moment:
    """Updated weights come back: stages 1 and 2 gather into the flat buffer itself (runtime/utils.py,
    all_gather_into_tensor_dp_groups); stage 3 gathers the small parameters that every rank keeps."""
    return Moment(name="after the step", device=add(steady), host=on_host)


def _save(job: Job, steady: Mapping[str, int], on_host: Mapping[str, int]) -> Moment:
    """torch.save copies one storage at a time to the host; the largest is the partition's master weights. Not
    measured."""
    size = partition_elements(job)
    copied = 4 * (size if job.stage < 3 else largest_sub_group(job))
    copied = copied if job.offload_optimizer == "none" else 0
    return Moment(name="writing", device=add(steady), host=add(on_host, {TEMPORARIES: copied}))
