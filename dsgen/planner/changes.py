"""What may lower the memory of a job, the cheapest first, and what each change costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsgen.memory.report import MemoryReport
from dsgen.recipe.plan import Plan
from dsgen.rules.view import lookup

SMALL_BUCKET_ELEMENTS = 20_000_000
SMALL_SUB_GROUP_ELEMENTS = 20_000_000

KINDS = (
    "overlap",
    "buckets",
    "sub-group",
    "live",
    "reuse",
    "attention",
    "loss",
    "parameters on device",
    "optimizer on device",
    "lower stage",
    "accumulate",
    "micro batch",
    "recompute",
    "stage",
    "optimizer offload",
    "pinned optimizer",
    "parameter offload",
)
"""Kinds of change, the cheapest first."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something to change in a recipe, and what it costs."""

    kind: str
    """One of KINDS."""
    overrides: tuple[str, ...]
    """What only makes sense together."""
    cost: str


Changes = tuple[Change, ...]


def possible_steps(recipe: Mapping[str, Any], plan: Plan, report: MemoryReport) -> Iterator[Changes]:
    """What may lower the memory of a job, the cheapest first: what costs no time, then smaller pieces of work, then
    recomputing, then sharding, then offload. What the whole is trained on, its numbers and its steps stay the same.
    The last change of a step is its dearest."""
    by_kind = {change.kind: change for change in buffers(plan)}
    for names in (("overlap",), ("buckets",), ("sub-group",), ("live", "reuse")):
        step = tuple(by_kind[name] for name in names if name in by_kind)
        if step:
            yield step
    own_script = plan.entrypoint is not None
    if not own_script:
        yield from _singly(fused_attention(plan))
        if not plan.loss_chunk_tokens:
            yield (CHUNKED_LOSS,)
    if report.host.verdict in ("tight", "does not fit"):
        for name, where in (("parameters", plan.offload_parameters), ("optimizer", plan.offload_optimizer)):
            if where == "cpu":
                yield ((PARAMETERS if name == "parameters" else OPTIMIZER)["none"],)
        yield from _singly(unlocked(plan))
    # Elsewhere than at stage 2 on the device fp32 sums cost memory.
    if (plan.accumulate == "fp32") != (plan.stage == 2 and plan.offload_optimizer == "none"):
        yield from _singly(other_sums(plan))
    yield from _singly(smaller_batches(recipe, plan))
    if not own_script and plan.checkpoint_every_layers != 1:
        yield (RECOMPUTE,)
    yield from _singly(higher_stages(plan))
    yield from _offload(recipe, plan)


def _singly(changes: Iterable[Change]) -> Iterator[Changes]:
    for change in changes:
        yield (change,)


CHUNKED_LOSS = Change(kind="loss", overrides=("loss=chunked",), cost="none worth naming: the loss is taken in pieces")
WHOLE_LOSS = Change(kind="loss", overrides=("loss=plain",), cost="none: the loss is taken at once")
RECOMPUTE = Change(
    kind="recompute",
    overrides=("activation_checkpointing=full",),
    cost="every layer is computed once more: about a third more work",
)
OPTIMIZER = {
    "none": Change(
        kind="optimizer on device",
        overrides=("zero.offload.optimizer=none",),
        cost="none: it is faster, where the device has room",
    ),
    "cpu": Change(
        kind="optimizer offload",
        overrides=("zero.offload.optimizer=cpu",),
        cost="the host's cores take the optimizer's step; its states stay in host memory",
    ),
}
PARAMETERS = {
    "none": Change(
        kind="parameters on device",
        overrides=("zero.offload.parameters=none",),
        cost="none: it is faster, where the device has room",
    ),
    "cpu": Change(
        kind="parameter offload",
        overrides=("zero.offload.parameters=cpu",),
        cost="weights cross the link between host and device in every pass",
    ),
}
_UNLOCKED = Change(
    kind="pinned optimizer",
    overrides=("zero.offload.optimizer.pin_memory=false",),
    cost="slower copies between host and device",
)

_STAGES = {
    1: "about the same communication",
    2: "about the same communication",
    3: "weights are gathered in every pass: about half as much communication again",
}
"""Communication as in the ZeRO paper (Rajbhandari et al. 2020), section 7."""


def stage_of(change: Change) -> int:
    """The ZeRO stage that a change of it leads to."""
    return int(change.overrides[0].partition("=")[2])


def higher_stages(plan: Plan) -> Iterator[Change]:
    """More of the states sharded."""
    for stage in range(plan.stage + 1, 4):
        yield Change(kind="stage", overrides=(f"zero.stage={stage}",), cost=_STAGES[stage])


def lower_stages(plan: Plan) -> Iterator[Change]:
    """Less sharded, which takes fewer messages."""
    for stage in range(plan.stage - 1, -1, -1):
        cost = "none: less is sharded, where the device has room"
        yield Change(kind="lower stage", overrides=(f"zero.stage={stage}",), cost=cost)


def fused_attention(plan: Plan) -> Iterator[Change]:
    """One kernel in place of eager attention."""
    if plan.attention == "eager":
        yield Change(kind="attention", overrides=("attention=sdpa",), cost="none: the same attention in one kernel")


def buffers(plan: Plan) -> Iterator[Change]:
    """What holds messages and pieces of weights, made smaller."""
    zero: Mapping[str, Any] = plan.ds_config.get("zero_optimization") or {}
    # Without overlap stage 1 keeps all gradients until the end of the backward pass.
    if plan.stage == 1 or (plan.stage == 2 and zero.get("overlap_comm")):
        yield from other_overlap(plan)
    # Where the key is not written, DeepSpeed's BF16_Optimizer does not read it.
    if plan.stage > 0 and int(zero.get("reduce_bucket_size") or 0) > SMALL_BUCKET_ELEMENTS:
        override = f"zero.reduce_bucket_size={SMALL_BUCKET_ELEMENTS}"
        yield Change(kind="buckets", overrides=(override,), cost="more and smaller messages")
    if plan.stage < 3:
        return
    if int(zero.get("sub_group_size") or 0) > SMALL_SUB_GROUP_ELEMENTS:
        override = f"zero.sub_group_size={SMALL_SUB_GROUP_ELEMENTS}"
        yield Change(kind="sub-group", overrides=(override,), cost="the optimizer takes more and smaller steps")
    live = 2 * plan.parameters.per_layer + plan.parameters.largest_tensor
    for kind, key, cost in (
        ("live", "stage3_max_live_parameters", "weights are gathered later and more often"),
        ("reuse", "stage3_max_reuse_distance", "weights are gathered again rather than kept until their next use"),
    ):
        if int(zero.get(key) or 0) > live:
            yield Change(kind=kind, overrides=(f"zero.{key}={live}",), cost=cost)


def other_overlap(plan: Plan) -> Iterator[Change]:
    """Reduction beside the backward pass, or behind it."""
    zero: Mapping[str, Any] = plan.ds_config.get("zero_optimization") or {}
    if plan.stage not in (1, 2) or plan.kind == "cpu":
        return
    if zero.get("overlap_comm"):
        cost = "gradients are reduced in turn with the backward pass, not beside it"
        yield Change(kind="overlap", overrides=("zero.overlap_comm=false",), cost=cost)
    else:
        cost = "none: gradients are reduced beside the backward pass, through a second bucket"
        yield Change(kind="overlap", overrides=("zero.overlap_comm=true",), cost=cost)


def other_sums(plan: Plan) -> Iterator[Change]:
    """Sums of gradients in the other type."""
    if plan.precision == "fp32":
        return
    if plan.accumulate == "fp32":
        yield from rounded_sums(plan)
    else:
        cost = "none: gradients are rounded less"
        yield Change(kind="accumulate", overrides=("precision.accumulate=fp32",), cost=cost)


def rounded_sums(plan: Plan) -> Iterator[Change]:
    """Sums of gradients in 16 bits."""
    if plan.precision == "fp32":
        return
    cost = f"sums of gradients are rounded to {plan.precision}"
    yield Change(kind="accumulate", overrides=(f"precision.accumulate={plan.precision}",), cost=cost)


def unlocked(plan: Plan) -> Iterator[Change]:
    """Page-locked memory is rounded up; weights in host memory are locked whatever the recipe says."""
    zero: Mapping[str, Any] = plan.ds_config.get("zero_optimization") or {}
    if (zero.get("offload_optimizer") or {}).get("pin_memory"):
        yield _UNLOCKED


_MOST_MICRO = 1 << 16
"""Sequences that no device takes at once: larger micro batches need not be tried."""


def smaller_batches(recipe: Mapping[str, Any], plan: Plan) -> Iterator[Change]:
    """The same global batch in smaller pieces."""
    micro, together = plan.micro_batch, plan.micro_batch * plan.accumulation
    while micro > 1:
        micro = next(size for size in range(min(micro // 2, _MOST_MICRO), 0, -1) if together % size == 0)
        overrides = [f"batch.micro={micro}"]
        if lookup(recipe, "batch.accumulation") is not None:
            overrides.append(f"batch.accumulation={together // micro}")
        cost = "the same global batch in more and smaller passes"
        yield Change(kind="micro batch", overrides=tuple(overrides), cost=cost)


def _offload(recipe: Mapping[str, Any], plan: Plan) -> Iterator[Changes]:
    """Each with page-locked memory, then without."""
    # On the CPU the host is the device.
    if plan.kind == "cpu":
        return
    sharded = tuple(change for change in higher_stages(plan) if stage_of(change) == 3)
    optimizer: Changes = ()
    if plan.offload_optimizer == "none":
        if lookup(recipe, "precision.accumulate") == "fp32":
            # At stages 1 and 2 fp32 sums would stay on the device.
            optimizer += tuple(rounded_sums(plan))
        optimizer += (OPTIMIZER["cpu"],)
        for stage in ((), sharded) if 0 < plan.stage < 3 else (sharded,):
            yield (*stage, *optimizer)
            yield (*stage, *optimizer, _UNLOCKED)
    if plan.offload_parameters == "none":
        yield (*sharded, *optimizer, PARAMETERS["cpu"])
        if optimizer:
            yield (*sharded, *optimizer, _UNLOCKED, PARAMETERS["cpu"])
