"""Number types against the device, the stage and each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsgen.findings import Edit, Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, dtype_named, lookup, number, truth

_MODULES = (
    *("Linear", "Bilinear", "Embedding", "EmbeddingBag", "LayerNorm", "RMSNorm", "GroupNorm", "MultiheadAttention"),
    *("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "PReLU"),
    *("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "RNN", "LSTM", "GRU"),
    *("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "RNNCell", "LSTMCell", "GRUCell"),
    *("TransformerEncoderLayer", "TransformerDecoderLayer", "Transformer"),
)
"""Classes of torch.nn that have parameters of their own."""


@rule("PRE001")
def device_has_bf16(view: View) -> Iterator[Problem]:
    """A device without bf16 is to train in bf16.

    The first Ascend 910 family (910A, 910ProA, 910ProB; SoC below Ascend910B1 in torch_npu) and CUDA devices
    before compute capability 8.0 have none: kernels fail with EZ1001, or run slowly in emulation.

    Example:
        {"bf16": {"enabled": true}}

    Instead:
        {"fp16": {"enabled": true}, "bf16": {"enabled": false}}

    Options: --device ascend-910a
    Since: DeepSpeed 0.14
    """
    if view.precision == "bf16" and view.device is not None and not view.device.bf16:
        yield Problem(
            path=_type_path(view),
            message=f"{view.device.id} has no bf16",
            help="write fp16 (dynamic loss scale), or choose a device with bf16",
        )


@rule("PRE002")
def device_has_fp16(view: View) -> Iterator[Problem]:
    """A device on which DeepSpeed refuses fp16 is to train in it.

    DeepSpeed: "Type fp16 is not supported on your device" (runtime/engine.py, _do_sanity_check). On a CPU that depends
    on the processor: oneDNN has fp16 for those with AVX512-FP16 or AMX-FP16 (accelerator/cpu_accelerator.py).

    Example:
        {"fp16": {"enabled": true}, "bf16": {"enabled": false}}

    Instead:
        {"bf16": {"enabled": true}}

    Options: --device cpu
    Since: DeepSpeed 0.14
    """
    if view.precision == "fp16" and view.device is not None and not view.device.fp16:
        depends = view.device.kind == "cpu"
        yield Problem(
            path=_type_path(view),
            message=f"DeepSpeed does not train fp16 on {view.device.id}"
            + (" unless oneDNN has fp16 for its processor" if depends else ""),
            help="write bf16 or fp32",
            severity=Severity.WARNING if depends else None,
        )


@rule("PRE003")
def loss_scale_is_for_fp16(view: View) -> Iterator[Problem]:
    """Settings of the loss scale without fp16.

    Only fp16 scales the loss: they would do nothing.

    Example (recipe):
        precision: {type: bf16, loss_scale: 1024}

    Instead:
        precision: {type: fp16, loss_scale: 1024}

    Since: dsgen 0.1
    """
    if view.precision in (None, "fp16"):
        return
    for key in view.scale_keys:
        yield Problem(
            path=f"fp16.{key}",
            message=f"{key} has no effect in {view.precision}: only fp16 scales the loss",
            help="remove it, or write `type: fp16`",
            on_key=True,
        )


@rule("PRE004", ds_config=Severity.WARNING)
def static_scale_has_no_dynamics(view: View) -> Iterator[Problem]:
    """Settings of the dynamic loss scale beside a fixed one.

    DeepSpeed reads them only where loss_scale is 0 (runtime/engine.py, dynamic_loss_scale): they do nothing.

    Example:
        {"fp16": {"enabled": true, "loss_scale": 128, "loss_scale_window": 500}, "bf16": {"enabled": false}}

    Instead:
        {"fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 500}, "bf16": {"enabled": false}}

    Since: DeepSpeed 0.14
    """
    scale = number(view.loss_scale)
    if view.precision != "fp16" or not scale:
        return
    for key in view.scale_keys:
        if key != "loss_scale":
            yield Problem(
                path=f"fp16.{key}",
                message=f"{key} has no effect: the loss scale is fixed at {scale:g}",
                help="remove it, or write " + _dynamic(view),
                on_key=True,
            )


@rule("PRE005")
def accumulation_dtype_is_supported(view: View) -> Iterator[Problem]:
    """A type for accumulating gradients that does not go with the precision and the stage.

    Stage 0 takes only the precision itself (runtime/engine.py, _do_optimizer_sanity_check: NotImplementedError
    "unsupported mix"); a narrower or different 16-bit type than the weights loses gradients.

    Example:
        {"zero_optimization": {"stage": 0}, "data_types": {"grad_accum_dtype": "fp32"}}

    Instead:
        {"zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}}

    Since: DeepSpeed 0.14
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
        lossy = view.kind == "ds_config"  # DeepSpeed takes it
        yield Problem(
            path="data_types.grad_accum_dtype",
            message=f"gradients of {view.precision} weights lose precision in {view.accumulate}"
            if lossy
            else f"gradients of {view.precision} weights cannot be accumulated in {view.accumulate}",
            help=f"write {view.precision} or fp32" if view.precision != "fp32" else "write fp32",
            severity=Severity.WARNING if lossy else None,
        )


@rule("PRE006")
def loss_scale_is_positive(view: View) -> Iterator[Problem]:
    """A fixed loss scale that is not above 0.

    Gradients would be nothing, or change their sign. In ds_config.json 0 means dynamic, and DeepSpeed refuses a scale
    below it since 0.18.8 (runtime/precision_config.py), also where fp16 is off; a recipe says `dynamic`.

    Example:
        {"fp16": {"enabled": true, "loss_scale": -1}, "bf16": {"enabled": false}}

    Instead:
        {"fp16": {"enabled": true, "loss_scale": 0}, "bf16": {"enabled": false}}

    Since: DeepSpeed 0.14
    """
    if view.kind == "recipe":
        scale = number(view.loss_scale)
        if scale is not None and scale <= 0 and view.precision == "fp16":
            yield Problem(
                path="fp16.loss_scale",
                message=f"a fixed loss scale must be above 0, got {scale:g}",
                help="write `dynamic`, or a scale such as 1024",
            )
        return
    scale, refused = number(lookup(view.config, "fp16.loss_scale")), view.since("0.18.8")
    if scale is not None and scale < 0 and (refused or view.precision == "fp16"):
        yield Problem(
            path="fp16.loss_scale",
            message=f"a loss scale of {scale:g}: "
            + ("DeepSpeed refuses to start" if refused else "gradients change their sign, or are lost"),
            help="write 0 for a dynamic scale",
        )


@rule("PRE007", Severity.WARNING)
def old_family_needs_dynamic_scale(view: View) -> Iterator[Problem]:
    """A fixed loss scale on the first Ascend 910 family.

    Its hardware clamps overflows instead of giving inf. Overflows are then found only through the float-status check; a
    fixed scale that is too high trains on clamped gradients.

    Example:
        {"fp16": {"enabled": true, "loss_scale": 1024}, "bf16": {"enabled": false}}

    Instead:
        {"fp16": {"enabled": true, "loss_scale": 0}, "bf16": {"enabled": false}}

    Options: --device ascend-910a
    Since: DeepSpeed 0.14
    """
    if view.device is None or view.device.overflow != "saturates" or view.precision != "fp16":
        return
    scale = number(view.loss_scale)
    if scale is not None and scale > 0:
        yield Problem(
            path="fp16.loss_scale",
            message=f"{view.device.id} clamps overflows: with a fixed scale of {scale:g} they go unseen",
            help="write " + _dynamic(view),
        )


@rule("PRE008")
def section_is_of_the_precision(view: View) -> Iterator[Problem]:
    """Settings of a precision that is not in use, among DeepSpeed's own keys.

    DeepSpeed reads them, and nothing asks for them: they would do nothing.

    Example (recipe):
        precision: bf16
        deepspeed: {fp16: {hysteresis: 3}}

    Instead:
        precision: fp16
        deepspeed: {fp16: {hysteresis: 3}}

    Since: dsgen 0.1
    """
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


@rule("PRE009")
def one_precision_is_on(view: View) -> Iterator[Problem]:
    """Both fp16 and bf16 are enabled.

    DeepSpeed: "bfloat16 and fp16 modes cannot be simultaneously enabled" (runtime/config.py, _initialize_params).

    Example:
        {"fp16": {"enabled": true}, "bf16": {"enabled": true}}

    Instead:
        {"fp16": {"enabled": false}, "bf16": {"enabled": true}}

    Since: DeepSpeed 0.14
    """
    if view.kind == "ds_config" and truth(_said(view, "fp16", "enabled")) and truth(_said(view, "bf16", "enabled")):
        yield Problem(
            path="fp16.enabled",
            message="fp16 and bf16 are both enabled: DeepSpeed refuses to start",
            help="set one of the two to false: bf16 needs no loss scale, where the device has it",
        )


@rule("PRE010")
def low_master_weights_fit(view: View) -> Iterator[Problem]:
    """Master weights or optimizer states in 16 bits, without what they need.

    DeepSpeed asserts a ZeRO stage (1 to 3; before 0.18.3 stage 2 only; runtime/config.py, _do_error_check), the
    optimizer states on the CPU with DeepSpeedCPUAdam, except for bf16 weights with bf16 states, and bf16 weights below
    bf16 states (runtime/base_optimizer.py, _configure_master_weights).

    Example:
        {"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}}

    Instead:
        {
          "bf16": {"enabled": true, "bf16_master_weights_and_grads": true},
          "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}
        }

    Since: DeepSpeed 0.14 for fp16, 0.18.3 for bf16
    """
    if view.kind != "ds_config":
        return
    half = truth(_said(view, "fp16", "fp16_master_weights_and_grads")) is True
    brain = truth(_said(view, "bf16", "bf16_master_weights_and_grads")) is True and view.since("0.18.3")
    states = truth(_said(view, "bf16", "bf16_optimizer_states")) is True and view.since("0.18.3")
    stages = (1, 2, 3) if view.since("0.18.3") else (2,)
    if states and not brain:
        yield Problem(
            path="bf16.bf16_optimizer_states",
            message="bf16_optimizer_states needs bf16_master_weights_and_grads: DeepSpeed refuses to start",
            help="set bf16_master_weights_and_grads to true as well",
        )
    if half and brain:
        yield Problem(
            path="fp16.fp16_master_weights_and_grads",
            message="master weights cannot be in fp16 and in bf16: DeepSpeed refuses to start",
            help="leave one of the two out",
        )
        return
    path = "fp16.fp16_master_weights_and_grads" if half else "bf16.bf16_master_weights_and_grads"
    name = path.partition(".")[2]
    if not (half or brain) or view.stage is None:
        return
    if view.stage not in stages:
        yield Problem(
            path=path,
            message=f"{name} at stage {view.stage}: DeepSpeed refuses to start",
            help=f"take stage {' or '.join(map(str, stages))}, or remove it",
        )
        return
    on_cpu = view.offload_optimizer in ("cpu", "nvme")
    unknown = view.offload_optimizer is None and lookup(view.config, "zero_optimization.offload_optimizer") is not None
    if view.bf16_optimizer or unknown or (states and not on_cpu):
        return
    if not on_cpu:
        yield Problem(
            path=path,
            message=f"{name} needs the optimizer on the CPU: DeepSpeed refuses to start",
            help='add "offload_optimizer": {"device": "cpu"} to zero_optimization, or remove it',
        )
    elif view.optimizer is not None and view.client_optimizer in (None, "none") and not _is_cpu_adam(view):
        yield Problem(
            path=path,
            message=f"{name} needs DeepSpeed's CPU Adam: DeepSpeed refuses to start",
            help="take AdamW without torch_adam, or remove it",
        )


@rule("PRE011")
def parameters_are_of_the_precision(view: View) -> Iterator[Problem]:
    """data_types.param_dtype is not the precision that is enabled.

    DeepSpeed: "data_types.param_dtype conflicts with the enabled precision mode" (runtime/engine.py,
    _assert_valid_mixed_precision_config). The precision follows fp16.enabled and bf16.enabled alone.

    Example:
        {"bf16": {"enabled": true}, "data_types": {"param_dtype": "fp16"}}

    Instead:
        {"bf16": {"enabled": true}, "data_types": {"param_dtype": "bf16"}}

    Since: DeepSpeed 0.19.2
    """
    wanted = dtype_named(lookup(view.config, "data_types.param_dtype"))
    if view.kind != "ds_config" or not view.since("0.19.2") or None in (wanted, view.precision):
        return
    if wanted != view.precision:
        yield Problem(
            path="data_types.param_dtype",
            message=f"param_dtype {wanted} with weights in {view.precision}: DeepSpeed refuses to start",
            help=f"enable {wanted}, or remove it" if wanted != "fp32" else "remove it",
        )


@rule("PRE012", Severity.WARNING)
def autocast_stands_alone(view: View) -> Iterator[Problem]:
    """torch_autocast beside fp16 or bf16, without a type, or with modules that there are not.

    torch_autocast keeps the weights in fp32 and casts inside of the layers. Beside fp16 or bf16 the weights are cast
    already. Without dtype torch takes its own: fp16 on CUDA, bf16 on a CPU. Modules that cannot be imported, and
    zero_quantized_weights, are refused (runtime/torch_autocast.py, init_autocast_params).

    Example:
        {"bf16": {"enabled": true}, "torch_autocast": {"enabled": true, "dtype": "bfloat16"}}

    Instead:
        {"bf16": {"enabled": false}, "torch_autocast": {"enabled": true, "dtype": "bfloat16"}}

    Since: DeepSpeed 0.17.2
    """
    section = view.config.get("torch_autocast")
    if view.kind != "ds_config" or not isinstance(section, Mapping) or truth(section.get("enabled")) is not True:
        return
    if view.precision in ("fp16", "bf16"):
        yield Problem(
            path="torch_autocast.enabled",
            message=f"the weights are cast to {view.precision} already: torch_autocast over them only adds casts",
            help=f"turn {view.precision} off to keep weights in fp32, or torch_autocast",
        )
    if section.get("dtype") is None:
        yield Problem(
            path="torch_autocast.dtype",
            message="torch_autocast without dtype takes what torch has as default: fp16 on CUDA, bf16 on a CPU",
            help='write "dtype": "bfloat16"',
        )
    if truth(lookup(view.config, "zero_optimization.zero_quantized_weights")):
        yield Problem(
            path="zero_optimization.zero_quantized_weights",
            message="DeepSpeed refuses torch_autocast together with zero_quantized_weights",
            help="leave one of the two out",
            severity=Severity.ERROR,
        )
    modules = section.get("lower_precision_safe_modules")
    for name in modules if isinstance(modules, list) else ():
        problem = _module_problem(name) if isinstance(name, str) else None
        if problem is not None:
            yield Problem(
                path="torch_autocast.lower_precision_safe_modules",
                message=f"{name!r} cannot be imported: DeepSpeed refuses to start",
                help=problem,
                severity=Severity.ERROR,
            )


@rule("PRE013")
def dynamic_scale_can_move(view: View) -> Iterator[Problem]:
    """Settings of the dynamic loss scale that it cannot work with.

    DeepSpeed refuses a loss_scale_window or min_loss_scale that is not above 0 (since 0.19.3;
    runtime/precision_config.py); before, the window 0 is a ZeroDivisionError at the first step. An initial_scale_power
    of 64 or more is an OverflowError in the first backward pass.

    Example:
        {"fp16": {"enabled": true, "loss_scale_window": 0}, "bf16": {"enabled": false}}

    Instead:
        {"fp16": {"enabled": true, "loss_scale_window": 1000}, "bf16": {"enabled": false}}

    Since: DeepSpeed 0.14
    """
    on = view.precision == "fp16"
    perhaps = _said(view, "fp16", "enabled") == "auto"
    if view.kind != "ds_config" or not (on or perhaps) or _said(view, "fp16", "loss_scale") not in (None, 0, "auto"):
        return
    for key, default in (("loss_scale_window", 1000), ("min_loss_scale", 1)):
        value = number(_said(view, "fp16", key))
        if value is not None and value <= 0:
            refused = view.since("0.19.3") or key == "loss_scale_window"
            yield Problem(
                path=f"fp16.{key}",
                message=f"{key} {value:g} with a dynamic loss scale: "
                + ("DeepSpeed refuses it" if refused else "nothing keeps the scale above 0")
                + ("" if on else " where fp16 gets enabled"),
                help=f"write {default}, which is the default, or more",
                severity=None if refused and on else Severity.WARNING,
            )
    power = number(_said(view, "fp16", "initial_scale_power"))
    if power is not None and power >= 64 and on:
        yield Problem(
            path="fp16.initial_scale_power",
            message=f"a loss scale of 2^{power:g} is an OverflowError in the first backward pass",
            help="write 16, which is the default: 2^16 is about all that fp16 can hold",
        )


@rule("PRE014", Severity.WARNING)
def bf16_has_its_new_name(view: View) -> Iterator[Problem]:
    """The section `bfloat16`, the old name of `bf16`.

    DeepSpeed still reads it (runtime/precision_config.py, get_bfloat16_config). transformers and accelerate look only
    at `bf16`: they load the model, and count, as if there were no precision.

    Example:
        # whole file
        {
          "train_micro_batch_size_per_gpu": 1,
          "gradient_clipping": 1.0,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
          "zero_optimization": {"stage": 2},
          "bfloat16": {"enabled": true}
        }

    Instead:
        {"bf16": {"enabled": true}}

    Since: DeepSpeed 0.14
    """
    if view.kind == "ds_config" and "bfloat16" in view.config and "bf16" not in view.config:
        yield Problem(
            path=("bfloat16",),
            message="bfloat16 is the old name of bf16, which transformers and accelerate do not look at",
            help="write bf16",
            on_key=True,
            fix=(Edit(action="rename", path=("bfloat16",), to=("bf16",)),),
        )


def _type_path(view: View) -> str:
    return "precision.type" if view.kind == "recipe" else f"{view.precision}.enabled"


def _dynamic(view: View) -> str:
    """How a dynamic loss scale is written."""
    return "`loss_scale: dynamic`" if view.kind == "recipe" else '"loss_scale": 0 for a dynamic scale'


def _said(view: View, precision: str, key: str) -> Any:
    """What the section of a precision says, under the name that DeepSpeed takes."""
    section = view.config.get(precision)
    if section is None and precision == "bf16":
        section = view.config.get("bfloat16")
    return section.get(key) if isinstance(section, Mapping) else None


def _is_cpu_adam(view: View) -> bool:
    """Whether DeepSpeed builds its CPU Adam, given that the optimizer runs on the CPU."""
    return str(view.optimizer).lower() in ("adam", "adamw") and not truth(view.optimizer_parameters.get("torch_adam"))


def _module_problem(name: str) -> str | None:
    """What to write instead of a module class that cannot be imported; None where only an import would tell."""
    package, _, class_name = name.rpartition(".")
    if not package:
        return f"write the class with its package, such as torch.nn.{name}"
    same = [known for known in _MODULES if sorted(known.lower()) == sorted(class_name.lower())]
    return (
        f"did you mean torch.nn.{same[0]}?" if package == "torch.nn" and same and class_name not in _MODULES else None
    )
