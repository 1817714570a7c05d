"""What DeepSpeed does otherwise on an Ascend NPU, or does not have there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, lookup

_ZERO = "zero_optimization"
_COMMUNICATOR_MB = 400
"""Device memory of one communicator: two buffers of HCCL_BUFFSIZE, whose default is 200 MB (HCCL's documentation)."""


@rule("NPU001")
def operation_is_there(view: View) -> Iterator[Problem]:
    """A feature whose operation DeepSpeed has for CUDA only.

    `aio.use_gds` fails while the config is read: AssertionError "GDS currently only supported for CUDA accelerator"
    (runtime/swap_tensor/aio_config.py). DeepCompile registers its passes on CUDA alone (compile/util.py,
    is_deepcompile_supported) and its operation is not there for others. Random layer token drop loads an operation that
    answers "This op had not been implemented on NPU backend" (ops/op_builder/npu/no_impl.py).

    Example:
        {"aio": {"use_gds": true}}

    Instead:
        {"aio": {"use_gds": false}}

    Options: --device ascend-910b3-64g
    Since: DeepSpeed 0.16
    """
    if view.device is None or view.device.kind == "cuda":
        return
    device = view.device.id
    if lookup(view.config, "aio.use_gds") is True:
        yield Problem(
            path="aio.use_gds",
            message=f"use_gds works on CUDA only: on {device} DeepSpeed stops with an AssertionError",
            help="remove it",
        )
    if view.device.kind != "npu" or view.kind != "ds_config":
        return  # in a recipe these sections are said to do nothing
    if lookup(view.config, "compile.deepcompile") is True:
        yield Problem(
            path="compile.deepcompile",
            message=f"DeepCompile works on CUDA only: on {device} its passes are missing, and engine.compile() fails",
            help="remove it",
        )
    routing = lookup(view.config, "data_efficiency.data_routing")
    on = isinstance(routing, Mapping) and routing.get("enabled") is True
    if on and lookup(view.config, "data_efficiency.data_routing.random_ltd.enabled") is True:
        yield Problem(
            path="data_efficiency.data_routing.random_ltd.enabled",
            message=f"random_ltd has no operation on {device}: DeepSpeed stops with a ValueError at the first layer",
            help="remove it",
        )


@rule("NPU002", Severity.WARNING)
def bias_correction_cannot_be_off(view: View) -> Iterator[Problem]:
    """Adam without bias correction on an NPU: it is corrected all the same.

    DeepSpeed's FusedAdam calls torch's fused kernels there, which always correct (ops/op_builder/npu/fused_adam.py).
    The first steps are then smaller or larger than on other devices.

    Example:
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "bias_correction": false}}}

    Instead:
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}

    Options: --device ascend-910b3-64g
    Since: DeepSpeed 0.14
    """
    if view.device is None or view.device.kind != "npu" or view.kind != "ds_config":
        return
    if (view.optimizer or "").lower() not in ("adam", "adamw"):
        return
    params, on_device = view.optimizer_parameters, view.offload_optimizer in (None, "none")
    if params.get("bias_correction") is False and not params.get("torch_adam") and on_device:
        yield Problem(
            path="optimizer.params.bias_correction",
            message=f"bias_correction: false does nothing on {view.device.id}: DeepSpeed's Adam there always corrects",
            help="remove it",
        )


@rule("NPU003", Severity.INFO)
def quantized_communication_is_tried(view: View) -> Iterator[Problem]:
    """Quantized communication of ZeRO++ on an NPU.

    DeepSpeed 0.19.8 quantizes with plain torch operations there instead of a kernel of its own
    (ops/op_builder/npu/quantizer.py). No public run shows whether the smaller messages win more than the arithmetic
    costs.

    Example:
        {"zero_optimization": {"stage": 3, "zero_quantized_weights": true}}

    Instead:
        {"zero_optimization": {"stage": 3}}

    Options: --device ascend-910b3-64g
    Since: DeepSpeed 0.19.8
    """
    if view.device is None or view.device.kind != "npu" or view.stage != 3:
        return
    for key in ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients"):
        if lookup(view.config, f"{_ZERO}.{key}") is True:
            yield Problem(
                path=f"{_ZERO}.{key}",
                message=f"{key} is computed by plain torch operations on {view.device.id}",
                help="measure some steps with and without it",
                on_key=True,
            )


@rule("NPU004", Severity.INFO)
def communicators_take_memory(view: View) -> Iterator[Problem]:
    """A secondary partition (hpZ) on an NPU: its group of ranks takes memory for messages of its own.

    Every communicator of HCCL has two buffers of HCCL_BUFFSIZE, 2 x 200 MB by default, and the groups of hpZ come on
    top of the one of all ranks. The weights of the secondary partition, 2 bytes per parameter divided by its ranks,
    come on top of that.

    Example:
        {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}

    Instead:
        {"zero_optimization": {"stage": 3}}

    Options: --device ascend-910b3-64g
    Since: DeepSpeed 0.14
    """
    size = lookup(view.config, f"{_ZERO}.zero_hpz_partition_size")
    if view.device is None or view.device.kind != "npu" or view.stage != 3 or view.kind != "ds_config":
        return
    if isinstance(size, int) and not isinstance(size, bool) and size > 1:
        yield Problem(
            path=f"{_ZERO}.zero_hpz_partition_size",
            message=f"the ranks of a secondary partition talk over a communicator of their own: {_COMMUNICATOR_MB} MB "
            f"of each {view.device.id} unless HCCL_BUFFSIZE is set",
            help="count it in; HCCL_BUFFSIZE=100 halves it",
            on_key=True,
        )


@rule("NPU005", Severity.INFO)
def pinned_memory_is_rounded_up(view: View) -> Iterator[Problem]:
    """Offload with pinned host memory on an NPU: the host may need up to twice the memory of what is offloaded.

    Where DeepSpeed does not register the pages itself it calls torch's pin_memory, and torch_npu's allocator of pinned
    memory rounds every piece up to a power of two, as far as pinned_max_round_threshold_mb in PYTORCH_NPU_ALLOC_CONF
    does not limit it.

    Example:
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}}}

    Instead:
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": false}}}

    Options: --device ascend-910b3-64g
    Since: DeepSpeed 0.14
    """
    if view.device is None or view.device.kind != "npu" or not view.stage or view.kind != "ds_config":
        return
    devices = {"offload_optimizer": view.offload_optimizer, "offload_param": view.offload_parameters}
    for name, device in devices.items():
        path = f"{_ZERO}.{name}.pin_memory"
        if device == "cpu" and (name == "offload_optimizer" or view.stage == 3) and lookup(view.config, path) is True:
            yield Problem(
                path=path,
                message="pinned host memory may be rounded up to a power of two by torch_npu: allow for up to twice "
                "what is offloaded",
                help="limit it with pinned_max_round_threshold_mb in PYTORCH_NPU_ALLOC_CONF",
                on_key=True,
            )
