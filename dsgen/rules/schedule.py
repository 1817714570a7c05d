"""The learning-rate schedule and its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsgen.catalog.deepspeed_keys import Params
from dsgen.catalog.lookup import alike, nearest
from dsgen.catalog.optimizers import class_names, kind_problem, schedule_types, torch_schedules
from dsgen.findings import Edit, Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, lookup, number, shown

PARAMETERS = ("scheduler", "params")
DECAYING = ("WarmupDecayLR", "WarmupCosineLR")

_CHECKED_SINCE = {
    "warmup_num_steps": "0.19.3",
    "lr_range_test_step_size": "0.19.4",
    "cycle_first_step_size": "0.19.4",
    "cycle_second_step_size": "0.19.4",
}
"""Numbers of steps that are positive -> the version from which on DeepSpeed checks it (runtime/lr_schedules.py)."""

_WHOLE_ONLY = ("warmup_num_steps", "lr_range_test_step_size")
"""Those that it checks to be of Python's type int."""


@rule("SCH001")
def parameters_are_known(view: View) -> Iterator[Problem]:
    """A parameter that the schedule does not take.

    The class stops with a TypeError "unexpected keyword argument", after the model is loaded (runtime/lr_schedules.py;
    of torch's schedules the parameters are those of torch 2.13). `verbose` is a warning there: older releases of torch
    have it.

    Example:
        {"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 100, "warmup_max_lr": 1e-5}}}

    Instead:
        {"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 100, "warmup_min_ratio": 0.1}}}

    Since: DeepSpeed 0.14
    """
    known = _known(view)
    if known is None and not (view.schedule == "constant" and view.kind == "recipe"):
        return
    names = known.names if known is not None else ()
    of_torch = view.schedule not in view.keys.schedulers
    for key in view.schedule_parameters:
        if key in names or (key == "last_batch_iteration" and view.kind == "ds_config" and not of_torch):
            continue
        near = nearest(str(key), names, 1)
        help = f"did you mean {near[0]}?" if near else f"{view.schedule} takes {', '.join(names) or 'none'}"
        if view.schedule == "WarmupCosineLR" and key in _OF_COSINE:
            help, near = _OF_COSINE[key], ()
        sure = bool(near) and alike(str(key), near[0]) and near[0] not in view.schedule_parameters
        yield Problem(
            path=(*PARAMETERS, key),
            message=f"{view.schedule} has no parameter {key!r}",
            help=help,
            on_key=True,
            severity=Severity.WARNING if of_torch and key == "verbose" else None,
            fix=(Edit(action="rename", path=(*PARAMETERS, key), to=(*PARAMETERS, near[0])),)
            if sure and view.kind == "ds_config"
            else (),
        )


_OF_COSINE = {
    "warmup_max_lr": "remove it: WarmupCosineLR peaks at the optimizer's lr",
    "warmup_min_lr": "write warmup_min_ratio: the rate at the start as a part of the optimizer's lr",
}
"""Parameter of other schedules -> what WarmupCosineLR has in its place."""


def _known(view: View) -> Params | None:
    """What the schedule takes as parameters, where DeepSpeed has it, or builds torch's."""
    known = view.keys.schedulers.get(view.schedule or "")
    if known is not None or view.kind != "ds_config" or _refuses_torch(view):
        return known
    return torch_schedules().get(view.schedule or "")


def _refuses_torch(view: View) -> bool:
    """Whether DeepSpeed's optimizer is one that torch's schedules do not take, or may be."""
    return view.stage != 0 or view.precision != "fp32"


@rule("SCH002")
def parameters_have_the_right_kind(view: View) -> Iterator[Problem]:
    """A parameter of the wrong type or range.

    DeepSpeed checks numbers of warm-up steps to be positive (since 0.19.3), and those of a cycle or of a range test
    (since 0.19.4): ValueError after the model is loaded. An unknown warmup_type is taken as `log` with a warning in the
    log.

    Example:
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}}

    Instead:
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}}}

    Since: DeepSpeed 0.14
    """
    known = schedule_types().get(view.schedule or "")
    not_finite = view.not_finite
    for key, value in view.schedule_parameters.items():
        problem = kind_problem(value, known.parameters[key]) if known and key in known.parameters else None
        if (*PARAMETERS, key) in not_finite:
            continue
        if problem is None or (view.kind != "recipe" and (value == "auto" or _is_rates(key, value))):
            continue
        yield Problem(
            path=(*PARAMETERS, key),
            message=f"{key}: {problem}, got {shown(value)}"
            + (", which DeepSpeed takes as log" if key == "warmup_type" and view.kind != "recipe" else ""),
            help="write 1, or more" if known and known.parameters[key] == "positive" and value == 0 else "",
            severity=None if view.kind == "recipe" or _is_refused(view, key, value) else Severity.WARNING,
        )


def _is_rates(key: str, value: Any) -> bool:
    """Whether it is a list of learning rates, one for each group of parameters."""
    return str(key).endswith("_lr") and isinstance(value, list) and all(number(each) is not None for each in value)


def _is_refused(view: View, key: str, value: Any) -> bool:
    """Whether DeepSpeed fails on a value of a wrong kind."""
    if key == "warmup_type":
        return False
    steps = number(value)
    if steps is None:
        return not isinstance(value, bool)
    since = _CHECKED_SINCE.get(key)
    return since is not None and view.since(since) and (steps <= 0 or key in _WHOLE_ONLY)


@rule("SCH003")
def required_parameters_are_there(view: View) -> Iterator[Problem]:
    """A parameter without a default is missing.

    The class stops with a TypeError "missing required positional argument", after the model is loaded. total_num_steps
    is derived in a recipe that says its steps. Some schedules of torch are built from functions or other schedules,
    which no config can hold.

    Example:
        {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-5}}}

    Instead:
        {
          "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-5, "total_num_steps": 1000}
          }
        }

    Since: DeepSpeed 0.14
    """
    known = _known(view)
    if known is None or (view.kind == "ds_config" and not isinstance(lookup(view.config, PARAMETERS), Mapping)):
        return
    for key in known.required:
        if key in _OBJECTS:
            yield Problem(
                path="scheduler.type",
                message=f"{view.schedule} of torch needs {key}: {_OBJECTS[key]}, which no config can hold: DeepSpeed "
                "stops with an error",
                help=f"choose among {', '.join(view.keys.schedulers)}, or pass a function as lr_scheduler to "
                "initialize",
            )
            return
    for key in known.required:
        if key in view.schedule_parameters or (key == "total_num_steps" and view.derives_steps and view.epochs is None):
            continue
        yield Problem(
            path=PARAMETERS,
            message=f"{view.schedule} needs {key}"
            + (": the steps of an epoch are not known before the data is read" if view.epochs is not None else ""),
            help=f"give {key}",
        )


_OBJECTS = {"lr_lambda": "a function", "schedulers": "other schedules"}
"""Parameters of torch's schedules that are objects of a program -> what they are."""


@rule("SCH004", ds_config=Severity.WARNING)
def warmup_ends_before_the_schedule(view: View) -> Iterator[Problem]:
    """Warm-up that is as long as the whole schedule.

    The learning rate never decays. DeepSpeed only logs a warning (runtime/lr_schedules.py).

    Example:
        {
          "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"warmup_num_steps": 1000, "warmup_max_lr": 1e-5, "total_num_steps": 100}
          }
        }

    Instead:
        {
          "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-5, "total_num_steps": 100}
          }
        }

    Since: DeepSpeed 0.14
    """
    warmup = number(view.schedule_parameters.get("warmup_num_steps"))
    total = number(view.schedule_parameters.get("total_num_steps", view.training_steps))
    if warmup is None or total is None:
        return
    if view.schedule in DECAYING and warmup >= total:
        path = (*PARAMETERS, "warmup_num_steps")
        yield Problem(
            path=path,
            message=f"warm-up of {warmup:g} steps does not end before the schedule does at {total:g}",
            help=f"write a tenth of the steps or less ({view.spell(path)}), or train longer",
        )


@rule("SCH005", Severity.WARNING)
def schedule_ends_with_training(view: View) -> Iterator[Problem]:
    """The schedule's total_num_steps is not the number of steps that are trained.

    The learning rate is not at its end when training is, or stays there for the rest of it.

    Example (recipe):
        schedule: {type: WarmupCosineLR, total_num_steps: 1000}
        length: {steps: 100}

    Instead:
        schedule: {type: WarmupCosineLR}
        length: {steps: 100}

    Since: dsgen 0.1
    """
    total, steps = number(view.schedule_parameters.get("total_num_steps")), view.training_steps
    if steps is None or total is None or total == steps:
        return
    yield Problem(
        path=(*PARAMETERS, "total_num_steps"),
        message=f"the schedule ends at step {total:g}, training at step {steps}",
        help="leave total_num_steps out: it follows the length of training",
    )


@rule("SCH006", Severity.WARNING)
def schedule_sets_the_peak(view: View) -> Iterator[Problem]:
    """The schedule's own peak learning rate differs from the optimizer's.

    The schedule wins: it sets the rate of every step (runtime/lr_schedules.py). transformers refuses such a pair.

    Example:
        {
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 3e-5}}
        }

    Instead:
        {
          "optimizer": {"type": "AdamW", "params": {"lr": 3e-5}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 3e-5}}
        }

    Since: DeepSpeed 0.14
    """
    peak = number(view.schedule_parameters.get("warmup_max_lr"))
    rate = number(view.optimizer_parameters.get("lr"))
    known = _known(view)
    taken = known is None or "warmup_max_lr" in known.names
    if peak is not None and rate is not None and peak != rate and taken:
        yield Problem(
            path=(*PARAMETERS, "warmup_max_lr"),
            message=f"warmup_max_lr {peak:g} overrides the optimizer's lr {rate:g}",
            help="leave warmup_max_lr out: it follows the optimizer's lr"
            if view.kind == "recipe" or (view.schedule == "WarmupLR" and view.since("0.17.2"))
            else "write the same number in both places",
        )


@rule("SCH007", Severity.WARNING)
def warmup_is_at_least_two_steps(view: View) -> Iterator[Problem]:
    """Warm-up of one step, or a training that ends with it.

    DeepSpeed warms up over at least two steps (runtime/lr_schedules.py), and the first step of a warm-up from nothing
    has a learning rate of 0.

    Example:
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1}}}

    Instead:
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2}}}

    Since: DeepSpeed 0.14
    """
    if number(view.schedule_parameters.get("warmup_num_steps")) == 1:
        yield Problem(
            path=(*PARAMETERS, "warmup_num_steps"),
            message="DeepSpeed makes a warm-up of 1 step one of 2",
            help="write 2, or `type: constant` to train without warm-up"
            if view.kind == "recipe"
            else "write 2, or leave the schedule out to train without warm-up",
        )
    elif view.schedule in (*DECAYING, "WarmupLR") and (view.training_steps or 3) <= 2:
        yield Problem(
            path="length",
            message=f"{view.training_steps} step{'s' if view.training_steps == 2 else ''} of training: the learning "
            "rate only warms up from nothing",
            help="train more steps, or write `schedule: {type: constant}`",
        )


@rule("SCH008")
def schedule_is_known(view: View) -> Iterator[Problem]:
    """A schedule type that neither DeepSpeed nor torch has, or one of torch under ZeRO or with 16-bit weights.

    DeepSpeed: "does not recognize LR scheduler" (runtime/engine.py, _scheduler_from_config); names are compared with
    their case. Schedules of torch are found by name, but stop with a TypeError "is not an Optimizer" on the optimizers
    that DeepSpeed wraps for ZeRO, fp16 and bf16.

    Example:
        {"scheduler": {"type": "WarmupLr", "params": {"warmup_num_steps": 10}}}

    Instead:
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}}

    Since: DeepSpeed 0.14
    """
    if view.kind != "ds_config" or view.schedule is None or view.schedule in view.keys.schedulers:
        return
    if view.schedule not in class_names("torch_schedules"):
        near = nearest(view.schedule, view.keys.schedulers)
        yield Problem(
            path="scheduler.type",
            message=f"neither DeepSpeed nor torch has a schedule {shown(view.schedule)}: DeepSpeed refuses to start",
            help=f"did you mean {' or '.join(near)}?" if near else f"choose among {', '.join(view.keys.schedulers)}",
        )
    elif view.stage or view.precision in ("fp16", "bf16"):
        where = f"at stage {view.stage}" if view.stage else f"in {view.precision}"
        yield Problem(
            path="scheduler.type",
            message=f"{view.schedule} is torch's, which does not take DeepSpeed's optimizer {where}: TypeError",
            help=f"choose among {', '.join(view.keys.schedulers)}, or pass a function as lr_scheduler to initialize",
        )


@rule("SCH009")
def schedule_has_parameters(view: View) -> Iterator[Problem]:
    """A scheduler section without params, or without a type.

    Without params DeepSpeed stops with a TypeError "argument after ** must be a mapping" (runtime/engine.py,
    _scheduler_from_config). Without a type it takes the section for no schedule at all (runtime/config.py,
    get_scheduler_name); an empty section is a warning.

    Example:
        {"scheduler": {"type": "WarmupLR"}}

    Instead:
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}}}

    Since: DeepSpeed 0.14
    """
    section = view.config.get("scheduler")
    if view.kind != "ds_config" or not isinstance(section, Mapping):
        return
    if section.get("type") is None:
        yield Problem(
            path="scheduler",
            message="the scheduler section has no type: DeepSpeed ignores the whole section",
            help='give "type", for example "WarmupLR"' + ("" if section else ", or remove it"),
            on_key=True,
            severity=None if section else Severity.WARNING,
        )
    elif section.get("params") is None:
        yield Problem(
            path="scheduler",
            message="the scheduler section has no params: DeepSpeed stops with a TypeError",
            help='write "params": {} for the defaults' if _needs_nothing(view) else "give params",
            on_key=True,
        )


def _needs_nothing(view: View) -> bool:
    known = view.keys.schedulers.get(view.schedule or "")
    return known is not None and not known.required


@rule("SCH010", Severity.WARNING)
def steps_are_written_whole(view: View) -> Iterator[Problem]:
    """A number of steps that is written with a decimal point.

    DeepSpeed's own reader makes 10.0 a 10, so it works from a file. From a dict, and from a file that transformers
    reads, it stays 10.0, and DeepSpeed refuses it: "warmup_num_steps must be a positive integer"
    (runtime/lr_schedules.py).

    Example:
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10.0}}}

    Instead:
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}}

    Since: DeepSpeed 0.19.3
    """
    for key in _WHOLE_ONLY:
        value = view.schedule_parameters.get(key)
        if view.kind != "ds_config" or not view.since(_CHECKED_SINCE[key]) or not isinstance(value, float):
            continue
        if number(value) is not None and value > 0 and value.is_integer():
            yield Problem(
                path=(*PARAMETERS, key),
                message=f"{key} {value} is refused from a dict: "
                + (
                    "that is what transformers passes"
                    if view.framework == "transformers"
                    else "it works from a file only"
                ),
                help=f"write {value:.0f}",
                severity=Severity.ERROR if view.framework == "transformers" else None,
            )


@rule("SCH011", Severity.WARNING)
def decay_has_a_peak(view: View) -> Iterator[Problem]:
    """WarmupDecayLR without warmup_max_lr.

    Its peak is then 0.001, whatever the optimizer's lr is (runtime/lr_schedules.py, WarmupDecayLR). WarmupLR takes the
    optimizer's lr since 0.17.2; before, its peak was 0.001 as well.

    Example:
        {
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
          "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 1000, "warmup_num_steps": 100}}
        }

    Instead:
        {
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
          "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"total_num_steps": 1000, "warmup_num_steps": 100, "warmup_max_lr": 1e-5}
          }
        }

    Since: DeepSpeed 0.14
    """
    params = lookup(view.config, PARAMETERS)
    fixed = view.schedule == "WarmupDecayLR" or (view.schedule == "WarmupLR" and not view.since("0.17.2"))
    if view.kind != "ds_config" or not fixed or not isinstance(params, Mapping) or "warmup_max_lr" in params:
        return
    rate = view.optimizer_parameters.get("lr")
    if number(rate) == 0.001:
        return
    yield Problem(
        path=PARAMETERS,
        message=f"{view.schedule} without warmup_max_lr peaks at 0.001"
        + (f", not at the optimizer's lr {rate}" if number(rate) is not None else ", whatever the optimizer's lr is"),
        help="give warmup_max_lr" + (": " + ('"auto"' if view.framework == "transformers" else "the lr that is meant")),
    )
