"""The smaller sections: asynchronous I/O, monitors, data efficiency, tuning, checkpoints, pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, lookup, number, shown, truth

_CURRICULUM = "data_efficiency.data_sampling.curriculum_learning"
_BATCHING = "data_efficiency.data_sampling.dynamic_batching"

_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml>=3.41.0"}
"""Monitor -> the package that it imports (monitor/utils.py)."""

_AIO_MINIMUM = {"block_size": 1, "queue_depth": 1, "intra_op_parallelism": 1, "thread_count": 1}

_PIPELINE_UNREAD = {"stages": "num_stages", "partition": "partition_method", "seed_layers": "seed_layers"}
"""Key of `pipeline` that DeepSpeed copies and nothing reads -> the argument of PipelineModule that does it."""


@rule("SCT001")
def asynchronous_reads_have_a_size(view: View) -> Iterator[Problem]:
    """Sizes of asynchronous I/O that are not above 0.

    DeepSpeed checks none of them (runtime/swap_tensor/aio_config.py); they fail when NVMe offload is built.

    Example:
        {
          "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}},
          "aio": {"block_size": -1}
        }

    Instead:
        {
          "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}},
          "aio": {"block_size": 1048576}
        }

    Since: DeepSpeed 0.14
    """
    section = view.config.get("aio")
    if view.kind != "ds_config" or not isinstance(section, Mapping):
        return
    for key, minimum in _AIO_MINIMUM.items():
        value = number(section.get(key))
        if value is not None and value < minimum:
            yield Problem(
                path=("aio", key),
                message=f"{key} {value:g} is no size that anything can be read with"
                + ("" if _swaps(view) else "; nothing is read from NVMe here, though"),
                help="leave it out for the default",
                severity=None if _swaps(view) else Severity.WARNING,
            )


@rule("SCT002", Severity.INFO)
def asynchronous_reads_have_a_use(view: View) -> Iterator[Problem]:
    """An aio section where nothing goes to NVMe.

    DeepSpeed reads the section for NVMe offload, which stage 3 alone has, and for its own checkpoint writer.

    Example:
        {"zero_optimization": {"stage": 2}, "aio": {"block_size": 1048576}}

    Instead:
        {
          "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}},
          "aio": {"block_size": 1048576}
        }

    Since: DeepSpeed 0.14
    """
    section = view.config.get("aio")
    decided = view.stage is not None and "auto" not in (
        lookup(view.config, "zero_optimization.offload_optimizer.device"),
        lookup(view.config, "zero_optimization.offload_param.device"),
    )
    if view.kind == "ds_config" and isinstance(section, Mapping) and section and decided and not _swaps(view):
        yield Problem(path="aio", message="aio does nothing: nothing goes to NVMe", help="remove it", on_key=True)


@rule("SCT003")
def direct_storage_is_of_cuda(view: View) -> Iterator[Problem]:
    """aio.use_gds on a device that is not CUDA.

    DeepSpeed: "GDS currently only supported for CUDA accelerator" (runtime/swap_tensor/aio_config.py), with or without
    NVMe offload.

    Example:
        {"aio": {"use_gds": true}}

    Instead:
        {"aio": {"use_gds": false}}

    Options: --device ascend-910b3-64g
    Since: DeepSpeed 0.15.0
    """
    if view.kind != "ds_config" or view.device is None or view.device.kind == "cuda":
        return
    if truth(lookup(view.config, "aio.use_gds")) and view.since("0.15.0"):
        yield Problem(
            path="aio.use_gds",
            message=f"use_gds is for CUDA only: DeepSpeed refuses to start on {view.device.id}",
            help="write false",
        )


@rule("SCT004", Severity.WARNING)
def monitor_has_its_package(view: View) -> Iterator[Problem]:
    """A monitor that needs a package which DeepSpeed does not bring along.

    Where it is not installed deepspeed.initialize stops with a ModuleNotFoundError (monitor/utils.py). csv_monitor
    needs none.

    Example:
        {"tensorboard": {"enabled": true}}

    Instead:
        {"csv_monitor": {"enabled": true, "output_path": "runs"}}

    Since: DeepSpeed 0.14
    """
    for name, package in _PACKAGES.items():
        if view.kind == "ds_config" and truth(lookup(view.config, (name, "enabled"))):
            yield Problem(
                path=(name,),
                message=f"{name} needs the package {package}: without it DeepSpeed fails at start",
                help=f"pip install '{package}' on every node, or take csv_monitor",
                on_key=True,
            )
    saved = view.config.get("datastates_ckpt", False)
    if view.kind == "ds_config" and saved is not False:
        yield Problem(
            path=("datastates_ckpt",),
            message="datastates_ckpt needs the package datastates: without it DeepSpeed refuses to start",
            help="install datastates-llm on every node, or remove it",
            on_key=True,
        )


@rule("SCT005")
def curriculum_has_metrics(view: View) -> Iterator[Problem]:
    """Curriculum learning without metrics, or dynamic batching without a number of tokens.

    DeepSpeed asserts curriculum_metrics and max_tokens as soon as the sections are enabled, also where data_efficiency
    is not (runtime/data_pipeline/config.py).

    Example:
        {"data_efficiency": {"data_sampling": {"curriculum_learning": {"enabled": true}}}}

    Instead:
        {"data_efficiency": {"data_sampling": {"curriculum_learning": {"enabled": false}}}}

    Since: DeepSpeed 0.14
    """
    if view.kind != "ds_config":
        return
    for path, key in ((_CURRICULUM, "curriculum_metrics"), (_BATCHING, "max_tokens")):
        section = lookup(view.config, path)
        if not isinstance(section, Mapping) or not truth(section.get("enabled")) or key in section:
            continue
        if view.keys.get(path) is not None or path in view.keys.known_sections:
            yield Problem(
                path=path,
                message=f"{path.rpartition('.')[2]} is enabled without {key}: DeepSpeed refuses to start",
                help=f"give {key}, or turn it off",
                on_key=True,
            )


@rule("SCT006")
def tuner_has_folders(view: View) -> Iterator[Problem]:
    """Empty folders of the autotuner.

    DeepSpeed: "results_dir cannot be empty" (autotuning/config.py), also where the tuner is not enabled.

    Example:
        {"autotuning": {"results_dir": ""}}

    Instead:
        {"autotuning": {"results_dir": "autotuning_results"}}

    Since: DeepSpeed 0.14
    """
    section = view.config.get("autotuning")
    if view.kind != "ds_config" or not isinstance(section, Mapping):
        return
    for key, default in (("results_dir", "autotuning_results"), ("exps_dir", "autotuning_exps")):
        if key in section and not section[key]:
            yield Problem(
                path=("autotuning", key),
                message=f"{key} is {shown(section[key])}: DeepSpeed refuses to start",
                help=f'leave it out for "{default}"',
            )


@rule("SCT007", Severity.WARNING)
def checkpoint_writer_knows_its_ranks(view: View) -> Iterator[Problem]:
    """checkpoint.writer without data_parallel, below stage 3.

    DeepSpeed stops with AttributeError "dp_rank" (runtime/model_checkpointing/data_parallel_writer_factory.py), unless
    the program passes an mpu.

    Example:
        {"zero_optimization": {"stage": 2}, "checkpoint": {"writer": {"type": "FAST"}}}

    Instead:
        {"zero_optimization": {"stage": 2}, "checkpoint": {"writer": {"type": "FAST", "data_parallel": "replica"}}}

    Since: DeepSpeed 0.17.1
    """
    writer = lookup(view.config, "checkpoint.writer")
    if view.kind != "ds_config" or not isinstance(writer, Mapping) or view.stage not in (0, 1, 2):
        return
    if writer.get("data_parallel") is None and view.since("0.17.1"):
        yield Problem(
            path="checkpoint.writer",
            message="checkpoint.writer without data_parallel: DeepSpeed fails with AttributeError dp_rank unless the "
            "program passes an mpu",
            help='give "data_parallel": "replica", "socket" or "machine"',
            on_key=True,
        )


@rule("SCT008", Severity.WARNING)
def pipeline_is_built_by_the_script(view: View) -> Iterator[Problem]:
    """Keys of `pipeline` that nothing reads.

    DeepSpeed copies the section (runtime/config.py, get_pipeline_config); stages, partition and seed_layers of a
    pipeline are arguments of PipelineModule in the script.

    Example:
        {"pipeline": {"stages": 2}}

    Instead:
        {"pipeline": {"activation_checkpoint_interval": 1}}

    Since: DeepSpeed 0.14
    """
    section = view.config.get("pipeline")
    if view.kind != "ds_config" or not isinstance(section, Mapping):
        return
    for key, argument in _PIPELINE_UNREAD.items():
        if key in section and section[key] != "auto":
            yield Problem(
                path=("pipeline", key),
                message=f"pipeline.{key} does nothing: it is an argument of PipelineModule in the script",
                help=f"pass {argument} to PipelineModule, and remove it here",
                on_key=True,
            )


@rule("SCT009")
def compiled_passes_go_together(view: View) -> Iterator[Problem]:
    """DeepCompile with ways of offloading that exclude each other.

    At stage 3 DeepSpeed refuses offload_opt_states with ZeRO's own optimizer offload or with offload_parameters, and
    offload_activation with either of the two (compile/init_z3.py).

    Example:
        {
          "zero_optimization": {"stage": 3},
          "compile": {"deepcompile": true, "offload_parameters": true, "offload_opt_states": true}
        }

    Instead:
        {"zero_optimization": {"stage": 3}, "compile": {"deepcompile": true, "offload_opt_states": true}}

    Since: DeepSpeed 0.19.8
    """
    section = view.config.get("compile")
    if view.kind != "ds_config" or not isinstance(section, Mapping) or view.stage != 3 or not view.since("0.19.8"):
        return
    if not truth(section.get("deepcompile")):
        return
    activation, states, parameters = (
        truth(section.get(f"offload_{name}")) is True for name in ("activation", "opt_states", "parameters")
    )
    problems = {
        "offload_opt_states": "ZeRO's offload_optimizer"
        if states and view.offload_optimizer in ("cpu", "nvme")
        else "",
        "offload_parameters": "offload_opt_states" if states and parameters else "",
        "offload_activation": "offload_parameters or offload_opt_states"
        if activation and (parameters or states)
        else "",
    }
    for key, other in problems.items():
        if other:
            yield Problem(
                path=("compile", key),
                message=f"compile.{key} cannot be combined with {other}: DeepSpeed refuses it",
                help="leave one of the two out",
            )


def _swaps(view: View) -> bool:
    """Whether anything uses asynchronous I/O."""
    devices = (view.offload_optimizer, view.offload_parameters)
    return (view.stage == 3 and "nvme" in devices) or lookup(view.config, "checkpoint.writer") is not None
