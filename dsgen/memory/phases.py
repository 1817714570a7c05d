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
    kept_on_device,
    largest_sub_group,
    owned,
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


def phases(job: Job, *ranks: int) -> tuple[Phase, ...]:
    """Every phase of the job, in order, each on that of `ranks` that holds most in it."""
    live = gathered(job) if job.stage == 3 else None
    steady = between_steps(job)
    base_host = host.processes(job)
    ready_host = add(base_host, host.initialized(job), host.rounding(job))
    forward: list[Moment] = []
    around_loss: list[Moment] = []
    backward: list[Moment] = []
    step: list[Moment] = []
    after: list[Moment] = []
    save: list[Moment] = []
    losses = loss_moments(job, live)
    # These count the gradients of earlier micro batches themselves.
    highest = backward_pass(job, ranks, live)
    for rank, held in zip(ranks, highest, strict=True):
        summed = add(steady, accumulated(job, rank))
        train_host = add(ready_host, host.optimizer_states(job), host.accumulating(job, rank))
        forward.append(_forward(job, live, summed, train_host))
        around_loss.extend(_moment(each, summed, train_host) for each in losses)
        backward.append(_moment(held, steady, train_host))
        step.extend(_step(job, rank, steady, train_host))
        after.append(_all_gather(job, steady, train_host))
        save.append(_save(job, steady, train_host))
    found = [
        _phase(job, "load", [_load(job, base_host)]),
        _phase(job, "initialize", list(_initialize(job, base_host, ready_host))),
        _phase(job, "forward", forward),
        _phase(job, "loss", around_loss),
        _phase(job, "backward", backward),
        _phase(job, "step", step),
    ]
    if job.stage > 0 and job.ranks > 1:
        found.append(_phase(job, "all-gather", after))
    if job.saves:
        found.append(_phase(job, "save", save))
    return tuple(found)


def _phase(job: Job, name: str, moments: list[Moment]) -> Phase:
    if job.kind == "cpu":
        # The host is the device.
        fullest = max(moments, key=lambda moment: moment.device_bytes + moment.host_bytes)
        return Phase(name=name, device=fullest, host=fullest)
    return Phase(
        name=name,
        device=max(moments, key=lambda moment: moment.device_bytes),
        host=max(moments, key=lambda moment: moment.host_bytes),
    )


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


def _initialize(job: Job, base_host: Mapping[str, int], ready_host: Mapping[str, int]) -> Iterator[Moment]:
    """What deepspeed.initialize holds on its way; the host's buffers are there at the end."""
    frozen = {WEIGHTS: job.element * job.frozen_elements} if job.stage < 3 else {}
    if job.stage == 0:
        moments = _initialize_whole(job)
    elif job.stage < 3:
        moments = _initialize_flat(job)
    else:
        moments = _initialize_partitioned(job)
    for name, device, before, ready in moments:
        yield Moment(name=name, device=add(frozen, device), host=add(ready_host if ready else base_host, before))


_Made = Iterator[tuple[str, dict[str, int], dict[str, int], bool]]
"""Name, parts on the device, parts on the host, and whether the host's own buffers are there as well."""


def _initialize_whole(job: Job) -> _Made:
    """Stage 0: runtime/fp16/fused_optimizer.py, __init__, clones every weight and flattens the clones;
    initialize_optimizer_states steps once with gradients of zero. runtime/fp16/unfused_optimizer.py does so parameter
    by parameter, and makes the gradients in 16 bits as well. In fp32 nothing is made before the first step."""
    e, trained = job.element, job.trained.elements
    weights = {WEIGHTS: e * trained}
    if e == 4:
        yield "ready", weights, {}, True
        return
    made = {MASTER: 4 * trained, STATES: job.optimizer.states * trained}
    if job.optimizer.fused:
        yield "flattening", weights | {TEMPORARIES: 2 * e * trained}, {}, False
        yield "first states", weights | made | {TEMPORARIES: (4 + job.optimizer.temporaries) * trained}, {}, True
    else:
        yield "first states", weights | made | {TEMPORARIES: (e + 4) * trained + _updating(job, trained)}, {}, True


def _updating(job: Job, elements: int) -> int:
    """Temporaries of an optimizer that updates so many elements in tensors of the model's shapes. On CPU torch's AdamW
    takes one of them at a time (torch/optim/adam.py, _single_tensor_adam): two temporaries, while the last one of the
    parameter before is still there."""
    if job.kind != "cpu":
        return job.optimizer.temporaries * elements
    sizes = [weight.elements for weight in job.trained.in_order()]
    pairs = zip([0, *sizes], sizes, strict=False)
    return job.optimizer.temporaries // 2 * max(before + 2 * size for before, size in pairs)


def _initialize_flat(job: Job) -> _Made:
    """Stages 1 and 2: runtime/zero/stage_1_and_2.py, __init__; runtime/bf16_optimizer.py, _setup_for_real_optimizer."""
    e, trained, flat, size = job.element, job.trained.elements, aligned_elements(job), partition_elements(job)
    weights = {WEIGHTS: e * flat}
    if job.bf16_optimizer or flattens_on_device(job):
        yield "flattening", {WEIGHTS: e * trained, TEMPORARIES: e * flat}, {}, False
    else:
        yield "flattening on the host", weights, {TEMPORARIES: e * (trained + flat)}, False
    if job.bf16_optimizer:
        yield "ready", weights | {MASTER: 4 * size, GRADIENTS: job.accumulate * flat}, {}, True
    elif job.offload_optimizer != "none":
        yield "copying the partition", weights | {TEMPORARIES: e * size}, {}, False
        yield "ready", weights | {BUCKETS: e * job.trained.largest}, {}, True
    else:
        yield "copying the partition", weights | {MASTER: 4 * size, TEMPORARIES: e * size}, {}, True
        yield "gradients of zero", weights | {MASTER: 4 * size, TEMPORARIES: 4 * size}, {}, True


def _initialize_partitioned(job: Job) -> _Made:
    """Stage 3: runtime/zero/stage3.py, __init__: defragment moves the weights through the host; _create_fp32_partitions
    clones what it has converted; create_reduce_and_remove_grad_hooks makes every parameter whole for a moment."""
    e, size, group = job.element, partition_elements(job), largest_sub_group(job)
    on_device = job.offload_parameters == "none"
    weights = {WEIGHTS: e * (size + -(-job.frozen_elements // job.ranks))} if on_device else {}
    if on_device:
        yield "defragmenting", weights, {TEMPORARIES: e * size}, False
    if job.offload_optimizer == "none":
        yield "master weights", weights | {MASTER: 4 * size, TEMPORARIES: 4 * group}, {}, True
    else:
        # initialize_optimizer_states: a buffer for the largest sub-group, before there is one for the sums of all.
        yield "gradients of zero", weights, {TEMPORARIES: max(0, 4 * group - job.accumulate * size)}, True
    ready = between_steps(job)
    for later in (STATES, GATHERED):
        ready.pop(later, None)
    largest = job.trained.largest
    own = 0 if on_device else -(-largest // job.ranks)
    yield "hooks", ready | {GATHERED: e * (largest + own)}, {}, True


def flattens_on_device(job: Job) -> bool:
    """runtime/zero/stage_1_and_2.py, __init__: flat_buffer_bytes against accelerator.available_memory().

    The CPU accelerator answers with the memory of the host, which is enough wherever the model could be built.
    """
    if job.device_bytes is None:
        return True
    used = job.element * (job.trained.elements + job.frozen_elements)
    return job.device_bytes - used >= job.element * aligned_elements(job)


def _forward(job: Job, live: Gathered | None, steady: Mapping[str, int], on_host: Mapping[str, int]) -> Moment:
    """The highest moment of the forward pass of the embedding and of the layers."""
    layer, layers = activations.layer_bytes(job), job.architecture.layers
    around = activations.around_layers(job)
    kept = job.tokens * (around + job.element * job.architecture.hidden_size)
    weights = live.embedding if live else 0
    highest = kept + job.element * weights
    for name, part in activations.forward_parts(job, layer).items():
        figures = live.forward.get(name, ()) if live else ()
        known = len(figures)
        for i, pair in enumerate(figures or [(0, 0)]):
            # The last ones that were followed are the last layers.
            number = i if 2 * i < known - 1 else layers - max(known, 1) + i
            # The layer's own input; where nothing is computed again that is counted with what it keeps.
            below = activations.kept_between_layers(job, layer, number + 1 if job.checkpoint_every else number)
            for elements, own in zip(pair, part, strict=True):
                now = job.tokens * (around + below + own)
                if now + job.element * elements > highest:
                    highest, kept, weights = now + job.element * elements, now, elements
    parts = {ACTIVATIONS: kept, GATHERED: job.element * weights}
    return Moment(name="a layer", device=add(steady, parts), host=on_host)


def _step(job: Job, rank: int, steady: Mapping[str, int], on_host: Mapping[str, int]) -> Iterator[Moment]:
    """The optimizer's step.

    Stage 0 (runtime/fp16/fused_optimizer.py, step): every gradient in fp32, then all of them flat, beside the
    gradients themselves; unfused_optimizer.py keeps them beside the fp32 ones. Stages 1 and 2 (runtime/zero/
    stage_1_and_2.py, step): the partition's gradients are flattened in 16 bits and then made fp32, and none is freed
    before; fp32 sums are used in place. Stage 3 (runtime/zero/stage3.py, _prepare_fp32_grad_for_sub_group): the same
    for one sub-group at a time.
    """
    e, trained, size = job.element, job.trained.elements, partition_elements(job)
    temporaries = job.optimizer.temporaries

    def moment(name: str, gradients: int, temporary: int, buckets: int = 0) -> Moment:
        parts = {GRADIENTS: gradients, TEMPORARIES: temporary, BUCKETS: buckets}
        return Moment(name=name, device=add(steady, parts), host=on_host)

    # At stage 1 the gradients of other ranks' partitions are still views of the bucket.
    views = bucket_bytes(job) if job.stage == 1 and job.ranks > 1 else 0
    if job.offload_optimizer != "none":
        gradients = 4 * size if compact(job) else 0
        # Sub-groups that `ratio` leaves on the device are updated there.
        own = min(kept_on_device(job), largest_sub_group(job)) if job.stage == 3 else 0
        yield moment("on the host", gradients, (job.accumulate + 4) * own, views)
    elif job.stage == 0:
        if e == 4:
            yield moment("update", e * trained, _updating(job, trained))
        elif not job.optimizer.fused:
            yield moment("update", e * trained, 4 * trained + _updating(job, trained))
        else:
            yield moment("gradients in fp32", e * trained, 8 * trained)
            yield moment("update", 0, (4 + temporaries) * trained)
    elif job.bf16_optimizer:
        yield moment("update", e * trained, temporaries * size)
    elif job.stage < 3:
        # The norm is taken of the piece that lies in the partition.
        largest = max((inside for _, inside in owned(job, rank)), default=0)
        own = partition_gradients(job, rank)
        yield moment("norm", own, _NORM_BYTES * largest, views)
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


def _all_gather(job: Job, steady: Mapping[str, int], on_host: Mapping[str, int]) -> Moment:
    """Updated weights come back: stages 1 and 2 gather into the flat buffer itself (runtime/utils.py,
    all_gather_into_tensor_dp_groups); stage 3 gathers the small parameters that every rank keeps."""
    return Moment(name="after the step", device=add(steady), host=on_host)


def _save(job: Job, steady: Mapping[str, int], on_host: Mapping[str, int]) -> Moment:
    """torch.save copies one storage at a time to the host; the largest is the partition's master weights. At stage 0
    only the first rank writes (runtime/engine.py, _save_checkpoint), in fp32 one parameter at a time. Not measured."""
    if job.stage == 0:
        written = 4 * (job.trained.elements if job.element < 4 else job.trained.largest)
        copied = -(-written // job.per_node)
    else:
        copied = 4 * min(kept_on_device(job), largest_sub_group(job) if job.stage == 3 else partition_elements(job))
    return Moment(name="writing", device=add(steady), host=add(on_host, {TEMPORARIES: copied}))
