"""Number types against the device, the stage and each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View


@rule("PRE001")
def device_has_bf16(view: View) -> Iterator[Problem]:
    """bf16 on a device without bf16.

    The first Ascend 910 family (910A, 910ProA, 910ProB; SoC below Ascend910B1 in torch_npu) and CUDA devices
    before compute capability 8.0 have none: kernels fail with EZ1001, or run slowly in emulation.
    """
    if view.precision == "bf16" and view.device is not None and not view.device.bf16:
        yield Problem(
            path="precision.type",
            message=f"{view.device.id} has no bf16",
            help="write fp16 (dynamic loss scale), or choose a device with bf16",
        )


@rule("PRE002")
def device_has_fp16(view: View) -> Iterator[Problem]:
    """fp16 where DeepSpeed refuses it: "Type fp16 is not supported on your device" (runtime/engine.py)."""
    if view.precision == "fp16" and view.device is not None and not view.device.fp16:
        yield Problem(
            path="precision.type",
            message=f"DeepSpeed does not train fp16 on {view.device.id}",
            help="write bf16 or fp32",
        )


@rule("PRE003")
def loss_scale_is_for_fp16(view: View) -> Iterator[Problem]:
    """Loss-scale settings without fp16: they would do nothing."""
    if view.precision in (None, "fp16"):
        return
    for key in view.scale_keys:
        yield Problem(
            path=f"fp16.{key}",
            message=f"{key} has no effect in {view.precision}: only fp16 scales the loss",
            help="remove it, or write `type: fp16`",
            on_key=True,
        )


@rule("PRE004")
def static_scale_has_no_dynamics(view: View) -> Iterator[Problem]:
    """Settings of the dynamic loss scale beside a fixed one: they would do nothing."""
    if view.precision != "fp16" or view.loss_scale in (None, "dynamic", 0):
        return
    for key in view.scale_keys:
        if key != "loss_scale":
            yield Problem(
                path=f"fp16.{key}",
                message=f"{key} has no effect: the loss scale is fixed at {view.loss_scale:g}",
                help="remove it, or write `loss_scale: dynamic`",
                on_key=True,
            )


@rule("PRE005")
def accumulation_dtype_is_supported(view: View) -> Iterator[Problem]:
    """A gradient accumulation type that DeepSpeed cannot combine with the precision and stage.

    Stage 0 takes only the precision itself (runtime/engine.py, _do_optimizer_sanity_check: NotImplementedError
    "unsupported mix"); a narrower or different 16-bit type than the weights loses gradients.
    """
    if view.precision is None or view.accumulate is None or view.accumulate == view.precision:
        return
    if view.stage == 0:
        yield Problem(
            path="data_types.grad_accum_dtype",
            message=f"stage 0 accumulates gradients in the precision itself: {view.precision} with {view.accumulate} "
            "is refused by DeepSpeed",
            help=f"write {view.precision}, or take ZeRO stage 1 or higher",
        )
    elif view.accumulate != "fp32":
        yield Problem(
            path="data_types.grad_accum_dtype",
            message=f"gradients of {view.precision} weights cannot be accumulated in {view.accumulate}",
            help=f"write {view.precision} or fp32" if view.precision != "fp32" else "write fp32",
        )


@rule("PRE006")
def loss_scale_is_positive(view: View) -> Iterator[Problem]:
    """A fixed loss scale that is not above 0. In ds_config.json 0 means dynamic; a recipe says `dynamic`."""
    scale = view.loss_scale
    if isinstance(scale, (int, float)) and scale <= 0 and view.precision == "fp16":
        yield Problem(
            path="fp16.loss_scale",
            message=f"a fixed loss scale must be above 0, got {scale:g}",
            help="write `dynamic`, or a scale such as 1024",
        )


@rule("PRE007", Severity.WARNING)
def old_family_needs_dynamic_scale(view: View) -> Iterator[Problem]:
    """A fixed loss scale on the first Ascend 910 family, whose hardware clamps overflows instead of giving inf.

    Overflows are then found only through the float-status check; a fixed scale that is too high trains on clamped
    gradients.
    """
    if view.device is None or view.device.overflow != "saturates" or view.precision != "fp16":
        return
    if isinstance(view.loss_scale, (int, float)) and view.loss_scale > 0:
        yield Problem(
            path="fp16.loss_scale",
            message=f"{view.device.id} clamps overflows: with a fixed scale of {view.loss_scale:g} they go unseen",
            help="write `loss_scale: dynamic`",
        )


@rule("PRE008")
def section_is_of_the_precision(view: View) -> Iterator[Problem]:
    """Settings of a precision that is not in use, among DeepSpeed's own keys: they would do nothing."""
    for name, precision in (("fp16", "fp16"), ("bf16", "bf16"), ("bfloat16", "bf16")):
        section = view.raw.get(name)
        if view.precision in (None, precision) or not isinstance(section, Mapping):
            continue
        for key in section:
            if key != "enabled":
                yield Problem(
                    path=(name, key),
                    message=f"{name}.{key} does nothing: the job trains in {view.precision}",
                    help="remove it",
                    on_key=True,
                )
