"""The learning-rate schedule and its parameters."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from dsgen.catalog.optimizers import kind_problem, schedule_types
from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View


@rule("SCH001")
def parameters_are_known(view: View) -> Iterator[Problem]:
    """A parameter that the schedule does not take: TypeError "unexpected keyword argument" after the model is loaded."""
    known = schedule_types().get(view.schedule or "")
    for key in view.schedule_parameters:
        if known is None or key in known.parameters:
            continue
        near = difflib.get_close_matches(key, known.parameters, n=1)
        yield Problem(
            path=f"scheduler.params.{key}",
            message=f"{known.name} has no parameter {key}",
            help=f"did you mean {near[0]}?" if near else f"{known.name} takes {', '.join(known.parameters)}",
            on_key=True,
        )


@rule("SCH002")
def parameters_have_the_right_kind(view: View) -> Iterator[Problem]:
    """A parameter of the wrong type. An unknown warmup_type is taken as `log` with no more than a warning in the log."""
    known = schedule_types().get(view.schedule or "")
    for key, value in view.schedule_parameters.items():
        problem = kind_problem(value, known.parameters[key]) if known and key in known.parameters else None
        if problem is not None:
            yield Problem(path=f"scheduler.params.{key}", message=f"{key}: {problem}, got {value!r}")


@rule("SCH003")
def required_parameters_are_there(view: View) -> Iterator[Problem]:
    """A parameter without a default is missing. total_num_steps is derived in a recipe that says its steps."""
    known = schedule_types().get(view.schedule or "")
    if known is None:
        return
    for key in known.required:
        if key in view.schedule_parameters or (key == "total_num_steps" and view.has_length and view.epochs is None):
            continue
        yield Problem(
            path="scheduler.params",
            message=f"{known.name} needs {key}"
            + (": the steps of an epoch are not known before the data is read" if view.epochs is not None else ""),
            help=f"give {key}",
        )


@rule("SCH004")
def warmup_ends_before_the_schedule(view: View) -> Iterator[Problem]:
    """Warm-up as long as the whole schedule: the learning rate never reaches its decay. DeepSpeed only logs a warning."""
    warmup = view.schedule_parameters.get("warmup_num_steps")
    total = view.schedule_parameters.get("total_num_steps", view.steps)
    if not isinstance(warmup, (int, float)) or not isinstance(total, (int, float)):
        return
    if view.schedule in ("WarmupDecayLR", "WarmupCosineLR") and warmup >= total:
        yield Problem(
            path="scheduler.params.warmup_num_steps",
            message=f"warm-up of {warmup:g} steps does not end before the schedule does at {total:g}",
            help="write a tenth of the steps or less",
        )


@rule("SCH005", Severity.WARNING)
def schedule_ends_with_training(view: View) -> Iterator[Problem]:
    """The schedule's total_num_steps is not the number of steps that are trained."""
    total = view.schedule_parameters.get("total_num_steps")
    if view.steps is None or not isinstance(total, (int, float)) or total == view.steps:
        return
    yield Problem(
        path="scheduler.params.total_num_steps",
        message=f"the schedule ends at step {total:g}, training at step {view.steps}",
        help="leave total_num_steps out: it follows the length of training",
    )


@rule("SCH006", Severity.WARNING)
def schedule_sets_the_peak(view: View) -> Iterator[Problem]:
    """The schedule's own peak learning rate differs from the optimizer's: the schedule wins."""
    peak = view.schedule_parameters.get("warmup_max_lr")
    rate = view.optimizer_parameters.get("lr")
    if isinstance(peak, (int, float)) and isinstance(rate, (int, float)) and peak != rate:
        yield Problem(
            path="scheduler.params.warmup_max_lr",
            message=f"warmup_max_lr {peak:g} overrides the optimizer's lr {rate:g}",
            help="leave warmup_max_lr out: it follows the optimizer's lr",
        )
