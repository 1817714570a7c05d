"""The learning-rate schedule and its parameters."""

from __future__ import annotations

from collections.abc import Iterator

from dsgen.catalog.lookup import nearest
from dsgen.catalog.optimizers import kind_problem, schedule_types
from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, shown

PARAMETERS = ("scheduler", "params")
DECAYING = ("WarmupDecayLR", "WarmupCosineLR")


@rule("SCH001")
def parameters_are_known(view: View) -> Iterator[Problem]:
    """A parameter that the schedule does not take: TypeError "unexpected keyword argument", after loading the model."""
    known = schedule_types().get(view.schedule or "")
    if known is None and view.schedule != "constant":
        return
    names = known.parameters if known is not None else {}
    for key in view.schedule_parameters:
        if key in names:
            continue
        near = nearest(key, names, 1)
        takes = f"{view.schedule} takes {', '.join(names) or 'none'}"
        yield Problem(
            path=(*PARAMETERS, key),
            message=f"{view.schedule} has no parameter {key!r}",
            help=f"did you mean {near[0]}?" if near else takes,
            on_key=True,
        )


@rule("SCH002")
def parameters_have_the_right_kind(view: View) -> Iterator[Problem]:
    """A parameter of the wrong type or range. An unknown warmup_type is taken as `log` with a warning in the log."""
    known = schedule_types().get(view.schedule or "")
    for key, value in view.schedule_parameters.items():
        problem = kind_problem(value, known.parameters[key]) if known and key in known.parameters else None
        if problem is not None:
            yield Problem(path=(*PARAMETERS, key), message=f"{key}: {problem}, got {shown(value)}")


@rule("SCH003")
def required_parameters_are_there(view: View) -> Iterator[Problem]:
    """A parameter without a default is missing. total_num_steps is derived in a recipe that says its steps."""
    known = schedule_types().get(view.schedule or "")
    if known is None:
        return
    for key in known.required:
        if key in view.schedule_parameters or (key == "total_num_steps" and view.derives_steps and view.epochs is None):
            continue
        yield Problem(
            path=PARAMETERS,
            message=f"{known.name} needs {key}"
            + (": the steps of an epoch are not known before the data is read" if view.epochs is not None else ""),
            help=f"give {key}",
        )


@rule("SCH004")
def warmup_ends_before_the_schedule(view: View) -> Iterator[Problem]:
    """Warm-up as long as the whole schedule: the learning rate never decays. DeepSpeed only logs a warning."""
    warmup = view.schedule_parameters.get("warmup_num_steps")
    total = view.schedule_parameters.get("total_num_steps", view.training_steps)
    if not isinstance(warmup, (int, float)) or not isinstance(total, (int, float)):
        return
    if view.schedule in DECAYING and warmup >= total:
        yield Problem(
            path=(*PARAMETERS, "warmup_num_steps"),
            message=f"warm-up of {warmup:g} steps does not end before the schedule does at {total:g}",
            help="write a tenth of the steps or less (schedule.warmup_num_steps), or train longer",
        )


@rule("SCH005", Severity.WARNING)
def schedule_ends_with_training(view: View) -> Iterator[Problem]:
    """The schedule's total_num_steps is not the number of steps that are trained."""
    total, steps = view.schedule_parameters.get("total_num_steps"), view.training_steps
    if steps is None or not isinstance(total, (int, float)) or total == steps:
        return
    yield Problem(
        path=(*PARAMETERS, "total_num_steps"),
        message=f"the schedule ends at step {total:g}, training at step {steps}",
        help="leave total_num_steps out: it follows the length of training",
    )


@rule("SCH006", Severity.WARNING)
def schedule_sets_the_peak(view: View) -> Iterator[Problem]:
    """The schedule's own peak learning rate differs from the optimizer's: the schedule wins."""
    peak = view.schedule_parameters.get("warmup_max_lr")
    rate = view.optimizer_parameters.get("lr")
    if isinstance(peak, (int, float)) and isinstance(rate, (int, float)) and peak != rate:
        yield Problem(
            path=(*PARAMETERS, "warmup_max_lr"),
            message=f"warmup_max_lr {peak:g} overrides the optimizer's lr {rate:g}",
            help="leave warmup_max_lr out: it follows the optimizer's lr",
        )


@rule("SCH007", Severity.WARNING)
def warmup_is_at_least_two_steps(view: View) -> Iterator[Problem]:
    """Warm-up of one step, or a training that ends with it: DeepSpeed warms up over at least two steps.

    The first step of a warm-up from nothing has a learning rate of 0.
    """
    if view.schedule_parameters.get("warmup_num_steps") == 1:
        yield Problem(
            path=(*PARAMETERS, "warmup_num_steps"),
            message="DeepSpeed makes a warm-up of 1 step one of 2",
            help="write 2, or `type: constant` to train without warm-up",
        )
    elif view.schedule in (*DECAYING, "WarmupLR") and (view.training_steps or 3) <= 2:
        yield Problem(
            path="length",
            message=f"{view.training_steps} step{'s' if view.training_steps == 2 else ''} of training: the learning "
            "rate only warms up from nothing",
            help="train more steps, or write `schedule: {type: constant}`",
        )
