"""The optimizer and its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsgen.catalog.deepspeed_keys import Params
from dsgen.catalog.lookup import alike, nearest
from dsgen.catalog.optimizers import class_names, kind_problem, optimizer_type, optimizer_types
from dsgen.findings import Edit, Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, lookup, number, shown, truth

PARAMETERS = ("optimizer", "params")


@rule("OPT001")
def optimizer_is_known(view: View) -> Iterator[Problem]:
    """An optimizer type that DeepSpeed does not build by name.

    DeepSpeed: "is not a supported DeepSpeed Optimizer" (runtime/engine.py, _do_sanity_check). It builds its own types
    without regard to case, and classes of torch.optim by their exact name. OneBitAdam, OneBitLamb and ZeroOneAdam are
    gone since 0.19.7.

    Example:
        {"optimizer": {"type": "AdmaW", "params": {"lr": 1e-5}}}

    Instead:
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}

    Since: DeepSpeed 0.14
    """
    if view.kind != "recipe":
        yield from _known_to_deepspeed(view)
        return
    if view.optimizer is None or optimizer_type(view.optimizer) is not None:
        return
    near = nearest(view.optimizer, optimizer_types())
    yield Problem(
        path="optimizer.type",
        message=f"optimizer {view.optimizer!r} is not one that dsgen knows DeepSpeed to train with",
        help=f"did you mean {' or '.join(near)}?" if near else f"choose among {', '.join(optimizer_types())}",
    )


def _known_to_deepspeed(view: View) -> Iterator[Problem]:
    name = _type(view)
    if name is None or name in class_names("torch"):
        return
    gone = {each.lower() for each in class_names("gone")}
    own = {*view.keys.optimizers, *(each.lower() for each in class_names("mup"))}
    if not view.since("0.19.7"):
        own |= gone
    if name.lower() in own:
        return
    near = nearest(name, (*optimizer_types(), *class_names("torch")))
    removed = name.lower() in gone
    if name.lower() in _CLASSES:
        help = _CLASSES[name.lower()]
    elif near and not removed:
        help = f"did you mean {' or '.join(near)}?"
    else:
        help = f"choose among {_choices()}"
    yield Problem(
        path="optimizer.type",
        message=f"DeepSpeed {view.deepspeed} {'no longer has' if removed else 'knows no'} optimizer {shown(name)}: "
        "it refuses to start",
        help=help,
    )


_CLASSES = {
    f"{place}{kind.lower()}": f"write {kind}: DeepSpeed builds its {made} for that"
    + ("" if place == "fused" else " with offload_optimizer")
    for place, kind, made in (
        ("fused", "AdamW", "FusedAdam"),
        ("fused", "Adam", "FusedAdam"),
        ("fused", "Lion", "FusedLion"),
        ("fused", "Lamb", "FusedLamb"),
        ("deepspeedcpu", "AdamW", "DeepSpeedCPUAdam"),
        ("deepspeedcpu", "Adam", "DeepSpeedCPUAdam"),
        ("deepspeedcpu", "Adagrad", "DeepSpeedCPUAdagrad"),
        ("deepspeedcpu", "Lion", "DeepSpeedCPULion"),
    )
} | {
    "fusedadam": "write AdamW: DeepSpeed builds its FusedAdam for that",
    "deepspeedcpuadam": "write AdamW: DeepSpeed builds its DeepSpeedCPUAdam for that with offload_optimizer",
}
"""Class of DeepSpeed's in lower case, which is no type -> what to write."""


def _choices() -> str:
    return ", ".join((*optimizer_types(), "or a class of torch.optim"))


@rule("OPT002")
def parameters_are_known(view: View) -> Iterator[Problem]:
    """A parameter that the optimizer does not take.

    The class that DeepSpeed builds stops with a TypeError "unexpected keyword argument" at start, after the model is
    loaded; max_grad_norm is refused for every type (runtime/engine.py, _configure_basic_optimizer).

    Example:
        {"optimizer": {"type": "AdamW", "params": {"learning_rate": 1e-5}}}

    Instead:
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}

    Since: DeepSpeed 0.14
    """
    name, params = _type(view), _params(view)
    if name is None:
        return
    for key in view.optimizer_parameters:
        if (params is None or key in params.names) and key != "max_grad_norm":
            continue
        names, called = (params.names if params is not None else ()), _called(name)
        other = _OTHER_NAMES.get(str(key).lower())
        near = (other,) if other in names else nearest(str(key), names, 1)
        help = f"did you mean {near[0]}?" if near else f"{called} takes {', '.join(names)}"
        if key == "max_grad_norm":
            help, near = "write gradient_clipping at the top level instead", ()
        sure = bool(near) and (near[0] == other or alike(str(key), near[0])) and view.kind == "ds_config"
        yield Problem(
            path=(*PARAMETERS, key),
            message=f"{called} has no parameter {key!r}",
            help=help,
            on_key=True,
            fix=(Edit(action="rename", path=(*PARAMETERS, key), to=(*PARAMETERS, near[0])),)
            if sure and near[0] not in view.optimizer_parameters
            else (),
        )


_OTHER_NAMES = {"learning_rate": "lr", "epsilon": "eps", "beta": "betas", "wd": "weight_decay"}
"""Names that other libraries have for a parameter -> DeepSpeed's."""


@rule("OPT003")
def parameters_have_the_right_kind(view: View) -> Iterator[Problem]:
    """A parameter of the wrong type or range.

    A TypeError or ValueError in the optimizer, after the model is loaded; some classes take a number out of range
    without a word.

    Example:
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9]}}}

    Instead:
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.999]}}}

    Since: DeepSpeed 0.14
    """
    name = _type(view)
    known = optimizer_type(name) if name else None
    if known is None:
        return
    not_finite = view.not_finite
    for key, value in view.optimizer_parameters.items():
        problem = kind_problem(value, known.parameters[key]) if key in known.parameters else None
        if problem is None or (value == "auto" and view.kind != "recipe") or (*PARAMETERS, key) in not_finite:
            continue
        yield Problem(
            path=(*PARAMETERS, key),
            message=f"{key}: {problem}, got {shown(value)}"
            + (", which DeepSpeed takes as true" if key in _READ_BY_TRUTH and isinstance(value, str) and value else ""),
            help=f"write {shown(truth(value))}" if isinstance(value, str) and known.parameters[key] == "bool" else "",
            severity=Severity.WARNING if view.kind != "recipe" and _is_taken(view, key, value) else None,
        )


_READ_BY_TRUTH = ("torch_adam", "adam_w_mode")
"""Switches for which every text counts as true (runtime/engine.py, _configure_basic_optimizer)."""


def _is_taken(view: View, key: str, value: Any) -> bool:
    """Whether the optimizer takes a value of a wrong kind: true counts as 1, and only torch's classes check ranges."""
    if isinstance(value, bool) or (key in _READ_BY_TRUTH and truth(value) is True):
        return True
    of_torch = truth(view.optimizer_parameters.get("torch_adam")) is True or str(view.optimizer).lower() == "adagrad"
    return number(value) is not None and (value in (0, 1) or not of_torch)


@rule("OPT004")
def optimizer_works_under_zero(view: View) -> Iterator[Problem]:
    """An optimizer that ZeRO refuses unless `zero_allow_untested_optimizer` is set.

    DeepSpeed: "You are using an untested ZeRO Optimizer" (runtime/engine.py, _do_optimizer_sanity_check).

    Example:
        {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization": {"stage": 2}}

    Instead:
        {
          "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
          "zero_optimization": {"stage": 2},
          "zero_allow_untested_optimizer": true
        }

    Since: DeepSpeed 0.14
    """
    if not view.stage or truth(lookup(view.config, "zero_allow_untested_optimizer")) is True:
        return
    client = view.client_optimizer
    if view.kind == "ds_config" and client not in (None, "none"):
        if str(client).lower() not in {each.lower() for each in class_names("tested")}:
            yield Problem(
                path="zero_optimization.stage",
                message=f"{client}, which the script passes, is untested under ZeRO: DeepSpeed refuses to start at "
                f"stage {view.stage}",
                help='write "zero_allow_untested_optimizer": true at the top level',
            )
        return
    name = view.optimizer
    known = optimizer_type(name) if name else None
    if name is None or (known is not None and known.zero):
        return
    if known is None and (view.kind == "recipe" or name not in (*class_names("torch"), "MuSGD")):
        return
    yield Problem(
        path="optimizer.type",
        message=f"{_called(name)} is untested under ZeRO: DeepSpeed refuses to start at stage {view.stage}",
        help="take AdamW, Lion, Adagrad or Muon, or set `zero_allow_untested_optimizer: true` among the raw "
        "DeepSpeed keys"
        if view.kind == "recipe"
        else 'take AdamW, Lion or Adagrad, or write "zero_allow_untested_optimizer": true at the top level',
    )


@rule("OPT005", Severity.WARNING)
def adam_trains_adamw(view: View) -> Iterator[Problem]:
    """Type `Adam` trains AdamW.

    DeepSpeed's adam_w_mode is on unless it is turned off (runtime/engine.py, _configure_basic_optimizer). Without
    weight decay the two are the same; torch's AdamW, which `torch_adam` takes, has one of 0.01 by default.

    Example:
        {"optimizer": {"type": "Adam", "params": {"lr": 1e-5, "weight_decay": 0.1}}}

    Instead:
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.1}}}

    Since: DeepSpeed 0.14
    """
    name = _type(view)
    if name is None or name.lower() != "adam" or "adam_w_mode" in view.optimizer_parameters:
        return
    decays = bool(view.optimizer_parameters.get("weight_decay"))
    torch = truth(view.optimizer_parameters.get("torch_adam")) is True
    by_default = view.kind == "ds_config" and torch and "weight_decay" not in view.optimizer_parameters
    if view.kind == "recipe" and not decays:
        return  # without weight decay the two are the same
    if by_default:
        message = "Adam with torch_adam trains torch's AdamW, whose weight decay is 0.01 where none is said, as here"
    elif decays:
        message = "Adam with weight decay trains AdamW: DeepSpeed turns adam_w_mode on by itself"
    else:
        message = "Adam means AdamW in DeepSpeed; without weight decay, as here, the two are the same"
    yield Problem(
        path="optimizer.type",
        message=message,
        help="write AdamW and its weight_decay, or `adam_w_mode: false` for Adam without decoupled decay"
        if by_default
        else "write AdamW, or `adam_w_mode: false` for Adam with L2 regularisation",
        severity=None if decays or by_default else Severity.INFO,
    )


@rule("OPT006")
def parameters_fit_the_class(view: View) -> Iterator[Problem]:
    """A parameter that only another class behind the same optimizer type takes.

    DeepSpeed builds its own fused optimizer on the device, its CPU optimizer with offload, and torch's with
    `torch_adam`; each is a TypeError for the parameters of the others.

    Example:
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "fused": true}}}

    Instead:
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "fused": true, "torch_adam": true}}}

    Since: DeepSpeed 0.14
    """
    params = _params(view)
    if params is None or not params.by_place:
        return
    if truth(view.optimizer_parameters.get("torch_adam")) is True and "torch" in params.by_place:
        place, words = "torch", "torch's optimizer (`torch_adam: true`)"
    elif view.offload_optimizer in ("cpu", "nvme") and "host" in params.by_place:
        place, words = "host", "DeepSpeed's CPU optimizer"
    else:
        place, words = "device", "DeepSpeed's optimizer on the device"
    taken_there = params.by_place.get(place, frozenset())
    for key, value in view.optimizer_parameters.items():
        taken = key not in params.names or key in taken_there
        if key == "amsgrad" and "torch" in params.by_place and place != "torch":
            taken = value is not True  # it has the parameter, and refuses it
        if not taken:
            others = [other for other, names in params.by_place.items() if key in names and other != place]
            yield Problem(
                path=(*PARAMETERS, key),
                message=f"{words} takes no {key}",
                help="remove it" + (", or add `torch_adam: true`" if "torch" in others else ""),
                on_key=True,
            )


@rule("OPT007", ds_config=Severity.WARNING)
def adamw_stays_adamw(view: View) -> Iterator[Problem]:
    """`adam_w_mode: false` beside type AdamW.

    The type wins (runtime/engine.py, _configure_basic_optimizer): it trains AdamW.

    Example:
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "adam_w_mode": false}}}

    Instead:
        {"optimizer": {"type": "Adam", "params": {"lr": 1e-5, "adam_w_mode": false}}}

    Since: DeepSpeed 0.14
    """
    name = _type(view)
    if name and name.lower() == "adamw" and view.optimizer_parameters.get("adam_w_mode") is False:
        yield Problem(
            path=(*PARAMETERS, "adam_w_mode"),
            message="adam_w_mode: false does nothing with type AdamW",
            help="write type Adam for Adam with L2 regularisation, or remove it",
            on_key=True,
        )


@rule("OPT008", Severity.WARNING)
def one_optimizer_counts(view: View) -> Iterator[Problem]:
    """An optimizer section, and an optimizer that the script passes.

    DeepSpeed takes the script's and ignores the section without a word (runtime/engine.py, _configure_optimizer).

    Example:
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}

    Instead:
        # whole file
        {
          "train_micro_batch_size_per_gpu": 1,
          "gradient_clipping": 1.0,
          "bf16": {"enabled": true},
          "zero_optimization": {"stage": 2}
        }

    Options: --client-optimizer AdamW
    Since: DeepSpeed 0.14
    """
    if view.kind == "ds_config" and view.client_optimizer not in (None, "none") and view.optimizer is not None:
        yield Problem(
            path="optimizer",
            message=f"the script passes {view.client_optimizer}: DeepSpeed ignores the optimizer section",
            help="remove the section, or pass no optimizer to deepspeed.initialize",
            on_key=True,
        )


@rule("OPT009", Severity.WARNING)
def somebody_brings_an_optimizer(view: View) -> Iterator[Problem]:
    """No optimizer in the config, for a script of its own.

    The script then has to pass one to deepspeed.initialize. Where it does not, DeepSpeed refuses to start at stage 1
    and 2 ("zero stage 2 requires an optimizer"), fails at stage 3 with an AttributeError in the first backward pass,
    and at stage 0 with an AssertionError in the first step. A schedule needs an optimizer too.

    Example:
        # whole file
        {
          "train_micro_batch_size_per_gpu": 1,
          "gradient_clipping": 1.0,
          "bf16": {"enabled": true},
          "zero_optimization": {"stage": 2}
        }

    Instead:
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}

    Options: --framework native
    Since: DeepSpeed 0.14
    """
    if view.kind != "ds_config" or view.framework != "native" or lookup(view.config, "optimizer.type") is not None:
        return
    client = view.client_optimizer
    if client not in (None, "none"):
        return
    if client is None and view.offload_optimizer in ("cpu", "nvme"):
        return  # OFF013 says what the script has to pass
    effect = {
        0: "DeepSpeed fails in the first training step",
        1: "DeepSpeed refuses to start at stage 1",
        2: "DeepSpeed refuses to start at stage 2",
        3: "DeepSpeed fails in the first backward pass",
    }.get(view.stage if view.stage is not None else -1, "DeepSpeed fails")
    yield Problem(
        path="optimizer",
        message=f"there is no optimizer in the config, and the script passes none: {effect}"
        if client == "none"
        else f"there is no optimizer in the config: unless the script passes one to deepspeed.initialize, {effect}",
        help='give an optimizer section: {"type": "AdamW", "params": {"lr": 1e-5}}'
        + (", or say what the script passes: --client-optimizer AdamW" if client is None else ""),
        severity=Severity.ERROR if client == "none" else None,
    )


@rule("OPT010")
def section_has_a_type(view: View) -> Iterator[Problem]:
    """An optimizer section without a type.

    DeepSpeed takes it for no optimizer at all and ignores its parameters (runtime/config.py, get_optimizer_name).

    Example:
        {"optimizer": {"params": {"lr": 1e-5}}}

    Instead:
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}

    Since: DeepSpeed 0.14
    """
    section = view.config.get("optimizer")
    if view.kind == "ds_config" and isinstance(section, Mapping) and section and section.get("type") is None:
        yield Problem(
            path="optimizer",
            message="the optimizer section has no type: DeepSpeed ignores the whole section",
            help='give "type": "AdamW"',
            on_key=True,
        )


@rule("OPT011")
def muon_does_not_reduce_scatter(view: View) -> Iterator[Problem]:
    """Muon at stage 3 with reduce_scatter, which is on by default.

    DeepSpeed: "Muon and reduce scatter cannot be used together" (runtime/zero/stage3.py).

    Example:
        {"optimizer": {"type": "Muon", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 3}}

    Instead:
        {
          "optimizer": {"type": "Muon", "params": {"lr": 1e-3}},
          "zero_optimization": {"stage": 3, "reduce_scatter": false}
        }

    Since: DeepSpeed 0.18.9
    """
    name = _type(view)
    if (
        view.kind != "ds_config"
        or name is None
        or name.lower() != "muon"
        or view.stage != 3
        or not view.since("0.18.9")
    ):
        return
    if truth(lookup(view.config, "zero_optimization.reduce_scatter")) is not False:
        yield Problem(
            path="optimizer.type",
            message="DeepSpeed refuses Muon at stage 3 with reduce_scatter, which is on by default",
            help='write "reduce_scatter": false in zero_optimization',
        )


@rule("OPT012")
def lamb_scales_dynamically(view: View) -> Iterator[Problem]:
    """Lamb with a fixed loss scale.

    DeepSpeed: "lamb optimizer requires dynamic loss scaling" (runtime/engine.py, _do_sanity_check), in any precision.

    Example:
        {
          "optimizer": {"type": "Lamb", "params": {"lr": 1e-4}},
          "zero_optimization": {"stage": 0},
          "bf16": {"enabled": false},
          "fp16": {"enabled": true, "loss_scale": 128}
        }

    Instead:
        {
          "optimizer": {"type": "Lamb", "params": {"lr": 1e-4}},
          "zero_optimization": {"stage": 0},
          "bf16": {"enabled": false},
          "fp16": {"enabled": true, "loss_scale": 0}
        }

    Since: DeepSpeed 0.14
    """
    if (
        view.kind == "ds_config"
        and str(view.optimizer).lower() == "lamb"
        and number(lookup(view.config, "fp16.loss_scale"))
    ):
        yield Problem(
            path="fp16.loss_scale",
            message="DeepSpeed refuses Lamb with a fixed loss scale",
            help='write "loss_scale": 0 for a dynamic scale',
        )


@rule("OPT013", Severity.WARNING)
def scaled_optimizer_has_its_package(view: View) -> Iterator[Problem]:
    """MuAdam, MuAdamW or MuSGD, which need the package mup.

    DeepSpeed does not bring it along. Where it is not installed deepspeed.initialize stops with an UnboundLocalError
    (runtime/engine.py, _configure_basic_optimizer).

    Example:
        {"optimizer": {"type": "MuAdamW", "params": {"lr": 1e-5}}}

    Instead:
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}

    Since: DeepSpeed 0.14
    """
    name = _type(view)
    if view.kind == "ds_config" and name and name.lower() in {each.lower() for each in class_names("mup")}:
        yield Problem(
            path="optimizer.type",
            message=f"{name} needs the package mup: without it DeepSpeed fails at start with an UnboundLocalError",
            help="pip install mup on every node",
        )


def _type(view: View) -> str | None:
    """Type of the optimizer that DeepSpeed builds from the config; None where the script passes its own."""
    return view.optimizer if view.client_optimizer in (None, "none") else None


def _params(view: View) -> Params | None:
    """What the optimizer takes as parameters, where DeepSpeed has it by name."""
    name = _type(view)
    return view.keys.optimizers.get(name.lower()) if name else None


def _called(name: str) -> str:
    """The name of an optimizer as DeepSpeed documents it."""
    known = optimizer_type(name)
    return known.name if known is not None else shown(name).strip("'\"")
