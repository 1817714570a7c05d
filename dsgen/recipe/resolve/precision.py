"""Number types, loss scale and the type that gradients are accumulated in."""

from __future__ import annotations

from typing import Any

from dsgen.catalog.devices import Device
from dsgen.recipe.resolve.ledger import SAID, Ledger
from dsgen.recipe.schema import Precision


def decide_accumulate(precision: Precision, stage: int, offloaded: bool, accumulation: int, ledger: Ledger) -> str:
    """The gradient accumulation type (data_types.grad_accum_dtype); `offloaded`: the optimizer is.

    Stage 2 with offload: runtime/zero/stage_1_and_2.py, _use_compact_grad_partition_buffer and
    async_accumulate_grad_in_cpu_via_gpu.
    """
    kind = precision.type
    if kind == "fp32":
        derived, reason = "fp32", "fp32 throughout"
    elif stage == 0:
        derived, reason = kind, "stage 0 accumulates in the precision itself; DeepSpeed refuses any other"
    elif stage == 1:
        derived, reason = (
            kind,
            "at stage 1 fp32 accumulation would keep a full fp32 copy of the gradients on every rank (4 bytes per "
            "parameter)",
        )
    elif stage == 2 and offloaded:
        derived, reason = (
            kind,
            "at stage 2 with the optimizer offloaded fp32 sums would stay on the device until the step (4 bytes per "
            f"parameter over the ranks); {kind} sums go to host memory",
        )
    elif stage == 2:
        derived, reason = (
            "fp32",
            "at stage 2 fp32 accumulation rounds less and lowers the peak of the optimizer step: the fp32 partition "
            "is used in place (16 instead of 20 bytes per parameter over the ranks, beside the weights)",
        )
    elif accumulation > 1:
        derived, reason = (
            "fp32",
            f"{accumulation} micro batches are summed: fp32 rounds less, for 2 bytes per parameter over the ranks",
        )
    else:
        derived, reason = kind, "nothing is accumulated: one micro batch per step"
    return ledger.choose("data_types.grad_accum_dtype", precision.accumulate, derived, reason)


def precision_config(precision: Precision, accumulate: str, device: Device, ledger: Ledger) -> dict[str, Any]:
    """The fp16, bf16 and data_types sections of ds_config.json."""
    if precision.type == "fp32":
        return {}
    config: dict[str, Any] = {}
    if precision.type == "bf16":
        config["bf16"] = {
            "enabled": ledger.note("bf16.enabled", True, SAID),
            "check_grad_overflow": ledger.note(
                "bf16.check_grad_overflow",
                True,
                "a step with inf or nan gradients is skipped; written out because the default differs between "
                "DeepSpeed versions (off before 0.19.3)",
            ),
        }
    else:
        config["fp16"] = {
            "enabled": ledger.note("fp16.enabled", True, SAID),
            **_loss_scale(precision, device, ledger),
        }
    config["data_types"] = {"grad_accum_dtype": accumulate}
    return config


def _loss_scale(precision: Precision, device: Device, ledger: Ledger) -> dict[str, Any]:
    if isinstance(precision.loss_scale, float):
        return {"loss_scale": ledger.note("fp16.loss_scale", precision.loss_scale, SAID)}
    old_family = device.overflow == "saturates"
    why = f"{device.id} clamps overflows, which costs gradients while the scale is too high: " if old_family else ""
    power = 12 if old_family else 16
    return {
        "loss_scale": ledger.note("fp16.loss_scale", 0, "0 means a dynamic loss scale"),
        "initial_scale_power": ledger.choose(
            "fp16.initial_scale_power",
            precision.initial_scale_power,
            power,
            f"{why}start at 2^{power}" + ("" if old_family else ", DeepSpeed's own start; it falls by itself"),
        ),
        "loss_scale_window": ledger.choose(
            "fp16.loss_scale_window",
            precision.loss_scale_window,
            500 if old_family else 1000,
            f"{why}it starts lower and climbs sooner" if old_family else "raise the scale after 1000 clean steps",
        ),
        "hysteresis": ledger.choose(
            "fp16.hysteresis", precision.hysteresis, 2, "one overflow is forgiven before the scale falls"
        ),
        "min_loss_scale": ledger.choose(
            "fp16.min_loss_scale", precision.min_loss_scale, 1, "below 1 the scale would shrink gradients"
        ),
    }
