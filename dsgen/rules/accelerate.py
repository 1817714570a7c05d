"""Configs of accelerate with a `deepspeed_config` section: what accelerate 1.15 reads, ignores and refuses."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dsgen.catalog.lookup import alike, nearest
from dsgen.documents.positions import Path
from dsgen.findings import Edit, Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, shown

SECTION = "deepspeed_config"

TOP_KEYS = frozenset(
    {
        "command_file",
        "commands",
        "compute_environment",
        "debug",
        "deepspeed_config",
        "distributed_type",
        "downcast_bf16",
        "dynamo_config",
        "enable_cpu_affinity",
        "fp8_config",
        "fsdp_config",
        "gpu_ids",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "main_training_function",
        "megatron_lm_config",
        "mixed_precision",
        "mpirun_config",
        "num_machines",
        "num_processes",
        "parallelism_config",
        "rdzv_backend",
        "same_network",
        "tpu_env",
        "tpu_name",
        "tpu_use_cluster",
        "tpu_use_sudo",
        "tpu_vm",
        "tpu_zone",
        "use_cpu",
    }
)
"""Fields of accelerate's ClusterConfig (commands/config/config_args.py)."""

OLD_TOP_KEYS = frozenset({"fp16", "dynamo_backend"})
"""Keys that accelerate turns into others before it looks (BaseConfig.process_config)."""

KEYS = frozenset(
    {
        "deepspeed_config_file",
        "deepspeed_exclusion_filter",
        "deepspeed_hostfile",
        "deepspeed_inclusion_filter",
        "deepspeed_moe_layer_cls_names",
        "deepspeed_multinode_launcher",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "offload_optimizer_device",
        "offload_optimizer_nvme_path",
        "offload_param_device",
        "offload_param_nvme_path",
        "zero3_init_flag",
        "zero3_save_16bit_model",
        "zero_stage",
    }
)
"""Arguments of `accelerate launch` for DeepSpeed (commands/launch.py)."""

CLASHING = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
    "mixed_precision",
)
"""Keys that may not stand beside deepspeed_config_file (utils/dataclasses.py, _deepspeed_config_checks)."""

DISTRIBUTED_TYPES = (
    "NO",
    "MULTI_CPU",
    "MULTI_GPU",
    "MULTI_NPU",
    "MULTI_MLU",
    "MULTI_SDAA",
    "MULTI_MUSA",
    "MULTI_XPU",
    "MULTI_HPU",
    "MULTI_NEURON",
    "DEEPSPEED",
    "FSDP",
    "XLA",
    "MEGATRON_LM",
)
PRECISIONS = ("no", "fp16", "bf16", "fp8")
LAUNCHERS = ("pdsh", "standard", "openmpi", "mvapich", "mpich", "impi", "nossh", "slurm")
"""Those of accelerate and of DeepSpeed's own launcher, which gets the name."""

_WHOLE = re.compile(r"\s*[-+]?[0-9]+\s*\Z")
_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")


def uses_deepspeed(said: Mapping[str, Any]) -> bool:
    """Whether an accelerate config starts DeepSpeed."""
    return said.get("distributed_type") == "DEEPSPEED"


def section_of(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `deepspeed_config` section; empty when there is none."""
    section = said.get(SECTION)
    return section if isinstance(section, Mapping) else {}


def config_file_of(said: Mapping[str, Any]) -> str | None:
    """The ds_config that an accelerate config names, as it is written."""
    name = section_of(said).get("deepspeed_config_file")
    return name if isinstance(name, str) and name not in ("", "none") else None


def hostfile_of(said: Mapping[str, Any]) -> str | None:
    """The hostfile that accelerate hands to DeepSpeed's launcher, as it is written; None where it does not."""
    section, machines = section_of(said), said.get("num_machines")
    name = section.get("deepspeed_hostfile")
    used = isinstance(machines, int) and machines > 1 and section.get("deepspeed_multinode_launcher") != "standard"
    return name if used and uses_deepspeed(said) and isinstance(name, str) and name else None


def stage_of(said: Mapping[str, Any]) -> int | None:
    """The ZeRO stage that accelerate takes: 2 when none is said; None for what is no whole number."""
    value = section_of(said).get("zero_stage")
    if value is None:
        return 2
    text = str(value)
    return int(text) if len(text) < 10 and _WHOLE.match(text) else None


@rule("ACC001")
def type_is_known(view: View) -> Iterator[Problem]:
    """A `distributed_type` that accelerate does not know, or none.

    accelerate: ValueError "A `distributed_type` must be specified", or "is not a valid DistributedType"; the names are
    written in capitals (commands/config/config_args.py, process_config).

    Example (accelerate):
        distributed_type: deepspeed
        deepspeed_config: {zero_stage: 3}
        num_processes: 8

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3}
        num_processes: 8

    Since: accelerate 1.15
    """
    if view.kind != "accelerate" or view.accelerate.get("compute_environment") == "AMAZON_SAGEMAKER":
        return
    value = view.accelerate.get("distributed_type")
    if "distributed_type" not in view.accelerate:
        yield Problem(
            path=(),
            message="no distributed_type is said: accelerate stops with a ValueError",
            help="write distributed_type: DEEPSPEED",
        )
    elif isinstance(value, str) and value not in DISTRIBUTED_TYPES:
        meant = value.upper() if value.upper() in DISTRIBUTED_TYPES else None
        near = (meant,) if meant else nearest(value, DISTRIBUTED_TYPES, 1)
        yield Problem(
            path=("distributed_type",),
            message=f"accelerate knows no distributed_type {shown(value)} and stops with a ValueError",
            help=f"write {near[0]}" if near else "for DeepSpeed write DEEPSPEED",
            fix=(Edit(action="set", path=("distributed_type",), value=meant),) if meant else (),
        )


@rule("ACC002", Severity.WARNING)
def section_is_used(view: View) -> Iterator[Problem]:
    """A `deepspeed_config` section in a config whose `distributed_type` is another: DeepSpeed does not run.

    accelerate starts DeepSpeed only for DEEPSPEED, or when `accelerate launch` gets `--use_deepspeed`
    (commands/launch.py, _validate_launch_command). Without it the section does nothing.

    Example (accelerate):
        distributed_type: MULTI_GPU
        deepspeed_config: {zero_stage: 3}
        num_processes: 8

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3}
        num_processes: 8

    Since: accelerate 1.15
    """
    value = view.accelerate.get("distributed_type")
    if section_of(view.accelerate) and value in DISTRIBUTED_TYPES and value != "DEEPSPEED":
        yield Problem(
            path=(SECTION,),
            message=f"{SECTION} does nothing with distributed_type {value}, unless accelerate launch gets "
            "--use_deepspeed",
            help="write distributed_type: DEEPSPEED, or remove the section",
            on_key=True,
        )


@rule("ACC003")
def key_is_accelerates(view: View) -> Iterator[Problem]:
    """A key at the top that accelerate does not know: it stops.

    ValueError "had unknown keys" (commands/config/config_args.py, from_yaml_file). Keys of older releases are refused
    too.

    Example (accelerate):
        distributed_type: DEEPSPEED
        zero_stage: 3
        num_processes: 8

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3}
        num_processes: 8

    Since: accelerate 1.15
    """
    if view.kind != "accelerate" or view.accelerate.get("compute_environment") == "AMAZON_SAGEMAKER":
        return
    for name in view.accelerate:
        if name in TOP_KEYS or name in OLD_TOP_KEYS:
            continue
        if name in KEYS:
            help = f"write it in {SECTION}"
        else:
            near = nearest(name, TOP_KEYS)
            help = f"did you mean {' or '.join(near)}?" if near else "remove it"
        yield Problem(
            path=(name,),
            message=f"accelerate 1.15 knows no key {shown(name)} here and stops with a ValueError",
            help=help,
            on_key=True,
        )


@rule("ACC004")
def key_is_deepspeeds(view: View) -> Iterator[Problem]:
    """A key in `deepspeed_config` that accelerate does not know: it is ignored without a word.

    accelerate copies the section onto the arguments of `accelerate launch` (commands/launch.py,
    _validate_launch_command): a name that is none of them is never read again. Names of ds_config.json are not known
    there either.

    Example (accelerate):
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3, offload_params_device: cpu}
        num_processes: 8

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3, offload_param_device: cpu}
        num_processes: 8

    Since: accelerate 1.15
    """
    section = section_of(view.accelerate)
    keys = view.keys
    for name in section:
        if name in KEYS or name in TOP_KEYS:
            continue  # what belongs to the top is copied onto the same arguments
        near = nearest(name, KEYS)
        sure = bool(near) and near[0] not in section and alike(name, near[0])
        if near:
            near = near[:1] if sure else near
            help = f"did you mean {' or '.join(near)}?"
        elif "." not in name and keys.get(name) is not None:
            help = "write it in a ds_config.json, and name that with deepspeed_config_file"
        else:
            help = "remove it"
        path: Path = (SECTION, name)
        yield Problem(
            path=path,
            message=f"accelerate knows no key {shown(name)} in {SECTION}: it is ignored without a word",
            help=help,
            on_key=True,
            fix=(Edit(action="rename", path=path, to=(SECTION, near[0])),) if sure else (),
        )


@rule("ACC005")
def file_decides_alone(view: View) -> Iterator[Problem]:
    """A setting beside `deepspeed_config_file` that the file decides: accelerate stops.

    ValueError "When using `deepspeed_config_file`, the following accelerate config variables will be ignored"
    (utils/dataclasses.py, DeepSpeedPlugin._deepspeed_config_checks): the mere presence of the key is enough, whatever
    its value. That goes for `mixed_precision` at the top too.

    Example (accelerate):
        distributed_type: DEEPSPEED
        deepspeed_config: {deepspeed_config_file: '{"zero_optimization": {}}', zero_stage: 3}
        num_processes: 8

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {deepspeed_config_file: '{"zero_optimization": {}}', zero3_init_flag: true}
        num_processes: 8

    Since: accelerate 1.15
    """
    said = view.accelerate
    if not uses_deepspeed(said) or config_file_of(said) is None:
        return
    for name in CLASHING:
        if name in section_of(said):
            path: Path = (SECTION, name)
        elif name == "mixed_precision" and said.get(name) is not None:
            path = (name,)
        else:
            continue
        yield Problem(
            path=path,
            message=f"{name} may not stand beside deepspeed_config_file: accelerate stops with a ValueError",
            help=f"remove it; {_in_ds_config(name)} in the file decides",
            on_key=True,
        )


def _in_ds_config(name: str) -> str:
    if name == "mixed_precision":
        return "bf16.enabled or fp16.enabled"
    if name in ("gradient_accumulation_steps", "gradient_clipping"):
        return name
    return "zero_optimization"


@rule("ACC006", Severity.WARNING)
def file_is_there(view: View) -> Iterator[Problem]:
    """A `deepspeed_config_file` that is not there.

    accelerate looks for it from the folder in which it is started, takes `~` for a folder of that name, and stops with
    the ValueError "Expected a string path to an existing deepspeed config" (utils/deepspeed.py, HfDeepSpeedConfig).

    Example (accelerate):
        distributed_type: DEEPSPEED
        deepspeed_config: {deepspeed_config_file: no-such-folder/ds_config.json}
        num_processes: 8

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3}
        num_processes: 8

    Since: accelerate 1.15
    """
    for note in view.notes:
        if note.kind == "missing-file":
            yield Problem(
                path=note.path,
                message=f"{shown(note.detail)} is neither in this folder nor in that of the config: where it is "
                "missing, accelerate stops with a ValueError",
                help="write a path that counts from the folder where accelerate launch is started"
                + (", without ~" if note.detail.startswith("~") else ""),
            )


@rule("ACC007")
def value_can_be_read(view: View) -> Iterator[Problem]:
    """A value that accelerate fails on when the job starts.

    The section goes to the ranks as text in environment variables, and is read back there with int(), float() and a
    list of words (utils/launch.py, prepare_deepspeed_cmd_env; utils/dataclasses.py, DeepSpeedPlugin).
    `mixed_precision: no` without quotes is `false` to accelerate's YAML reader: AttributeError "'bool' object has no
    attribute 'lower'".

    Example (accelerate):
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 2.0}
        mixed_precision: no
        num_processes: 8

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 2}
        mixed_precision: 'no'
        num_processes: 8

    Since: accelerate 1.15
    """
    said = view.accelerate
    if not uses_deepspeed(said):
        return
    if said.get(SECTION) is not None and not isinstance(said[SECTION], Mapping):
        yield Problem(path=(SECTION,), message=f"{SECTION} is {shown(said[SECTION])}", help="write its keys below it")
        return
    yield from _precision_problems(view)
    section = section_of(said)
    if config_file_of(said) is None:
        yield from _number_problems(section)
    flag = section.get("zero3_init_flag")
    if flag is not None and str(flag).lower() not in (*_TRUE, *_FALSE):
        yield Problem(
            path=(SECTION, "zero3_init_flag"),
            message=f"zero3_init_flag is {shown(flag)}: accelerate stops with a ValueError",
            help="write true or false",
        )


def _precision_problems(view: View) -> Iterator[Problem]:
    value = view.accelerate.get("mixed_precision")
    if any(note.kind == "unquoted-no" for note in view.notes) or isinstance(value, bool):
        yield Problem(
            path=("mixed_precision",),
            message="mixed_precision is a boolean to accelerate, which fails on it with an AttributeError",
            help="write 'no' in quotes",
        )
    elif value is not None and str(value).lower() not in PRECISIONS:
        yield Problem(
            path=("mixed_precision",),
            message=f"mixed_precision is {shown(value)}: accelerate stops with a ValueError",
            help=f"write one of {', '.join(PRECISIONS)}",
        )


def _number_problems(section: Mapping[str, Any]) -> Iterator[Problem]:
    steps, clipping = section.get("gradient_accumulation_steps"), section.get("gradient_clipping")
    if section.get("zero_stage") is not None and not _WHOLE.match(str(section["zero_stage"])):
        yield Problem(
            path=(SECTION, "zero_stage"),
            message=f"zero_stage is {shown(section['zero_stage'])}: accelerate stops with a ValueError",
            help="write 0, 1, 2 or 3",
        )
    if steps == "auto":
        yield Problem(
            path=(SECTION, "gradient_accumulation_steps"),
            message="gradient_accumulation_steps is auto: only transformers' Trainer fills it in, Accelerator() alone "
            "stops with a ValueError",
            help="write the number, or leave it out to say it in the script",
            severity=Severity.WARNING,
        )
    elif steps is not None and not re.match(r"[0-9]+\Z", str(steps)):
        yield Problem(
            path=(SECTION, "gradient_accumulation_steps"),
            message=f"gradient_accumulation_steps is {shown(steps)}: accelerate stops with a ValueError",
            help="write a whole number",
        )
    if clipping is not None and str(clipping).lower() != "auto" and not _is_number(clipping):
        yield Problem(
            path=(SECTION, "gradient_clipping"),
            message=f"gradient_clipping is {shown(clipping)}: accelerate stops with a ValueError",
            help="write a number, or leave it out",
        )


def _is_number(value: Any) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


@rule("ACC008", Severity.INFO)
def stage_is_said(view: View) -> Iterator[Problem]:
    """No ZeRO stage is said.

    accelerate takes stage 2 then, DeepSpeed itself would take 0 (utils/dataclasses.py, DeepSpeedPlugin).

    Example (accelerate):
        distributed_type: DEEPSPEED
        deepspeed_config: {gradient_accumulation_steps: 4}
        num_processes: 8

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 2, gradient_accumulation_steps: 4}
        num_processes: 8

    Since: accelerate 1.15
    """
    said = view.accelerate
    if uses_deepspeed(said) and section_of(said).get("zero_stage") is None and config_file_of(said) is None:
        yield Problem(
            path=(SECTION, "zero_stage"),
            message="zero_stage is not said: accelerate takes stage 2",
            help="write the stage that is meant",
        )


@rule("ACC009", Severity.WARNING)
def setting_has_its_stage(view: View) -> Iterator[Problem]:
    """A setting for stage 3 at another stage.

    accelerate sets `zero3_init_flag` back with a warning and hands the other one to DeepSpeed, which reads it at stage
    3 only (utils/dataclasses.py, DeepSpeedPlugin).

    Example (accelerate):
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 2, zero3_init_flag: true}
        num_processes: 8

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 2}
        num_processes: 8

    Since: accelerate 1.15
    """
    said = view.accelerate
    stage = stage_of(said)
    if not uses_deepspeed(said) or config_file_of(said) is not None or stage is None or stage == 3:
        return
    for name in ("zero3_init_flag", "zero3_save_16bit_model"):
        if str(section_of(said).get(name)).lower() in (_TRUE if name == "zero3_init_flag" else ("true",)):
            yield Problem(
                path=(SECTION, name),
                message=f"{name} does nothing at stage {stage}",
                help="take stage 3, or remove it",
                on_key=True,
            )


@rule("ACC010")
def nvme_path_arrives(view: View) -> Iterator[Problem]:
    """A folder for offload to NVMe, which `accelerate launch` does not hand on.

    The launcher puts the other settings into the environment of the ranks, the two folders not (utils/launch.py,
    prepare_deepspeed_cmd_env of 1.15); DeepSpeedPlugin then takes the word `none` for the folder, and DeepSpeed swaps
    into `./none`. A ds_config says the folder, and so does the variable ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH
    (or OPTIMIZER in place of PARAM) where accelerate is started. Beside another device than nvme the folder means
    nothing: a warning.

    Example (accelerate):
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3, offload_optimizer_device: nvme, offload_optimizer_nvme_path: /nvme}
        num_processes: 8

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu}
        num_processes: 8

    Since: accelerate 1.15
    """
    section = section_of(view.accelerate)
    if not uses_deepspeed(view.accelerate) or config_file_of(view.accelerate) is not None:
        return
    for what in ("offload_optimizer", "offload_param"):
        folder, device = section.get(f"{what}_nvme_path"), section.get(f"{what}_device")
        on_nvme, is_said = str(device).lower() == "nvme", folder not in (None, "", "none")
        if on_nvme:
            yield Problem(
                path=(SECTION, f"{what}_nvme_path" if is_said else f"{what}_device"),
                message=(f"accelerate launch does not hand {what}_nvme_path on" if is_said else "no folder is said")
                + ": DeepSpeed swaps into the folder `none` of the current one",
                help='name a ds_config with "nvme_path" in deepspeed_config_file, or set '
                f"ACCELERATE_DEEPSPEED_{what.upper()}_NVME_PATH where accelerate launch is started",
                severity=None if is_said else Severity.WARNING,
            )
        elif is_said:
            yield Problem(
                path=(SECTION, f"{what}_nvme_path"),
                message=f"{what}_nvme_path does nothing: {what}_device is {shown(device) if device else 'not said'}",
                help="remove it",
                on_key=True,
                severity=Severity.WARNING,
            )


@rule("ACC011", Severity.WARNING)
def machines_have_a_hostfile(view: View) -> Iterator[Problem]:
    """Several machines without a hostfile: the job runs on one.

    For every launcher but `standard` accelerate starts `deepspeed --hostfile None` (utils/launch.py,
    prepare_deepspeed_cmd_env); DeepSpeed's launcher warns that it finds no hostfile and trains on this machine alone.

    Example (accelerate):
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3, deepspeed_multinode_launcher: pdsh}
        num_machines: 2
        num_processes: 16

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3, deepspeed_multinode_launcher: pdsh, deepspeed_hostfile: hostfile}
        num_machines: 2
        num_processes: 16

    Since: accelerate 1.15
    """
    section = section_of(view.accelerate)
    launcher = section.get("deepspeed_multinode_launcher") or "pdsh"
    if _machines(view) > 1 and launcher != "standard" and not section.get("deepspeed_hostfile"):
        yield Problem(
            path=("num_machines",),
            message=f"{_machines(view)} machines and no deepspeed_hostfile: unless accelerate launch gets "
            f"--deepspeed_hostfile, {shown(launcher)} starts the job on this machine alone",
            help="give deepspeed_hostfile, or deepspeed_multinode_launcher: standard and start it on each machine",
        )


@rule("ACC016", Severity.WARNING)
def hostfile_is_there(view: View) -> Iterator[Problem]:
    """A `deepspeed_hostfile` that is not there.

    accelerate hands the path to DeepSpeed's launcher (utils/launch.py, prepare_deepspeed_cmd_env), which looks for it
    from the folder in which it is started, warns that it finds none, and trains on this machine alone
    (launcher/runner.py, fetch_hostfile). One that is there is looked into.

    Example (accelerate):
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3, deepspeed_hostfile: no-such-folder/hostfile}
        num_machines: 2
        num_processes: 16

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3, deepspeed_multinode_launcher: standard}
        num_machines: 2
        num_processes: 16

    Since: accelerate 1.15
    """
    for note in view.notes:
        if note.kind == "missing-hostfile":
            yield Problem(
                path=note.path,
                message=f"{shown(note.detail)} is neither in this folder nor in that of the config: where it is "
                "missing, DeepSpeed trains on this machine alone",
                help="write a path that counts from the folder where accelerate launch is started",
            )


@rule("ACC017", Severity.WARNING)
def processes_are_counted(view: View) -> Iterator[Problem]:
    """No `num_processes`, or a number of processes that nothing can be started with.

    accelerate counts devices only where it has no config file. With one it stops with the ValueError "You need to
    manually pass in `--num_processes`" (commands/launch.py, _validate_launch_command), unless `accelerate launch` gets
    that option: a warning. Numbers below 1, other values than numbers, and fewer processes than machines are errors:
    torchrun or DeepSpeed's launcher stops.

    Example (accelerate):
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3}

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3}
        num_processes: 8

    Since: accelerate 1.15
    """
    said = view.accelerate
    if not uses_deepspeed(said) or said.get("compute_environment") == "AMAZON_SAGEMAKER":
        return
    value, machines = said.get("num_processes", -1), _machines(view)
    whole = not isinstance(value, bool) and isinstance(value, (int, str)) and _WHOLE.match(str(value)) is not None
    if value == -1 or value is None:
        yield Problem(
            path=("num_processes",),
            message="num_processes is not said: accelerate launch stops with a ValueError unless it gets "
            "--num_processes",
            help="write num_processes: the number of devices on all machines",
        )
    elif not whole or (isinstance(value, str) and machines > 1):
        yield Problem(
            path=("num_processes",),
            message=f"num_processes is {shown(value)}, and no whole number: the launcher stops",
            help="write the number of devices on all machines",
            severity=Severity.ERROR,
        )
    elif len(str(value)) < 10 and int(value) < machines:
        yield Problem(
            path=("num_processes",),
            message=f"num_processes is {value}: "
            + (f"no process on each of the {machines} machines" if machines > 1 else "there is no process to start"),
            help="write the number of devices on all machines",
            severity=Severity.ERROR,
        )


@rule("ACC012")
def launcher_is_known(view: View) -> Iterator[Problem]:
    """A launcher that neither accelerate nor DeepSpeed has.

    accelerate hands the name to DeepSpeed's launcher (utils/launch.py, prepare_deepspeed_cmd_env), which stops with
    the NotImplementedError "Unknown launcher" (launcher/runner.py, main).

    Example (accelerate):
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3, deepspeed_multinode_launcher: torchrun, deepspeed_hostfile: hostfile}
        num_machines: 2
        num_processes: 16

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3, deepspeed_multinode_launcher: standard}
        num_machines: 2
        num_processes: 16

    Since: accelerate 1.15
    """
    launcher = section_of(view.accelerate).get("deepspeed_multinode_launcher")
    if _machines(view) > 1 and launcher is not None and str(launcher).lower() not in LAUNCHERS:
        yield Problem(
            path=(SECTION, "deepspeed_multinode_launcher"),
            message=f"there is no launcher {shown(launcher)}: DeepSpeed stops with a NotImplementedError",
            help=f"write one of {', '.join(LAUNCHERS)}; standard is torchrun",
        )


@rule("ACC013", Severity.WARNING)
def machines_divide_processes(view: View) -> Iterator[Problem]:
    """Processes that cannot be spread evenly: accelerate rounds down and starts fewer.

    `num_processes` counts all machines; each gets `num_processes // num_machines` (utils/launch.py,
    prepare_deepspeed_cmd_env).

    Example (accelerate):
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3, deepspeed_multinode_launcher: standard}
        num_machines: 2
        num_processes: 15

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 3, deepspeed_multinode_launcher: standard}
        num_machines: 2
        num_processes: 16

    Since: accelerate 1.15
    """
    machines, processes = _machines(view), view.accelerate.get("num_processes")
    if machines > 1 and isinstance(processes, int) and processes > machines and processes % machines:
        each = processes // machines
        yield Problem(
            path=("num_processes",),
            message=f"{processes} processes on {machines} machines: accelerate starts {each} on each, "
            f"{each * machines} in all",
            help=f"num_processes counts all machines: write {each * machines} or {(each + 1) * machines}",
        )


@rule("ACC014")
def file_has_zero(view: View) -> Iterator[Problem]:
    """A ds_config for accelerate or transformers without `zero_optimization`: accelerate stops.

    ValueError "Please specify the ZeRO optimization config in the DeepSpeed config" (utils/dataclasses.py,
    DeepSpeedPlugin, which transformers uses too). DeepSpeed itself would train at stage 0.

    Example (accelerate):
        distributed_type: DEEPSPEED
        deepspeed_config: {deepspeed_config_file: '{"train_micro_batch_size_per_gpu": 1}'}
        num_processes: 8

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config:
          deepspeed_config_file: '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}'
        num_processes: 8

    Since: accelerate 1.15
    """
    inline = view.accelerate_inline
    config = view.config if view.kind == "ds_config" and view.framework == "transformers" else inline
    if config is not None and "zero_optimization" not in config and not _near_zero(view, config):
        yield Problem(
            path=("zero_optimization",) if inline is None else (SECTION, "deepspeed_config_file"),
            message="there is no zero_optimization: accelerate, which transformers starts DeepSpeed with, stops with a "
            "ValueError",
            help='write "zero_optimization": {"stage": 0} for training without ZeRO',
        )


def _near_zero(view: View, config: Mapping[str, Any]) -> bool:
    """Whether one of the first unknown keys of a ds_config is a misspelt zero_optimization, which KEY001 says."""
    unknown = itertools.islice((name for name in config if view.keys.get(name) is None), 50)
    return view.kind == "ds_config" and any("zero_optimization" in view.keys.suggestions(name) for name in unknown)


@rule("ACC015", Severity.WARNING)
def clipping_can_be_off(view: View) -> Iterator[Problem]:
    """`gradient_clipping: 0`: accelerate leaves it out, and DeepSpeed clips to its own default.

    accelerate hands on what is not 0 (utils/dataclasses.py, DeepSpeedPlugin); without the key DeepSpeed clips to a
    norm of 1.0 from 0.19.3 on.

    Example (accelerate):
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 2, gradient_clipping: 0.0}
        num_processes: 8

    Instead:
        distributed_type: DEEPSPEED
        deepspeed_config: {zero_stage: 2, gradient_clipping: 1.0}
        num_processes: 8

    Since: DeepSpeed 0.19.3
    """
    said = view.accelerate
    value = section_of(said).get("gradient_clipping")
    key = view.keys.get("gradient_clipping")
    default = key.default if key is not None else 0
    if not uses_deepspeed(said) or config_file_of(said) is not None or isinstance(value, bool) or not default:
        return
    if value is not None and _is_number(value) and float(str(value)) == 0:
        yield Problem(
            path=(SECTION, "gradient_clipping"),
            message=f"accelerate leaves out a gradient_clipping of 0; DeepSpeed {view.deepspeed} clips to {default:g}",
            help='for no clipping name a ds_config with "gradient_clipping": 0 in deepspeed_config_file',
        )


def _machines(view: View) -> int:
    value = view.accelerate.get("num_machines")
    right = isinstance(value, int) and not isinstance(value, bool) and uses_deepspeed(view.accelerate)
    return value if right and isinstance(value, int) else 1
