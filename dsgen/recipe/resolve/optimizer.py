"""The optimizer and scheduler sections, with every parameter written out."""

from __future__ import annotations

from typing import Any

from dsgen.catalog.optimizers import optimizer_type
from dsgen.recipe.resolve.ledger import SAID, Ledger
from dsgen.recipe.resolve.said import as_read
from dsgen.recipe.schema import Optimizer, Schedule

WARMUP_PART = 0.03

_DEFAULTS: dict[str, dict[str, Any]] = {
    "AdamW": {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
    "Adam": {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
    "Lion": {"betas": [0.9, 0.999], "weight_decay": 0.0},
    "Adagrad": {"eps": 1e-10, "weight_decay": 0.0},
}


def optimizer_config(optimizer: Optimizer, ledger: Ledger) -> dict[str, Any]:
    """The optimizer section."""
    known = optimizer_type(optimizer.type)
    name = known.name if known else optimizer.type
    said = {"lr": optimizer.lr, **as_read(optimizer.model_extra or {}, "optimizer.params")}
    params: dict[str, Any] = {"lr": ledger.note("optimizer.params.lr", optimizer.lr, SAID)}
    for key, value in _DEFAULTS.get(name, {}).items():
        params[key] = ledger.choose(
            f"optimizer.params.{key}",
            said.get(key),
            value,
            "DeepSpeed's own default, written out (torch's AdamW would take 0.01)"
            if key == "weight_decay"
            else "DeepSpeed's own default, written out",
        )
    for key, value in said.items():
        if key not in params:
            params[key] = ledger.note(f"optimizer.params.{key}", value, SAID)
    return {"optimizer": {"type": ledger.note("optimizer.type", name, SAID), "params": params}}


def schedule_config(schedule: Schedule | None, lr: float, steps: int | None, ledger: Ledger) -> dict[str, Any]:
    """The scheduler section; empty for a constant learning rate."""
    if schedule is None or schedule.type == "constant":
        ledger.note("scheduler", None, "a constant learning rate" if schedule is None else SAID)
        return {}
    said = as_read(schedule.model_extra or {}, "scheduler.params")
    path = "scheduler.params."
    params: dict[str, Any] = {}

    def choose(key: str, derived: Any, reason: str) -> None:
        params[key] = ledger.choose(path + key, said.get(key), derived, reason)

    if schedule.type in ("WarmupDecayLR", "WarmupCosineLR") and steps is not None:
        choose("total_num_steps", steps, "the length of training")
    if schedule.type.startswith("Warmup"):
        total = said.get("total_num_steps", steps)
        warmup = max(2, round(total * WARMUP_PART)) if total else 100
        choose(
            "warmup_num_steps",
            warmup,
            f"{WARMUP_PART:.0%} of the steps, at least 2" if total else "100 steps: the number of steps is not known",
        )
        choose("warmup_type", "linear", "DeepSpeed's own `log` reaches most of the learning rate within a few steps")
    if schedule.type in ("WarmupLR", "WarmupDecayLR"):
        choose("warmup_min_lr", 0.0, "warm-up starts from nothing")
        choose("warmup_max_lr", lr, "the optimizer's lr: DeepSpeed takes the schedule's peak, not the optimizer's")
    if schedule.type == "WarmupCosineLR":
        choose("warmup_min_ratio", 0.0, "warm-up starts from nothing")
        choose("cos_min_ratio", 0.0001, "DeepSpeed's own default, written out: ends at a ten-thousandth of the peak")
    for key, value in said.items():
        if key not in params:
            params[key] = ledger.note(path + key, value, SAID)
    return {"scheduler": {"type": ledger.note("scheduler.type", schedule.type, SAID), "params": params}}
