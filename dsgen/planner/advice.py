"""What would make a job fit: the cheapest changes, each estimated anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from dsgen.documents.errors import DocumentError
from dsgen.findings import FindingsError
from dsgen.memory.report import MemoryReport, Verdict
from dsgen.planner.changes import (
    CHUNKED_LOSS,
    KINDS,
    OPTIMIZER,
    PARAMETERS,
    RECOMPUTE,
    WHOLE_LOSS,
    Change,
    Changes,
    buffers,
    fused_attention,
    higher_stages,
    lower_stages,
    other_overlap,
    other_sums,
    possible_steps,
    rounded_sums,
    smaller_batches,
    stage_of,
    unlocked,
)
from dsgen.planner.variant import Variant, variant
from dsgen.recipe.load import LoadedRecipe
from dsgen.recipe.plan import Plan

MOST = 3


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Changes that are made together, and the job with them."""

    changes: Changes
    """The cheapest first."""
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
    needed are taken back, the dearest first, or replaced by a weaker one. The next set does without the change that
    decided the one before. Where this leads nowhere, every combination of stage, offload, page-locked memory, gradient
    sums, sizes and pieces of work is tried. Nothing is said of a job that fits, or whose memory is not known.
    """
    if base.report.verdict in ("fits", "unknown"):
        return Advised()
    search = _Search(loaded, base)
    goals: tuple[tuple[Verdict, ...], ...] = (("fits",),)
    if base.report.verdict == "does not fit":
        goals += (("fits", "tight"),)
    for goal in goals:
        found = search.step_by_step(goal) or search.everything(goal)
        if found:
            return Advised(advice=found)
    return Advised(closest=search.closest())


class _Search:
    def __init__(self, loaded: LoadedRecipe, base: Variant) -> None:
        self._loaded = loaded
        self._recipe: Mapping[str, Any] = loaded.document.value
        self._base = base
        self._known: dict[tuple[str, ...], Variant | None] = {}
        self._best: tuple[Changes, Variant] = ((), base)
        self._weaker = {
            "micro batch": tuple(smaller_batches(self._recipe, base.plan)),
            "stage": tuple(higher_stages(base.plan)),
            "lower stage": tuple(lower_stages(base.plan)),
        }
        """Changes of a kind that has several, the weakest first."""

    def step_by_step(self, goal: Sequence[Verdict]) -> tuple[Advice, ...]:
        """Sets of changes that reach one of these verdicts, the cheapest first."""
        steps = tuple(possible_steps(self._recipe, self._base.plan, self._base.report))
        given: list[Advice] = []
        # A stage that was given is not given again; a higher one may be, for the room that it leaves.
        without: set[Change] = set()
        while len(_distinct(given)) < MOST:
            found = self._cheapest(steps, goal, without)
            if found is None:
                break
            advice, decisive = found
            given.append(advice)
            dearest = advice.changes[-1]
            if dearest.kind == "stage":
                without |= {dearest, *self._weaker_than(dearest)}
                steps = tuple(step for step in steps if step is not decisive and step[-1] not in without)
            else:
                steps = tuple(step for step in steps if step is not decisive and step[-1].kind != dearest.kind)
        return _distinct(given)

    def _cheapest(
        self, steps: Sequence[Changes], goal: Sequence[Verdict], without: set[Change]
    ) -> tuple[Advice, Changes] | None:
        """What fits first, and the step that decided."""
        taken: Changes = ()
        reached = self._base
        for step in steps:
            tried = self._with((*taken, *step))
            if tried is None or _need(tried.report) > _need(reached.report):
                continue
            taken, reached = _merged((*taken, *step)), tried
            if reached.report.verdict in goal:
                return self._needed(taken, reached, goal, without), step
        return None

    def everything(self, goal: Sequence[Verdict]) -> tuple[Advice, ...]:
        """Sets of changes that reach one of these verdicts, out of all combinations of what memory depends on."""
        given: list[Advice] = []
        for place in self._places():
            if len(_distinct(given)) == MOST:
                break
            found = self._somehow(place, goal)
            if found is not None:
                given.append(self._needed(*found, goal, set()))
        return _distinct(given)

    def _places(self) -> Iterator[Changes]:
        """Stages and what they can offload: those from the recipe's on, then those below."""
        plan = self._base.plan
        stages: list[tuple[int, Changes]] = [(plan.stage, ())]
        stages += [(stage_of(each), (each,)) for kind in ("stage", "lower stage") for each in self._weaker[kind]]
        for stage, change in stages:
            if plan.kind == "cpu":
                # On the CPU the host is the device.
                yield change
                continue
            for optimizer, parameters in product(
                dict.fromkeys((plan.offload_optimizer, "none", "cpu")),
                dict.fromkeys((plan.offload_parameters, "none", "cpu")),
            ):
                if (stage == 0 and optimizer != "none") or (stage < 3 and parameters != "none"):
                    continue
                placed: list[Change] = []
                if optimizer != plan.offload_optimizer:
                    placed.append(OPTIMIZER[optimizer])
                if parameters != plan.offload_parameters:
                    placed.append(PARAMETERS[parameters])
                yield (*change, *placed)

    def _somehow(self, place: Changes, goal: Sequence[Verdict]) -> tuple[Changes, Variant] | None:
        """A way to reach the goal with this stage and offload."""
        at = self._with(place)
        if at is None:
            # Stage 0 has no other sums than those in the precision itself.
            place = (*place, *rounded_sums(self._base.plan))
            at = self._with(place)
        if at is None:
            return None
        # Neither smaller buffers nor unlocked memory take more; what is not needed is taken back later.
        sizes = tuple(each for each in buffers(at.plan) if each.kind != "overlap")
        least_host = (*place, *sizes, *unlocked(at.plan))
        works = self._works()
        for overlap, sums in product(_or_not(other_overlap(at.plan)), _or_not(other_sums(at.plan))):
            device_short = host_short = False
            for micro, cuts in works:
                # To the host only the number of micro batches matters, and to the device the smallest is best.
                first = (micro, cuts) == works[0]
                if not first and (device_short == (cuts == works[0][1]) or host_short == (micro == works[0][0])):
                    continue
                changes = (*least_host, *overlap, *sums, *micro, *cuts)
                tried = self._with(changes)
                if tried is None:
                    continue
                if tried.report.verdict in goal:
                    return _merged(changes), tried
                if first:
                    device_short = tried.report.device.verdict not in (*goal, "unknown")
                    host_short = tried.report.host.verdict not in (*goal, "unknown")
        return None

    def _works(self) -> list[tuple[Changes, Changes]]:
        """Micro batches, and how loss, attention and activations are cut; what takes least of the device first."""
        plan = self._base.plan
        micros: list[Changes] = [self._weaker["micro batch"][-1:]]
        if micros[0]:
            micros.append(())
        losses: list[Changes] = [()]
        recompute: list[Changes] = [()]
        kernel: Changes = ()
        if plan.entrypoint is None:
            kernel = tuple(fused_attention(plan))
            # The sum of the head's gradients is held twice in chunks: of few tokens the whole loss is smaller.
            losses = [(), (WHOLE_LOSS,)] if plan.loss_chunk_tokens else [(CHUNKED_LOSS,), ()]
            if plan.checkpoint_every_layers != 1:
                recompute = [(RECOMPUTE,)] + ([()] if plan.checkpoint_every_layers else [])
        return [(micro, (*kernel, *loss, *more)) for micro, loss, more in product(micros, losses, recompute)]

    def closest(self) -> Advice | None:
        """What needs least of all that was tried; None when that is the recipe as it is."""
        changes, reached = self._best
        if not changes:
            return None
        return self._needed(changes, reached, None, set())

    def _needed(self, taken: Changes, reached: Variant, goal: Sequence[Verdict] | None, without: set[Change]) -> Advice:
        """Without what is not needed for the goal, or for as little memory where there is no goal."""
        most = _need(reached.report)
        again = True
        while again:
            again = False
            for change in reversed(taken):
                rest = tuple(each for each in taken if each is not change)
                weaker = (each for each in self._weaker_than(change) if each not in without)
                for fewer in (rest, *((*rest, each) for each in weaker)):
                    tried = self._with(fewer)
                    if tried is None:
                        continue
                    if tried.report.verdict in goal if goal else _need(tried.report) <= most:
                        taken, reached, again = _merged(fewer), tried, True
                        break
        return Advice(changes=self._with_rounding(taken, reached.plan), variant=reached)

    def _with_rounding(self, changes: Changes, plan: Plan) -> Changes:
        """With the cost of sums of gradients that dsgen decides otherwise for another stage or offload."""
        base = self._base.plan
        rounded = base.accumulate == "fp32" != plan.accumulate and plan.accumulation > 1
        if not rounded or any(change.kind == "accumulate" for change in changes):
            return changes
        cost = next(rounded_sums(base)).cost
        last = next((each for each in reversed(changes) if each.kind in ("optimizer offload", "lower stage")), None)
        return tuple(replace(each, cost=f"{each.cost}; {cost}") if each is last else each for each in changes)

    def _weaker_than(self, change: Change) -> Changes:
        family = self._weaker.get(change.kind, ())
        return family[: family.index(change)] if change in family else ()

    def _with(self, changes: Iterable[Change]) -> Variant | None:
        """The recipe with these changes, or None when that is no sound recipe."""
        merged = _merged(changes)
        key = tuple(override for change in merged for override in change.overrides)
        if key not in self._known:
            try:
                self._known[key] = variant(self._loaded, key, self._base.report.calibration)
            except (FindingsError, DocumentError):
                self._known[key] = None
        found = self._known[key]
        if found is not None and _need(found.report) < _need(self._best[1].report):
            self._best = (merged, found)
        return found


def _merged(changes: Iterable[Change]) -> Changes:
    """A later change wins over those of the same settings. The cheapest first; the device of an offload comes before
    its other keys, which it would replace."""
    last: dict[str, Change] = {}
    for change in changes:
        last[_path(change.overrides[0])] = change
    return tuple(sorted(last.values(), key=lambda change: KINDS.index(change.kind)))


def _path(override: str) -> str:
    return override.partition("=")[0]


def _distinct(given: Sequence[Advice]) -> tuple[Advice, ...]:
    """More than what another one needs is no advice."""
    kept: list[Advice] = []
    for advice in given:
        overrides = set(advice.variant.overrides)
        fewer = any(set(other.variant.overrides) < overrides for other in given)
        same = any(set(other.variant.overrides) == overrides for other in kept)
        if not fewer and not same:
            kept.append(advice)
    return tuple(kept)


def _or_not(changes: Iterable[Change]) -> tuple[Changes, ...]:
    changes = tuple(changes)
    return ((), changes) if changes else ((),)


def _need(report: MemoryReport) -> float:
    """What is needed, by what there is: of the device or of the host, whichever is worse."""
    device, host = report.device, report.host
    return max(
        device.total_peak_bytes / device.capacity_bytes if device.capacity_bytes else 0.0,
        host.peak_bytes / host.capacity_bytes if host.capacity_bytes else 0.0,
    )
