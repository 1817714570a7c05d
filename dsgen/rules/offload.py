"""Moving optimizer states and parameters to host memory or disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsgen.catalog.optimizers import optimizer_type
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, lookup

OPTIMIZER = "zero_optimization.offload_optimizer"
PARAMETERS = "zero_optimization.offload_param"

_NVME_KEYS = ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pipeline_read", "pipeline_write", "fast_init")


def _on(device: str | None) -> bool:
    return device not in (None, "none")


@rule("OFF001")
def parameters_need_stage_3(view: View) -> Iterator[Problem]:
    """Parameter offload below stage 3: DeepSpeed accepts it and keeps every parameter on the device."""
    if _on(view.offload_parameters) and view.stage is not None and view.stage < 3:
        yield Problem(
            path=PARAMETERS,
            message=f"{view.spell(PARAMETERS)} does nothing at stage {view.stage}: only stage 3 partitions parameters",
            help="take stage 3, or remove it",
            on_key=True,
        )


@rule("OFF002")
def optimizer_needs_a_stage(view: View) -> Iterator[Problem]:
    """Optimizer offload at stage 0: DeepSpeed takes its CPU optimizer but moves nothing to the host."""
    if _on(view.offload_optimizer) and view.stage == 0:
        yield Problem(
            path=OPTIMIZER,
            message=f"{view.spell(OPTIMIZER)} moves nothing at stage 0: states are offloaded from stage 1 on",
            help="take stage 1, 2 or 3, or remove it",
            on_key=True,
        )


@rule("OFF003")
def nvme_has_a_path(view: View) -> Iterator[Problem]:
    """NVMe offload without a folder.

    DeepSpeed: TypeError in posixpath.join after the model is loaded.
    """
    for path, device in ((OPTIMIZER, view.offload_optimizer), (PARAMETERS, view.offload_parameters)):
        if device == "nvme" and not lookup(view.config, f"{path}.nvme_path"):
            yield Problem(
                path=f"{path}.device",
                message="nvme has no folder to write to",
                help=f"give {view.spell(f'{path}.nvme_path')}: a folder on the fast disk",
            )


@rule("OFF010")
def nvme_path_is_absolute(view: View) -> Iterator[Problem]:
    """A folder for NVMe offload that DeepSpeed would take from the current folder, and `~` for a folder of that name.

    DeepSpeed: os.makedirs of the path as it is (runtime/swap_tensor/optimizer_utils.py, partitioned_param_swapper.py).
    """
    for path, device in ((OPTIMIZER, view.offload_optimizer), (PARAMETERS, view.offload_parameters)):
        folder = lookup(view.config, f"{path}.nvme_path")
        if device == "nvme" and isinstance(folder, str) and folder and not folder.startswith("/"):
            yield Problem(
                path=f"{path}.nvme_path",
                message=f"{folder!r} would count from whatever folder the ranks are started in, and `~` stays `~`",
                help="write an absolute path: the swap files belong on a fast disk of each node",
            )


@rule("OFF004")
def nvme_needs_stage_3(view: View) -> Iterator[Problem]:
    """Optimizer states on NVMe below stage 3: DeepSpeed accepts it and keeps them in host memory."""
    if view.offload_optimizer == "nvme" and view.stage in (1, 2):
        yield Problem(
            path=f"{OPTIMIZER}.device",
            message=f"nvme does nothing at stage {view.stage}: the states would stay in host memory",
            help="take stage 3, or write cpu",
        )


@rule("OFF005")
def settings_fit_the_device(view: View) -> Iterator[Problem]:
    """Settings of NVMe offload beside another device, or any setting beside `none`: they would do nothing."""
    for path, device in ((OPTIMIZER, view.offload_optimizer), (PARAMETERS, view.offload_parameters)):
        section = lookup(view.config, path)
        if not isinstance(section, Mapping):
            continue
        if device is None and "device" not in section:
            device = "none"  # DeepSpeed's own default
        for key in section:
            if key != "device" and (device == "none" or (device == "cpu" and key in _NVME_KEYS)):
                yield Problem(
                    path=f"{path}.{key}",
                    message=f"{view.spell(f'{path}.{key}').rpartition('.')[2]} does nothing with device {device}",
                    help="remove it",
                    on_key=True,
                )


@rule("OFF006")
def optimizer_runs_on_cpu(view: View) -> Iterator[Problem]:
    """Optimizer offload with an optimizer that has no CPU version in DeepSpeed."""
    known = optimizer_type(view.optimizer) if view.optimizer else None
    if known is None or known.offload or not _on(view.offload_optimizer):
        return
    yield Problem(
        path="optimizer.type",
        message=f"{known.name} has no CPU version: its states cannot be offloaded",
        help="take AdamW, Adam, Lion or Adagrad, or remove the offload",
    )


@rule("OFF007")
def ratio_needs_stage_3(view: View) -> Iterator[Problem]:
    """A partial optimizer offload below stage 3 (DeepSpeed: "Partial offloading only supported for ZeRO Stage 3")."""
    ratio = lookup(view.config, f"{OPTIMIZER}.ratio")
    if isinstance(ratio, (int, float)) and ratio < 1 and view.stage in (1, 2):
        yield Problem(
            path=f"{OPTIMIZER}.ratio",
            message=f"DeepSpeed refuses a partial offload at stage {view.stage}",
            help="take stage 3, or remove ratio",
        )


@rule("OFF008")
def parameters_take_the_optimizer_along(view: View) -> Iterator[Problem]:
    """Parameters offloaded while the optimizer states stay on the device.

    The states are six times larger than the parameters, so the memory saved is the smaller part, and every step
    copies parameters to the host after the device has updated them. DeepSpeed 0.19.8 asserts at stage 3 that
    parameters on NVMe have their states off the device too.
    """
    if view.offload_parameters == "nvme" and view.stage == 3 and not _on(view.offload_optimizer):
        yield Problem(
            path=PARAMETERS,
            message="parameters on nvme need the optimizer states off the device too",
            help=f"give {view.spell(OPTIMIZER)}: cpu or nvme",
        )


@rule("OFF009")
def super_offload_needs_stage_3(view: View) -> Iterator[Problem]:
    """SuperOffload below stage 3, or its share of cores without it: DeepSpeed accepts both and does nothing."""
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
    if "cpuadam_cores_perc" in section and not on:
        yield Problem(
            path=f"{OPTIMIZER}.cpuadam_cores_perc",
            message="cpuadam_cores_perc does nothing without super_offload",
            help="remove it",
            on_key=True,
        )
