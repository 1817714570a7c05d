"""Moving optimizer states and parameters to host memory or disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsgen.catalog.optimizers import optimizer_type
from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, lookup, number, truth

OPTIMIZER = "zero_optimization.offload_optimizer"
PARAMETERS = "zero_optimization.offload_param"

NVME_KEYS = ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pipeline_read", "pipeline_write", "fast_init")
"""Keys of an offload section that only the device nvme reads."""

_OLD_SWITCH = {OPTIMIZER: "zero_optimization.cpu_offload", PARAMETERS: "zero_optimization.cpu_offload_param"}
"""Section -> the old switch that stands for it."""

_CPU_OPTIMIZERS = ("deepspeedcpuadam", "deepspeedcpulion", "zenflowcpuadam")
"""Optimizers of the script that DeepSpeed takes with offload (runtime/engine.py, _configure_optimizer)."""


def _on(device: str | None) -> bool:
    return device not in (None, "none")


def _place(view: View, section: str) -> str:
    """Where the document says that something is offloaded."""
    old = _OLD_SWITCH[section]
    said = view.kind == "recipe" or lookup(view.config, section) is not None or lookup(view.config, old) is None
    return section if said else old


@rule("OFF001")
def parameters_need_stage_3(view: View) -> Iterator[Problem]:
    """Parameter offload below stage 3.

    DeepSpeed accepts it and keeps every parameter on the device: only stage 3 partitions parameters
    (runtime/engine.py, _configure_zero_optimizer).

    Example:
        {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}

    Instead:
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}

    Since: DeepSpeed 0.14
    """
    if _on(view.offload_parameters) and view.stage is not None and view.stage < 3:
        path = _place(view, PARAMETERS)
        yield Problem(
            path=path,
            message=f"{view.spell(path)} does nothing at stage {view.stage}: only stage 3 partitions parameters",
            help="take stage 3, or remove it",
            on_key=True,
        )


@rule("OFF002")
def optimizer_needs_a_stage(view: View) -> Iterator[Problem]:
    """Optimizer offload at stage 0.

    DeepSpeed takes its CPU optimizer but moves nothing to the host: states are offloaded from stage 1 on.

    Example:
        {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}

    Instead:
        {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}

    Since: DeepSpeed 0.14
    """
    if _on(view.offload_optimizer) and view.stage == 0:
        path = _place(view, OPTIMIZER)
        yield Problem(
            path=path,
            message=f"{view.spell(path)} moves nothing at stage 0: states are offloaded from stage 1 on",
            help="take stage 1, 2 or 3, or remove it",
            on_key=True,
        )


@rule("OFF003")
def nvme_has_a_path(view: View) -> Iterator[Problem]:
    """NVMe offload without a folder.

    DeepSpeed stops with a TypeError in posixpath.join after the model is loaded (runtime/zero/stage3.py,
    _configure_tensor_swapping), or with an assertion for parameters.

    Example:
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}

    Instead:
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}}}

    Since: DeepSpeed 0.14
    """
    if view.kind == "ds_config" and view.stage != 3:
        return  # nothing goes to NVMe: OFF001, OFF004
    for path, device in ((OPTIMIZER, view.offload_optimizer), (PARAMETERS, view.offload_parameters)):
        if device == "nvme" and not lookup(view.config, f"{path}.nvme_path"):
            yield Problem(
                path=f"{path}.device",
                message="nvme has no folder to write to",
                help=f"give {view.spell(f'{path}.nvme_path')}: a folder on the fast disk",
            )


@rule("OFF004")
def nvme_needs_stage_3(view: View) -> Iterator[Problem]:
    """Optimizer states on NVMe below stage 3.

    DeepSpeed accepts it and keeps them in host memory (runtime/zero/stage_1_and_2.py).

    Example:
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}}}

    Instead:
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}}}

    Since: DeepSpeed 0.14
    """
    if view.offload_optimizer == "nvme" and view.stage in (1, 2):
        yield Problem(
            path=f"{OPTIMIZER}.device",
            message=f"nvme does nothing at stage {view.stage}: the states would stay in host memory",
            help="take stage 3, or write cpu",
        )


@rule("OFF005", ds_config=Severity.WARNING)
def settings_fit_the_device(view: View) -> Iterator[Problem]:
    """Settings of NVMe offload beside another device, or any setting beside `none`.

    DeepSpeed accepts them and they do nothing.

    Example:
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "buffer_count": 8}}}

    Instead:
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}

    Since: DeepSpeed 0.14
    """
    for path, device in ((OPTIMIZER, view.offload_optimizer), (PARAMETERS, view.offload_parameters)):
        section = lookup(view.config, path)
        if not isinstance(section, Mapping):
            continue
        if device is None and "device" not in section:
            device = "none"  # DeepSpeed's own default
        for key in section:
            if key != "device" and (device == "none" or (device == "cpu" and key in NVME_KEYS)):
                yield Problem(
                    path=f"{path}.{key}",
                    message=f"{view.spell(f'{path}.{key}').rpartition('.')[2]} does nothing with device {device}",
                    help="remove it",
                    on_key=True,
                    severity=Severity.INFO if view.kind == "ds_config" and device == "none" else None,
                )


@rule("OFF006")
def optimizer_runs_on_cpu(view: View) -> Iterator[Problem]:
    """Optimizer offload with an optimizer that has no CPU version in DeepSpeed.

    Its states cannot live in host memory (runtime/engine.py, _configure_basic_optimizer).

    Example:
        {
          "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
          "zero_allow_untested_optimizer": true,
          "optimizer": {"type": "Lamb", "params": {"lr": 1e-4}}
        }

    Instead:
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}

    Since: DeepSpeed 0.14
    """
    if view.client_optimizer not in (None, "none") and view.kind == "ds_config":
        return
    known = optimizer_type(view.optimizer) if view.optimizer else None
    if known is None or known.offload or not _on(view.offload_optimizer):
        return
    if known.name == "Muon" and view.stage == 3 and view.kind == "ds_config":
        return  # seen to train as it does without the offload
    yield Problem(
        path="optimizer.type",
        message=f"{known.name} has no CPU version: its states cannot be offloaded",
        help="take AdamW, Adam, Lion or Adagrad, or remove the offload",
    )


@rule("OFF007")
def ratio_needs_stage_3(view: View) -> Iterator[Problem]:
    """A partial optimizer offload below stage 3.

    DeepSpeed: "Partial offloading only supported for ZeRO Stage 3" (runtime/zero/config.py, offload_ratio_check).

    Example:
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}

    Instead:
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}

    Since: DeepSpeed 0.14
    """
    ratio = number(lookup(view.config, f"{OPTIMIZER}.ratio"))
    stages = (0, 1, 2) if view.kind == "ds_config" else (1, 2)
    if ratio is not None and ratio < 1 and view.stage in stages:
        yield Problem(
            path=f"{OPTIMIZER}.ratio",
            message=f"DeepSpeed refuses a partial offload at stage {view.stage}",
            help="take stage 3, or remove ratio",
        )


@rule("OFF008")
def parameters_take_the_optimizer_along(view: View) -> Iterator[Problem]:
    """Parameters on NVMe while the optimizer states stay on the device.

    The states are six times larger than the parameters, so the memory saved is the smaller part, and every step
    copies parameters to the host after the device has updated them. DeepSpeed 0.19.8 asserts at stage 3 that
    parameters on NVMe have their states off the device too (runtime/zero/stage3.py).

    Example:
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/local_nvme"}}}

    Instead:
        {
          "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "nvme", "nvme_path": "/local_nvme"},
            "offload_optimizer": {"device": "cpu"}
          }
        }

    Since: DeepSpeed 0.14
    """
    off = view.offload_optimizer
    if view.kind == "ds_config" and off is None and lookup(view.config, f"{OPTIMIZER}.device") == "auto":
        return
    if view.offload_parameters == "nvme" and view.stage == 3 and not _on(off):
        yield Problem(
            path=PARAMETERS,
            message="parameters on nvme need the optimizer states off the device too",
            help=f"give {view.spell(OPTIMIZER)}: cpu or nvme",
        )


@rule("OFF009")
def super_offload_needs_stage_3(view: View) -> Iterator[Problem]:
    """SuperOffload below stage 3 or off CUDA, or its share of cores without it.

    DeepSpeed accepts it below stage 3, and the share without it, and does nothing. At stage 3 it asserts CUDA
    (runtime/superoffload/superoffload_stage3.py).

    Example:
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "super_offload": true}}}

    Instead:
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "super_offload": true}}}

    Since: DeepSpeed 0.18
    """
    section = lookup(view.config, OPTIMIZER)
    if not isinstance(section, Mapping):
        return
    on = section.get("super_offload")
    if on and view.stage in (1, 2):
        yield Problem(
            path=f"{OPTIMIZER}.super_offload",
            message=f"super_offload does nothing at stage {view.stage}: only stage 3 has it",
            help="take stage 3, or remove it",
            on_key=True,
        )
    if on and view.kind == "ds_config" and view.stage == 3 and view.device is not None and view.device.kind != "cuda":
        yield Problem(
            path=f"{OPTIMIZER}.super_offload",
            message=f"super_offload is for CUDA only: DeepSpeed refuses to start on {view.device.id}",
            help="remove it",
            on_key=True,
        )
    if "cpuadam_cores_perc" in section and not on:
        yield Problem(
            path=f"{OPTIMIZER}.cpuadam_cores_perc",
            message="cpuadam_cores_perc does nothing without super_offload",
            help="remove it",
            on_key=True,
            severity=Severity.WARNING if view.kind == "ds_config" else None,
        )


@rule("OFF010", ds_config=Severity.WARNING)
def nvme_path_is_absolute(view: View) -> Iterator[Problem]:
    """A folder for NVMe offload that is not absolute.

    DeepSpeed makes the path as it is (runtime/swap_tensor/optimizer_utils.py, partitioned_param_swapper.py): it counts
    from the current folder of the ranks, and `~` is a folder of that name.

    Example:
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "~/swap"}}}

    Instead:
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}}}

    Since: DeepSpeed 0.14
    """
    for path, device in ((OPTIMIZER, view.offload_optimizer), (PARAMETERS, view.offload_parameters)):
        folder = lookup(view.config, f"{path}.nvme_path")
        if device == "nvme" and isinstance(folder, str) and folder and not folder.startswith("/"):
            yield Problem(
                path=f"{path}.nvme_path",
                message=f"{folder!r} would count from whatever folder the ranks are started in, and `~` stays `~`",
                help="write an absolute path: the swap files belong on a fast disk of each node",
            )


@rule("OFF011")
def partial_offload_is_of_adam(view: View) -> Iterator[Problem]:
    """A partial optimizer offload with another optimizer than DeepSpeed's CPU Adam.

    DeepSpeed: "Hybrid Optimizer Only Supports DeepSpeedCPUAdam" (runtime/zero/stage3.py).

    Example:
        {
          "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}},
          "optimizer": {"type": "Lion", "params": {"lr": 1e-5}}
        }

    Instead:
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}

    Since: DeepSpeed 0.14
    """
    ratio = number(lookup(view.config, f"{OPTIMIZER}.ratio"))
    if view.kind != "ds_config" or view.stage != 3 or not _on(view.offload_optimizer) or ratio is None or ratio >= 1:
        return
    if view.optimizer is None or view.client_optimizer not in (None, "none"):
        return
    torch = truth(view.optimizer_parameters.get("torch_adam")) is True
    if view.optimizer.lower() not in ("adam", "adamw") or torch:
        yield Problem(
            path=f"{OPTIMIZER}.ratio",
            message=f"a partial offload works with DeepSpeed's CPU Adam only, not with {view.optimizer}"
            + (" of torch" if torch else "")
            + ": DeepSpeed refuses to start",
            help="take AdamW" + (" without torch_adam" if torch else "") + ", or remove ratio",
        )


@rule("OFF012", Severity.WARNING)
def nvme_is_on_every_node(view: View) -> Iterator[Problem]:
    """A folder for NVMe offload that the system keeps, or that no system has.

    DeepSpeed makes the folder on every node when training starts (runtime/zero/stage3.py, os.makedirs). Under a root
    that a usual Linux has not, or where nothing can be written, that fails, or fills the root disk.

    Example:
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/path/to/nvme"}}}

    Instead:
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}}}

    Since: DeepSpeed 0.14
    """
    if view.kind != "ds_config" or view.stage != 3:
        return
    for path, device in ((OPTIMIZER, view.offload_optimizer), (PARAMETERS, view.offload_parameters)):
        folder = lookup(view.config, f"{path}.nvme_path")
        if device == "nvme" and isinstance(folder, str) and folder.startswith(_NO_DISKS):
            yield Problem(
                path=f"{path}.nvme_path",
                message=f"{folder} does not look like a folder on a fast disk: DeepSpeed writes the swap "
                "files there on every node",
                help="write the folder where the NVMe disk of each node is mounted",
            )


_NO_DISKS = ("/path/", "/your/", "/nonexistent", "/proc", "/sys/", "/dev/", "/etc/", "/bin/", "/boot/")
"""Beginnings of paths that no fast disk is mounted under, and of those in examples."""


@rule("OFF013", Severity.WARNING)
def script_brings_a_cpu_optimizer(view: View) -> Iterator[Problem]:
    """Optimizer offload with an optimizer that the script brings.

    DeepSpeed takes only its own DeepSpeedCPUAdam and DeepSpeedCPULion from a script, unless zero_force_ds_cpu_optimizer
    is false: "You are using ZeRO-Offload with a client provided optimizer" (runtime/engine.py, _configure_optimizer).
    accelerate puts DeepSpeedCPUAdam in place of what transformers made.

    Example:
        # whole file
        {
          "train_micro_batch_size_per_gpu": 1,
          "gradient_clipping": 1.0,
          "bf16": {"enabled": true},
          "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}
        }

    Instead:
        {
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
          "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}
        }

    Since: DeepSpeed 0.14
    """
    client = view.client_optimizer
    if view.kind != "ds_config" or not _on(view.offload_optimizer) or client == "none":
        return
    if client is None and lookup(view.config, "optimizer.type") is not None:
        return
    if truth(view.config.get("zero_force_ds_cpu_optimizer")) is False or str(client).lower() in _CPU_OPTIMIZERS:
        return
    path = _place(view, OPTIMIZER)
    if client is None and view.framework == "transformers":
        yield Problem(
            path=path,
            message="there is no optimizer section: accelerate puts DeepSpeedCPUAdam in place of the trainer's "
            "optimizer, and keeps its lr and weight_decay only",
            help="give an optimizer section to decide betas and eps",
            severity=Severity.INFO,
        )
        return
    yield Problem(
        path=path,
        message=f"DeepSpeed refuses to offload {client}, which the script passes"
        if client is not None
        else "there is no optimizer section: DeepSpeed refuses to offload an optimizer of the script other than "
        "DeepSpeedCPUAdam and DeepSpeedCPULion",
        help='give an optimizer section, pass DeepSpeedCPUAdam, or write "zero_force_ds_cpu_optimizer": false',
        severity=Severity.ERROR if client is not None else None,
    )
