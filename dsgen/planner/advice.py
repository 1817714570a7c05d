"""What would make a job fit: the cheapest changes, each estimated anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsgen.documents.errors import DocumentError
from dsgen.findings import FindingsError
from dsgen.memory.report import MemoryReport, Verdict
from dsgen.planner.variant import Variant, variant
from dsgen.recipe.load import LoadedRecipe
from dsgen.recipe.plan import Plan
from dsgen.rules.view import lookup

MOST = 3
SMALL_BUCKET_ELEMENTS = 20_000_000
SMALL_SUB_GROUP_ELEMENTS = 20_000_000


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something to change in a recipe, and what it costs."""

    kind: str
    overrides: tuple[str, ...]
    cost: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Changes that are made together, and the job with them."""

    changes: tuple[Change, ...]
    variant: Variant


@dataclass(frozen=True, kw_only=True)
class Advised:
    """What was found."""

    advice: tuple[Advice, ...] = ()
    """Each makes the job fit; the cheapest first."""
    closest: Advice | None = None
    """Where nothing does: as far as these changes lead; None when none of them helps."""


def advise(loaded: LoadedRecipe, base: Variant) -> Advised:
    """Up to three sets of changes that make a job fit with its headroom, where none does, without it.

    Changes are tried in the order of their cost, one on top of the other, until the job fits; then those that are not
    needed are taken back, the dearest first. The next set does without the kind of change that decided the one before.
    Nothing is said of a job that fits, or whose memory is not known.
    """
    if base.report.verdict in ("fits", "unknown"):
        return Advised()
    search = _Search(loaded, base)
    goals: tuple[tuple[Verdict, ...], ...] = (("fits",),)
    if base.report.verdict == "does not fit":
        goals += (("fits", "tight"),)
    for goal in goals:
        found = tuple(search.sets(goal))
        if found:
            return Advised(advice=found)
    return Advised(closest=search.closest)


class _Search:
    def __init__(self, loaded: LoadedRecipe, base: Variant) -> None:
        self._loaded = loaded
        self._base = base
        self._known: dict[tuple[str, ...], Variant | None] = {}
        self._all = tuple(possible_changes(loaded.document.value, base.plan, base.report))
        self.closest: Advice | None = None

    def sets(self, goal: Sequence[Verdict]) -> Iterator[Advice]:
        """Sets of changes that reach one of these verdicts, the cheapest first."""
        changes = self._all
        given: list[set[str]] = []
        while len(given) < MOST:
            found = self._cheapest(changes, goal)
            if found is None:
                return
            overrides = set(found.variant.overrides)
            # More than what another one needs is no advice.
            if not any(fewer <= overrides for fewer in given):
                given.append(overrides)
                yield found
            changes = tuple(change for change in changes if change.kind != found.changes[-1].kind)

    def _cheapest(self, changes: Sequence[Change], goal: Sequence[Verdict]) -> Advice | None:
        taken: list[Change] = []
        reached = self._base
        for change in changes:
            tried = self._with([*taken, change])
            if tried is None or _need(tried.report) > _need(reached.report):
                continue
            taken.append(change)
            reached = tried
            if reached.report.verdict in goal:
                return self._needed(taken, reached, goal)
        if self.closest is None and _need(reached.report) < _need(self._base.report):
            self.closest = self._needed(taken, reached, None)
        return None

    def _needed(self, taken: list[Change], reached: Variant, goal: Sequence[Verdict] | None) -> Advice:
        """Without the changes that are not needed for the goal, or for as little memory where there is no goal."""
        for change in reversed(taken[:-1] if goal else list(taken)):
            fewer = [each for each in taken if each is not change]
            tried = self._with(fewer)
            if tried is None:
                continue
            if tried.report.verdict in goal if goal else _need(tried.report) <= _need(reached.report):
                taken, reached = fewer, tried
        return Advice(changes=tuple(taken), variant=reached)

    def _with(self, changes: Sequence[Change]) -> Variant | None:
        """The recipe with these changes, or None when that is no sound recipe."""
        overrides: dict[str, str] = {}
        for change in changes:
            for override in change.overrides:
                path = override.partition("=")[0]
                overrides.pop(path, None)
                overrides[path] = override
        key = tuple(overrides.values())
        if key not in self._known:
            try:
                self._known[key] = variant(self._loaded, key, self._base.report.calibration)
            except (FindingsError, DocumentError):
                self._known[key] = None
        return self._known[key]


def _need(report: MemoryReport) -> float:
    """What is needed, by what there is: of the device or of the host, whichever is worse."""
    device, host = report.device, report.host
    return max(
        device.total_peak_bytes / device.capacity_bytes if device.capacity_bytes else 0.0,
        host.peak_bytes / host.capacity_bytes if host.capacity_bytes else 0.0,
    )


def possible_changes(recipe: Mapping[str, Any], plan: Plan, report: MemoryReport) -> Iterator[Change]:
    """What may lower the memory of a job, the cheapest first: what costs no time, then smaller pieces of work, then
    recomputing, then sharding, then offload. What the whole is trained on, its numbers and its steps stay the same."""
    yield from _buffers(plan)
    own_script = plan.entrypoint is not None
    if not own_script and plan.attention == "eager":
        yield Change(kind="attention", overrides=("attention=sdpa",), cost="none: the same attention in one kernel")
    if not own_script and not plan.loss_chunk_tokens:
        yield Change(kind="loss", overrides=("loss=chunked",), cost="none worth naming: the loss is taken in pieces")
    if report.host.verdict in ("tight", "does not fit"):
        yield from _off_the_host(plan)
    yield from _accumulation(plan)
    yield from _smaller_batches(recipe, plan)
    if not own_script and plan.checkpoint_every_layers != 1:
        yield Change(
            kind="recompute",
            overrides=("activation_checkpointing=full",),
            cost="every layer is computed once more: about a third more work",
        )
    for stage in range(plan.stage + 1, 4):
        yield Change(kind="stage", overrides=(f"zero.stage={stage}",), cost=_STAGES[stage])
    yield from _offload(recipe, plan)


_STAGES = {
    1: "about the same communication",
    2: "about the same communication",
    3: "weights are gathered in every pass: about half as much communication again",
}
"""Communication as in the ZeRO paper (Rajbhandari et al. 2020), section 7."""


def _buffers(plan: Plan) -> Iterator[Change]:
    zero: Mapping[str, Any] = plan.ds_config.get("zero_optimization") or {}
    if plan.stage in (1, 2) and zero.get("overlap_comm"):
        cost = "gradients are reduced in turn with the backward pass, not beside it"
        yield Change(kind="overlap", overrides=("zero.overlap_comm=false",), cost=cost)
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
    if int(zero.get("stage3_max_live_parameters") or 0) > live:
        keys = ("stage3_max_live_parameters", "stage3_max_reuse_distance")
        overrides = tuple(f"zero.{key}={live}" for key in keys)
        yield Change(kind="live", overrides=overrides, cost="weights are gathered later and more often")


def _accumulation(plan: Plan) -> Iterator[Change]:
    offloaded = plan.offload_optimizer != "none"
    if plan.precision == "fp32":
        return
    if plan.stage == 2 and not offloaded and plan.accumulate != "fp32":
        cost = "none: gradients are rounded less"
        yield Change(kind="accumulate", overrides=("precision.accumulate=fp32",), cost=cost)
    elif plan.accumulate == "fp32" and (plan.stage != 2 or offloaded):
        cost = f"sums of gradients are rounded to {plan.precision}"
        yield Change(kind="accumulate", overrides=(f"precision.accumulate={plan.precision}",), cost=cost)


def _off_the_host(plan: Plan) -> Iterator[Change]:
    """For a host that is short of memory."""
    offloaded = {"optimizer": plan.offload_optimizer, "parameters": plan.offload_parameters}
    for name, where in reversed(offloaded.items()):
        if where == "cpu":
            cost = "none: it is faster, where the device has room"
            yield Change(kind=f"{name} on device", overrides=(f"zero.offload.{name}=none",), cost=cost)
    for name, where in offloaded.items():
        if where == "cpu":
            override = f"zero.offload.{name}.pin_memory=false"
            yield Change(kind=f"pinned {name}", overrides=(override,), cost="slower copies between host and device")


def _smaller_batches(recipe: Mapping[str, Any], plan: Plan) -> Iterator[Change]:
    """The same global batch in smaller pieces."""
    micro, together = plan.micro_batch, plan.micro_batch * plan.accumulation
    while micro > 1:
        micro = next(size for size in range(micro // 2, 0, -1) if together % size == 0)
        overrides = [f"batch.micro={micro}"]
        if lookup(recipe, "batch.accumulation") is not None:
            overrides.append(f"batch.accumulation={together // micro}")
        cost = "the same global batch in more and smaller passes"
        yield Change(kind="micro batch", overrides=tuple(overrides), cost=cost)


def _offload(recipe: Mapping[str, Any], plan: Plan) -> Iterator[Change]:
    # On the CPU the host is the device.
    if plan.kind == "cpu":
        return
    overrides: tuple[str, ...] = ()
    if plan.offload_optimizer == "none":
        overrides = ("zero.offload.optimizer=cpu",)
        if lookup(recipe, "precision.accumulate") is not None:
            # At stages 1 and 2 fp32 sums would stay on the device.
            overrides += ("precision.accumulate=null",)
        cost = "the host's cores take the optimizer's step; its states stay in host memory"
        if plan.stage > 0:
            yield Change(kind="optimizer offload", overrides=overrides, cost=cost)
        if plan.stage < 3:
            yield Change(kind="optimizer offload", overrides=("zero.stage=3", *overrides), cost=cost)
    if plan.offload_parameters == "none":
        stage = ("zero.stage=3",) if plan.stage < 3 else ()
        yield Change(
            kind="parameter offload",
            overrides=(*stage, *overrides, "zero.offload.parameters=cpu"),
            cost="weights cross the link between host and device in every pass",
        )
