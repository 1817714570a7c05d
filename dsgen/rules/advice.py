"""Advice on speed and memory: nothing here is wrong, and each says what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, lookup

_ZERO = "zero_optimization"
_GIB = 2.0**30
_DEFAULT_BUCKET = 5e8
"""Elements of a bucket where the config says nothing (runtime/zero/config.py)."""
_LARGE_BUCKETS = 2e9
"""Bytes of the default's two buckets in 16 bits."""
_CLEARLY_FITS = 0.5
"""Part of a device's memory that states may take for a clear case: activations and the rest need the other half."""


@rule("ADV001", Severity.INFO)
def communication_overlaps(view: View) -> Iterator[Problem]:
    """No overlap of communication and computation at stage 2 or 3, with several ranks.

    `overlap_comm` is off by default at stage 2 and on at stage 3 (runtime/zero/config.py, overlap_comm_valid).
    Without it gradients are reduced on the stream that computes, so that the backward pass waits for every bucket. It
    costs a second bucket at stage 2.

    Example:
        {"zero_optimization": {"stage": 2, "overlap_comm": false}}

    Instead:
        {"zero_optimization": {"stage": 2, "overlap_comm": true}}

    Options: --world-size 8
    Since: DeepSpeed 0.14
    """
    section = _section(view)
    if section is None or view.stage not in (2, 3) or (view.devices or 1) < 2:
        return
    said = section.get("overlap_comm")
    if said is not False and (said is not None or view.stage == 3):
        return
    bucket = _number(section.get("reduce_bucket_size", _DEFAULT_BUCKET))
    cost = f", at stage 2 for a second bucket of {_gib(bucket * _element(view))}" if view.stage == 2 and bucket else ""
    yield Problem(
        path=f"{_ZERO}.overlap_comm",
        message="overlap_comm is off: the backward pass waits while gradients are reduced",
        help=f"overlap_comm: true lets them overlap{cost}; measure it",
    )


@rule("ADV002", Severity.INFO)
def gradients_are_contiguous(view: View) -> Iterator[Problem]:
    """`contiguous_gradients` off: gradients are reduced one tensor at a time out of scattered memory.

    With it they are copied into one buffer as they come, which keeps the memory from falling into pieces
    (runtime/zero/stage_1_and_2.py). Optimizer offload turns it on anyway.

    Example:
        {"zero_optimization": {"stage": 2, "contiguous_gradients": false}}

    Instead:
        {"zero_optimization": {"stage": 2, "contiguous_gradients": true}}

    Since: DeepSpeed 0.14
    """
    section = _section(view)
    if section is None or view.stage not in (1, 2, 3) or _is_on(view.offload_optimizer):
        return
    if section.get("contiguous_gradients") is False:
        yield Problem(
            path=f"{_ZERO}.contiguous_gradients",
            message="contiguous_gradients is off: memory falls into pieces during the backward pass",
            help="write true, which is the default",
        )


@rule("ADV003", Severity.INFO)
def stage_is_needed(view: View) -> Iterator[Problem]:
    """Stage 3 for a model whose states fit at stage 2 with room to spare.

    Stage 3 gathers every weight twice a micro batch; stage 2 keeps them. At stage 2 a rank holds 2 bytes per
    parameter of weights, and 14 bytes divided by the ranks of gradients and Adam's states. It is said only where that
    is less than half of the device's memory, all parameters being trained.

    Example:
        {"zero_optimization": {"stage": 3}}

    Instead:
        {"zero_optimization": {"stage": 2}}

    Options: --model llama-3.2-1b --device ascend-910b3-64g --world-size 8
    Since: DeepSpeed 0.14
    """
    known = _known(view)
    if known is None or view.stage != 3 or _is_on(view.offload_optimizer) or _is_on(view.offload_parameters):
        return
    parameters, ranks, memory = known
    need = _states(2, parameters, ranks)
    if ranks > 1 and need <= memory * _CLEARLY_FITS:
        yield Problem(
            path=f"{_ZERO}.stage",
            message=f"stage 2 would hold {_gib(need)} of states on a device with {_gib(memory)}; stage 3 gathers every "
            "weight again in each forward and backward pass",
            help="try stage 2",
        )


@rule("ADV004", Severity.INFO)
def offload_is_needed(view: View) -> Iterator[Problem]:
    """Offload of what the device could hold with room to spare.

    Every step copies gradients to the host and weights back, and computes Adam on the processor. It is said only where
    all states together are less than half of the device's memory, all parameters being trained with Adam.

    Example:
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true}}}

    Instead:
        {"zero_optimization": {"stage": 3}}

    Options: --model llama-3.2-1b --device ascend-910b3-64g --world-size 8
    Since: DeepSpeed 0.14
    """
    known = _known(view)
    if known is None or view.stage not in (1, 2, 3):
        return
    parameters, ranks, memory = known
    need = _states(view.stage, parameters, ranks)
    if need > memory * _CLEARLY_FITS:
        return
    devices = {"offload_optimizer": view.offload_optimizer, "offload_param": view.offload_parameters}
    for name, device in devices.items():
        if _is_on(device) and (name == "offload_optimizer" or view.stage == 3):
            yield Problem(
                path=f"{_ZERO}.{name}",
                message=f"without offload all states take {_gib(need)} of a device with {_gib(memory)}",
                help="try it without: offload makes every step slower",
                on_key=True,
            )


@rule("ADV005", Severity.INFO)
def offload_is_pinned(view: View) -> Iterator[Problem]:
    """Offload to host memory that is not pinned: copies between host and device are slower and do not overlap.

    False is right where a container or a batch system limits locked memory.

    Example:
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": false}}}

    Instead:
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}}}

    Since: DeepSpeed 0.14
    """
    if view.kind != "ds_config":
        return
    devices = {"offload_optimizer": view.offload_optimizer, "offload_param": view.offload_parameters}
    for name, device in devices.items():
        works = view.stage == 3 or (name == "offload_optimizer" and view.stage in (1, 2))
        if device == "cpu" and works and lookup(view.config, f"{_ZERO}.{name}.pin_memory") is False:
            yield Problem(
                path=f"{_ZERO}.{name}.pin_memory",
                message="copies from memory that is not pinned are slower, and computation waits for them",
                help="write true where locked memory is not limited",
            )


@rule("ADV006", Severity.INFO)
def nothing_is_timed(view: View) -> Iterator[Problem]:
    """A breakdown of times or memory in every step, or the flops profiler, which turns the former on.

    The timers wait for the device before they are read (utils/timer.py); `memory_breakdown` collects Python's garbage
    and resets the peak counters around forward, backward and step (runtime/utils.py, see_memory_usage).

    Example:
        {"wall_clock_breakdown": true}

    Instead:
        {"wall_clock_breakdown": false}

    Since: DeepSpeed 0.14
    """
    if view.kind != "ds_config":
        return
    reasons = {
        "wall_clock_breakdown": "its timers make the host wait for the device in every step",
        "memory_breakdown": "rank 0 collects garbage and resets the peak counters several times a step",
        "flops_profiler.enabled": "it turns on wall_clock_breakdown for the whole run, not only for its own step",
    }
    for path, reason in reasons.items():
        if lookup(view.config, path) is True:
            yield Problem(path=path, message=f"{path} slows training: {reason}", help="turn it off when it is measured")


@rule("ADV007", Severity.INFO)
def buckets_take_memory(view: View) -> Iterator[Problem]:
    """Reduce buckets that take more than 2 GB, which is what the default takes with `overlap_comm`.

    DeepSpeed allocates `reduce_bucket_size` elements whatever the model's size, twice with `overlap_comm` at stages 1
    and 2 (runtime/zero/stage_1_and_2.py), and once for the whole run at stage 3.

    Example:
        {"zero_optimization": {"stage": 2, "overlap_comm": true, "reduce_bucket_size": 1e9}}

    Instead:
        {"zero_optimization": {"stage": 2, "overlap_comm": true, "reduce_bucket_size": 2e8}}

    Since: DeepSpeed 0.14
    """
    section = _section(view)
    if section is None or view.stage not in (1, 2, 3) or section.get("contiguous_gradients") is False:
        return
    if view.bf16_optimizer:
        return
    size = _number(section.get("reduce_bucket_size", _DEFAULT_BUCKET))
    count = 2 if section.get("overlap_comm") is True and view.stage < 3 else 1
    need = (size or 0) * count * _element(view)
    if size is not None and need > _LARGE_BUCKETS:
        twice = ", and overlap_comm takes two of them" if count == 2 else ""
        yield Problem(
            path=f"{_ZERO}.reduce_bucket_size",
            message=f"a bucket has {size:,.0f} elements of {_element(view)} bytes{twice}: {_gib(need)} of every device",
            help=f"where memory is short take less: every 1e8 elements are {_gib(1e8 * count * _element(view))}",
        )


@rule("ADV008", Severity.INFO)
def bf16_is_there(view: View) -> Iterator[Problem]:
    """fp16 on a device that has bf16.

    bf16 has the range of fp32: it needs no loss scale, and no step is skipped because a gradient overflowed. Its
    mantissa is 3 bits shorter.

    Example:
        {"fp16": {"enabled": true}, "bf16": {"enabled": false}}

    Instead:
        {"bf16": {"enabled": true}}

    Options: --device ascend-910b3-64g
    Since: DeepSpeed 0.14
    """
    if view.kind == "ds_config" and view.precision == "fp16" and view.device is not None and view.device.bf16:
        yield Problem(
            path="fp16.enabled",
            message=f"{view.device.id} has bf16, which needs no loss scale and skips no steps for overflow",
            help="write bf16: {enabled: true}, unless the weights were made for fp16",
        )


@rule("ADV009", Severity.INFO)
def state_is_not_dumped(view: View) -> Iterator[Problem]:
    """`dump_state`, which fills the log.

    The engine prints its whole configuration when it starts (runtime/engine.py).

    Example:
        {"dump_state": true}

    Instead:
        {"dump_state": false}

    Since: DeepSpeed 0.14
    """
    if view.kind == "ds_config" and view.config.get("dump_state") is True:
        yield Problem(
            path="dump_state", message="dump_state prints the whole configuration at the start", help="remove it"
        )


@rule("ADV010", Severity.INFO)
def optimizer_works_in_parts(view: View) -> Iterator[Problem]:
    """Large parts of the optimizer's step at stage 3: each takes 6 bytes per parameter on top of all states.

    The step goes through the rank's parameters in groups of `sub_group_size`, 1e9 by default, and makes fp32 gradients
    and 16-bit weights of one group at a time (runtime/zero/stage3.py).

    Example:
        {"zero_optimization": {"stage": 3, "sub_group_size": 1e9}}

    Instead:
        {"zero_optimization": {"stage": 3, "sub_group_size": 1e8}}

    Options: --model llama-2-7b --device ascend-910b3-64g --world-size 8
    Since: DeepSpeed 0.14
    """
    known, section = _known(view), _section(view)
    if known is None or section is None or view.stage != 3 or _is_on(view.offload_optimizer):
        return
    parameters, ranks, _ = known
    size = _number(section.get("sub_group_size", 1e9))
    need = 6 * min(size or 0, parameters / ranks)
    if need > 4 * _GIB:
        yield Problem(
            path=f"{_ZERO}.sub_group_size",
            message=f"the optimizer's step takes {_gib(need)} on top of all states",
            help="sub_group_size: 1e8 makes it 0.56 GiB",
        )


@rule("ADV011", Severity.INFO)
def gradients_are_sharded(view: View) -> Iterator[Problem]:
    """Stage 1 in bf16 with fp32 accumulation: every rank keeps the whole gradient in fp32, 4 bytes per parameter.

    DeepSpeed takes its BF16_Optimizer for this combination; stage 2 divides the same gradients by the ranks
    (runtime/engine.py, _do_optimizer_sanity_check; runtime/bf16_optimizer.py).

    Example:
        {"zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}}

    Instead:
        {"zero_optimization": {"stage": 2}, "data_types": {"grad_accum_dtype": "fp32"}}

    Since: DeepSpeed 0.14
    """
    if view.kind == "ds_config" and view.bf16_optimizer:
        size = f" ({_gib(4.0 * view.trainable_parameters)})" if view.trainable_parameters else ""
        yield Problem(
            path="data_types.grad_accum_dtype",
            message=f"every rank keeps the whole gradient in fp32, 4 bytes per parameter{size}",
            help="stage 2 divides it by the ranks",
        )


def _section(view: View) -> Mapping[str, Any] | None:
    section = view.config.get(_ZERO)
    return section if view.kind == "ds_config" and isinstance(section, Mapping) else None


def _known(view: View) -> tuple[int, int, float] | None:
    """Trained parameters, data-parallel ranks, bytes of a device: for 16-bit training without tensor parallelism."""
    parameters, ranks = view.trainable_parameters, view.data_parallel
    if view.kind != "ds_config" or view.precision not in ("fp16", "bf16") or (view.tensor_parallel or 1) > 1:
        return None
    memory = (view.device.usable_bytes or view.device.memory_bytes) if view.device is not None else None
    return (parameters, ranks, float(memory)) if parameters and ranks and memory else None


def _states(stage: int, parameters: int, ranks: int) -> float:
    """Bytes of weights, gradients and Adam's states that a rank holds, in 16-bit training (ZeRO's own arithmetic)."""
    whole, divided = {1: (4, 12), 2: (2, 14), 3: (0, 16)}[stage]
    return float(parameters) * (whole + divided / ranks)


def _element(view: View) -> int:
    """Bytes of a gradient in a bucket."""
    return 4 if view.precision == "fp32" else 2


def _is_on(device: str | None) -> bool:
    return device not in (None, "none")


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        return None
    return float(value)


def _gib(size: float) -> str:
    return f"{size / _GIB:,.2f} GiB"
