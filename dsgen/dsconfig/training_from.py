"""Precision, optimizer and schedule of a config as those of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsgen.catalog.optimizers import optimizer_type
from dsgen.dsconfig.import_notes import Notes, Remark
from dsgen.dsconfig.job import Job
from dsgen.dsconfig.settled import Config, taken
from dsgen.rules.view import dtype_named, shown, truth


def precision_section(rest: Config, stage: int, job: Job, notes: Notes) -> Config:
    """`precision`; what has no field of its own goes back into `rest`."""
    sections = {name: taken(rest, name) for name in ("fp16", "bf16")}
    on = next((name for name, section in sections.items() if truth(section.pop("enabled", False))), None)
    autos = [name for name in ("bf16", "fp16") if notes.auto(f"{name}.enabled")]
    if on is None and autos:
        on = next((name for name in autos if job.device is None or job.device.supports(name)), None)  # type: ignore[arg-type]
        why = f"{job.device.id} has {on}" if job.device and on else "the device has it" if on else "the device has none"
        notes.decided(f"{on or autos[0]}.enabled", "precision.type", on or "fp32", why)
    for name in autos:
        notes.derived(f"{name}.enabled", f"precision is {on or 'fp32'}")
    precision: Config = {"type": on or "fp32"}
    for name, section in sections.items():
        if name == on:
            continue
        if section:
            notes.left_out(name, f"the job trains in {on or 'fp32'}")
        for canonical in [path for path in notes.settled.autos if path.startswith(f"{name}.")]:
            notes.derived(canonical, f"it does nothing: the job trains in {on or 'fp32'}")
    if on is not None:
        more = _loss_scale(sections[on], precision, notes) if on == "fp16" else sections[on]
        if on == "bf16" and "check_grad_overflow" not in more and not notes.default_of("bf16.check_grad_overflow"):
            more["check_grad_overflow"] = notes.default("deepspeed.bf16.check_grad_overflow", False)
        if more:
            rest[on] = more
    types = rest.get("data_types")
    types = types if isinstance(types, dict) else {}
    notes.derived("data_types.grad_accum_dtype", f"{precision['type']}, DeepSpeed's default")
    accumulate = types.pop("grad_accum_dtype", None)
    if precision["type"] != "fp32" and (accumulate is not None or stage >= 2):
        path = "precision.accumulate"
        said = dtype_named(accumulate) or accumulate
        precision["accumulate"] = said or notes.default(path, precision["type"])
    return precision


def _loss_scale(section: Config, precision: Config, notes: Notes) -> Config:
    """The loss scale into `precision`; returns the keys of fp16 that have no field."""
    scale = section.pop("loss_scale", 0)
    fixed = isinstance(scale, (int, float)) and scale > 0
    if fixed:
        precision["loss_scale"] = scale
    for name in ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"):
        path = f"fp16.{name}"
        if fixed:
            if section.pop(name, None) is not None:
                notes.left_out(path, "the loss scale is fixed")
            notes.derived(path, "it does nothing: the loss scale is fixed")
        elif name in section:
            precision[name] = section.pop(name)
        elif name in ("initial_scale_power", "loss_scale_window"):
            # dsgen takes others on the first Ascend 910 family
            notes.derived(path, "DeepSpeed's default: nobody fills it in")
            precision[name] = notes.default(f"precision.{name}", notes.default_of(path))
    return section


_RATE = 5e-5
"""The learning rate of transformers' TrainingArguments (training_args.py, learning_rate)."""


_RATES = {"adagrad": 1e-2}
"""Learning rate of the class where none is said, where it is not 1e-3 (deepspeed/ops, torch.optim)."""
_TRAINER = {
    "optimizer.params.betas": "[0.9, 0.999], as in transformers and DeepSpeed",
    "optimizer.params.eps": "1e-8, as in transformers and DeepSpeed",
    "optimizer.params.weight_decay": "0, as in transformers and DeepSpeed",
}


def optimizer_section(section: Config, rest: Config, job: Job, notes: Notes) -> Config:
    name, parameters = section.pop("type", None), taken(section, "params")
    if notes.auto("optimizer.type"):
        name = notes.decided("optimizer.type", "optimizer.type", "AdamW", "nobody fills it in")
    if not isinstance(name, str):
        if parameters:
            notes.left_out("optimizer.params", "the section names no type")
        client = optimizer_type(job.client_optimizer or "")
        name = notes.fill_in(
            "optimizer.type", client.name if client else "AdamW", "the config names none: the script makes its own"
        )
        rate = notes.fill_in("optimizer.lr", _RATE, "transformers' default; the script makes its own optimizer")
        return {"type": name, "lr": rate}
    if section:
        rest["optimizer"] = section
    known = optimizer_type(name)
    found: Config = {"type": known.name if known else name}
    path = "optimizer.params.lr"
    if notes.auto(path):
        found["lr"] = notes.decided(path, "optimizer.lr", _RATE, "transformers' default")
    else:
        rate = parameters.get("lr")
        found["lr"] = notes.default("optimizer.lr", _RATES.get(name.lower(), 1e-3)) if rate is None else rate
    found |= {key: value for key, value in parameters.items() if key != "lr"}
    for canonical in [auto for auto in notes.settled.autos if auto.startswith("optimizer.params.")]:
        notes.derived(canonical, _TRAINER.get(canonical, "DeepSpeed's default: nobody fills it in"))
        if canonical == "optimizer.params.weight_decay":
            found["weight_decay"] = 0.0
    adam = name.lower() == "adamw" or (name.lower() == "adam" and found.get("adam_w_mode", True) is True)
    if adam and found.get("torch_adam") is True and "weight_decay" not in found:
        found["weight_decay"] = notes.default("optimizer.weight_decay", 0.01, "the default of torch's AdamW")
    return found


_SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "WarmupLR": {"warmup_num_steps": 1000, "warmup_type": "log"},
    "WarmupDecayLR": {"warmup_num_steps": 1000, "warmup_type": "log", "warmup_max_lr": 0.001},
    "WarmupCosineLR": {"warmup_num_steps": 1000, "warmup_type": "log"},
}
"""DeepSpeed's defaults of parameters for which dsgen derives something else (runtime/lr_schedules.py)."""


def schedule_section(section: Config, rate: float, steps: int, notes: Notes) -> Config:
    name, parameters = section.get("type"), taken(section, "params")
    if not isinstance(name, str):
        if parameters:
            notes.left_out("scheduler.params", "the section names no type")
        text = "none: the learning rate stays constant, unless the script made a scheduler of its own"
        notes.remarks.append(Remark(kind="fill-in", path="schedule", text=text))
        return {}
    found: Config = {"type": name}
    for key, value in parameters.items():
        if value is None or (key == "total_num_steps" and value == steps):
            continue  # the default; it follows the length of training
        if key == "last_batch_iteration" and value == -1:
            notes.same(f"scheduler.params.{key}")
        elif key == "warmup_type" and value not in ("log", "linear"):
            notes.left_out(f"scheduler.params.{key}", f"DeepSpeed knows no {shown(value)} and takes log")
        else:
            found[key] = value
    for key, value in _SCHEDULES.get(name, {}).items():
        derived_alike = key == "warmup_max_lr" and value == rate
        if key not in found and not derived_alike and not notes.auto(f"scheduler.params.{key}"):
            found[key] = notes.default(f"schedule.{key}", value)
    for canonical in [auto for auto in notes.settled.autos if auto.startswith("scheduler.params.")]:
        key = canonical.rpartition(".")[2]
        why = {"warmup_max_lr": "the optimizer's lr", "total_num_steps": "the length of training"}
        notes.derived(canonical, why.get(key, "dsgen derives it from the length of training"))
    return found
