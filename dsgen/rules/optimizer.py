"""The optimizer and its parameters."""

from __future__ import annotations

from collections.abc import Iterator

from dsgen.catalog.lookup import nearest
from dsgen.catalog.optimizers import kind_problem, optimizer_type, optimizer_types
from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, lookup, shown

PARAMETERS = ("optimizer", "params")


@rule("OPT001")
def optimizer_is_known(view: View) -> Iterator[Problem]:
    """An optimizer type that DeepSpeed does not build by name."""
    if view.optimizer is None or optimizer_type(view.optimizer) is not None:
        return
    near = nearest(view.optimizer, optimizer_types())
    yield Problem(
        path="optimizer.type",
        message=f"optimizer {view.optimizer!r} is not one that dsgen knows DeepSpeed to train with",
        help=f"did you mean {' or '.join(near)}?" if near else f"choose among {', '.join(optimizer_types())}",
    )


@rule("OPT002")
def parameters_are_known(view: View) -> Iterator[Problem]:
    """A parameter that the optimizer does not take: TypeError "unexpected keyword argument" at start."""
    known = optimizer_type(view.optimizer) if view.optimizer else None
    if known is None:
        return
    for key in view.optimizer_parameters:
        if key in known.parameters:
            continue
        near = nearest(key, known.parameters, 1)
        help = f"did you mean {near[0]}?" if near else f"{known.name} takes {', '.join(known.parameters)}"
        if key == "max_grad_norm":
            help = "write gradient_clipping at the top level instead"
        yield Problem(path=(*PARAMETERS, key), message=f"{known.name} has no parameter {key!r}", help=help, on_key=True)


@rule("OPT003")
def parameters_have_the_right_kind(view: View) -> Iterator[Problem]:
    """A parameter of the wrong type: TypeError in the optimizer, after the model is loaded."""
    known = optimizer_type(view.optimizer) if view.optimizer else None
    if known is None:
        return
    for key, value in view.optimizer_parameters.items():
        problem = kind_problem(value, known.parameters[key]) if key in known.parameters else None
        if problem is not None:
            yield Problem(path=(*PARAMETERS, key), message=f"{key}: {problem}, got {shown(value)}")


@rule("OPT004")
def optimizer_works_under_zero(view: View) -> Iterator[Problem]:
    """An optimizer that ZeRO refuses unless `zero_allow_untested_optimizer` is set (runtime/engine.py)."""
    known = optimizer_type(view.optimizer) if view.optimizer else None
    if known is None or known.zero or not view.stage:
        return
    if lookup(view.config, "zero_allow_untested_optimizer") is True:
        return
    yield Problem(
        path="optimizer.type",
        message=f"{known.name} is untested under ZeRO: DeepSpeed refuses to start at stage {view.stage}",
        help="take AdamW, Lion, Adagrad or Muon, or set `zero_allow_untested_optimizer: true` among the raw "
        "DeepSpeed keys",
    )


@rule("OPT005", Severity.WARNING)
def adam_trains_adamw(view: View) -> Iterator[Problem]:
    """Type `Adam` trains AdamW: DeepSpeed's adam_w_mode is on unless it is turned off (runtime/engine.py)."""
    if view.optimizer is None or view.optimizer.lower() != "adam" or "adam_w_mode" in view.optimizer_parameters:
        return
    if not view.optimizer_parameters.get("weight_decay"):
        return  # without weight decay the two are the same
    yield Problem(
        path="optimizer.type",
        message="Adam with weight decay trains AdamW: DeepSpeed turns adam_w_mode on by itself",
        help="write AdamW, or `adam_w_mode: false` for Adam with L2 regularisation",
    )


@rule("OPT006")
def parameters_fit_the_class(view: View) -> Iterator[Problem]:
    """A parameter that only another class behind the same optimizer type takes.

    DeepSpeed builds its own fused optimizer on the device, its CPU optimizer with offload, and torch's with
    `torch_adam`; each is a TypeError for the parameters of the others.
    """
    known = optimizer_type(view.optimizer) if view.optimizer else None
    if known is None:
        return
    if view.optimizer_parameters.get("torch_adam") is True and "torch" in known.by_place:
        place, words = "torch", "torch's optimizer (`torch_adam: true`)"
    elif view.offload_optimizer in ("cpu", "nvme") and "host" in known.by_place:
        place, words = "host", "DeepSpeed's CPU optimizer"
    else:
        place, words = "device", "DeepSpeed's optimizer on the device"
    for key, value in view.optimizer_parameters.items():
        taken = key not in known.parameters or key in known.by_place[place]
        if key == "amsgrad" and "torch" in known.by_place and place != "torch":
            taken = value is not True  # it has the parameter, and refuses it
        if not taken:
            others = [other for other, names in known.by_place.items() if key in names and other != place]
            yield Problem(
                path=(*PARAMETERS, key),
                message=f"{words} takes no {key}",
                help="remove it" + (", or add `torch_adam: true`" if "torch" in others else ""),
                on_key=True,
            )


@rule("OPT007")
def adamw_stays_adamw(view: View) -> Iterator[Problem]:
    """`adam_w_mode: false` beside type AdamW: the type wins (runtime/engine.py)."""
    if view.optimizer and view.optimizer.lower() == "adamw" and view.optimizer_parameters.get("adam_w_mode") is False:
        yield Problem(
            path=(*PARAMETERS, "adam_w_mode"),
            message="adam_w_mode: false does nothing with type AdamW",
            help="write type Adam for Adam with L2 regularisation, or remove it",
            on_key=True,
        )
