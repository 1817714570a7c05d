"""Keys of zero_optimization against the ZeRO stage and each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, lookup, number, truth

STAGE_OF_KEY: Mapping[str, tuple[int, ...]] = {
    "contiguous_gradients": (1, 2, 3),
    "reduce_scatter": (1, 2, 3),
    "reduce_bucket_size": (1, 2, 3),
    "overlap_comm": (1, 2, 3),
    "load_from_fp32_weights": (1, 2),
    "allgather_partitions": (),
    "allgather_bucket_size": (1, 2),
    "round_robin_gradients": (1, 2),
    "use_multi_rank_bucket_allreduce": (1, 2),
    "compute_grad_norm": (1, 2),
    "parameter_alignment": (1, 2),
    "elastic_checkpoint": (1, 2),
    "ignore_unused_parameters": (2,),
    "sub_group_size": (3,),
    "stage3_prefetch_bucket_size": (3,),
    "stage3_param_persistence_threshold": (3,),
    "stage3_model_persistence_threshold": (3,),
    "stage3_max_live_parameters": (3,),
    "stage3_max_reuse_distance": (3,),
    "stage3_gather_16bit_weights_on_model_save": (3,),
    "stage3_module_granularity_threshold": (3,),
    "stage3_use_all_reduce_for_fetch_params": (3,),
    "stage3_allgather_sequential": (3,),
    "zero_hpz_partition_size": (3,),
    "zero_quantized_weights": (3,),
    "zero_quantized_nontrainable_weights": (3,),
    "zero_quantized_gradients": (3,),
    "memory_efficient_linear": (3,),
    "override_module_apply": (3,),
    "pipeline_loading_checkpoint": (3,),
    "log_trace_cache_warnings": (3,),
    "enable_sanity_checks": (3,),
    "leaf_module": (3,),
    "save_muon_momentum_buffer_in_memory": (3,),
}
"""ZeRO stages at which a key of zero_optimization is read, from the arguments that DeepSpeed 0.19.8 hands to its
optimizers (runtime/engine.py, _configure_zero_optimizer); none for a key that nothing reads."""

BF16_OPTIMIZER_KEYS = ("allgather_bucket_size", "load_from_fp32_weights", "elastic_checkpoint", "compute_grad_norm")
"""What DeepSpeed's BF16_Optimizer reads of the keys above; it takes stage 1 in bf16 with fp32 accumulation."""

SECTION = "zero_optimization"

GATHER = "stage3_gather_16bit_weights_on_model_save"


def _saves_shards(view: View) -> bool:
    """Whether a trainer gathers weights to save them because tensor parallelism splits them."""
    return view.kind == "ds_config" and (view.tensor_parallel or 1) > 1


@rule("ZRO001", ds_config=Severity.WARNING)
def key_works_at_stage(view: View) -> Iterator[Problem]:
    """A key of zero_optimization that DeepSpeed does not read at the stage in use.

    It is accepted and does nothing (runtime/engine.py, _configure_zero_optimizer). One is refused where it is not read:
    compute_grad_norm false (runtime/zero/config.py). With tensor_parallel.autotp_size above 1 one of them is read by
    accelerate, at every stage: without stage3_gather_16bit_weights_on_model_save it does not hand out the weights to
    save (accelerator.py, get_state_dict). There the finding is an info.

    Example:
        {"zero_optimization": {"stage": 2, "stage3_max_live_parameters": 1e9}}

    Instead:
        {"zero_optimization": {"stage": 3, "stage3_max_live_parameters": 1e9}}

    Since: DeepSpeed 0.14
    """
    section = view.config.get(SECTION)
    if view.stage is None or not isinstance(section, Mapping):
        return
    keys = view.keys
    for key, value in section.items():
        canonical = keys.canonical(f"{SECTION}.{key}").rpartition(".")[2]
        stages = STAGE_OF_KEY.get(canonical)
        if stages is None or "." in str(key):
            continue
        names = " or ".join(str(stage) for stage in stages) if len(stages) < 3 else "1 to 3"
        severity = None
        if view.stage not in stages:
            where = f"at stage {view.stage}: DeepSpeed reads it at stage {names}" if stages else "in DeepSpeed 0.19.8"
            help = f"remove it, or take stage {names}" if stages else "remove it"
            if canonical == GATHER and _saves_shards(view):
                yield Problem(
                    path=(SECTION, key),
                    message=f"DeepSpeed reads {key} at stage 3 only; with tensor parallelism accelerate reads it at "
                    "every stage, and refuses to save the weights without it",
                    help="keep it where transformers or accelerate trains",
                    on_key=True,
                    severity=Severity.INFO,
                )
                continue
        elif view.bf16_optimizer and canonical not in BF16_OPTIMIZER_KEYS:
            where = "at stage 1 in bf16 with fp32 accumulation: DeepSpeed's BF16_Optimizer does not read it"
            help = f"remove it, or take {view.spell('data_types.grad_accum_dtype')} bf16, or stage 2"
        else:
            continue
        if view.kind == "ds_config" and not stages and value is not False:
            severity = Severity.INFO  # many files say the default of a key that nothing reads
        refused = canonical == "compute_grad_norm" and truth(value) is False and view.stage not in stages
        yield Problem(
            path=(SECTION, key),
            message=f"DeepSpeed refuses {key}: false at stage {view.stage}"
            if refused
            else f"{key} does nothing {where}",
            help=help,
            on_key=True,
            severity=Severity.ERROR if refused else severity,
        )


@rule("ZRO002", Severity.WARNING)
def buckets_fit_the_model(view: View) -> Iterator[Problem]:
    """A bucket that is larger than the model.

    DeepSpeed allocates reduce_bucket_size in full whatever the model size. The default of 5e8 elements was 954 MiB of a
    1,109 MiB peak for a model of 15 M parameters.

    Example:
        {"zero_optimization": {"stage": 2, "reduce_bucket_size": 10000000000}}

    Instead:
        {"zero_optimization": {"stage": 2, "reduce_bucket_size": 200000000}}

    Options: --model llama-2-7b
    Since: DeepSpeed 0.14
    """
    if view.trainable_parameters is None:
        return
    for key in ("reduce_bucket_size", "allgather_bucket_size"):
        size = number(lookup(view.config, f"{SECTION}.{key}"))
        if size is not None and size > view.trainable_parameters:
            yield Problem(
                path=f"{SECTION}.{key}",
                message=f"{key} of {size:,.0f} elements is more than the {view.trainable_parameters:,} trained "
                "parameters: the rest is memory that nothing uses",
                help="leave it out: dsgen derives a size that fits"
                if view.kind == "recipe"
                else f"write {view.trainable_parameters} or less",
            )


@rule("ZRO003")
def hpz_divides_ranks(view: View) -> Iterator[Problem]:
    """zero_hpz_partition_size does not divide the ranks.

    DeepSpeed stops with an AssertionError (utils/groups.py, _create_zero_param_parallel_group), or, where the size is
    larger than the number of ranks or 0, accepts it silently and makes no secondary partition.

    Example:
        {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 3}}

    Instead:
        {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}

    Options: --world-size 16
    Since: DeepSpeed 0.14
    """
    size = lookup(view.config, f"{SECTION}.zero_hpz_partition_size")
    ranks = view.data_parallel
    if view.stage != 3 or ranks is None or not isinstance(size, int) or isinstance(size, bool):
        return
    if size < 1 or ranks % size:
        yield Problem(
            path=f"{SECTION}.zero_hpz_partition_size",
            message=f"zero_hpz_partition_size {size} does not divide the {ranks} data-parallel ranks: DeepSpeed "
            + ("stops with an AssertionError" if 1 <= size < ranks else "accepts it silently")
            + " and makes no secondary partition",
            help=f"write the devices of one node{f' ({view.per_node})' if view.per_node else ''}, or remove it",
        )


@rule("ZRO004")
def norm_is_there_when_needed(view: View) -> Iterator[Problem]:
    """compute_grad_norm is off where DeepSpeed needs the norm.

    It refuses to start (runtime/zero/stage_1_and_2.py): with clipping, which is on by default, with offloaded optimizer
    states, with ZenFlow, and in its BF16_Optimizer.

    Example:
        {"zero_optimization": {"stage": 2, "compute_grad_norm": false}, "gradient_clipping": 1.0}

    Instead:
        {"zero_optimization": {"stage": 2, "compute_grad_norm": false}, "gradient_clipping": 0}

    Since: DeepSpeed 0.19.7
    """
    if lookup(view.config, f"{SECTION}.compute_grad_norm") is not False or view.stage not in (1, 2):
        return
    clipping = view.config.get("gradient_clipping", 1.0)
    reasons = {
        f"{view.spell('gradient_clipping')} is above 0": isinstance(clipping, (int, float)) and clipping > 0,
        "optimizer states are offloaded": view.offload_optimizer in ("cpu", "nvme"),
        "zenflow is on": lookup(view.config, f"{SECTION}.zenflow") is not None,
        "DeepSpeed takes its BF16_Optimizer": view.bf16_optimizer,
    }
    for reason, holds in reasons.items():
        if holds:
            yield Problem(
                path=f"{SECTION}.compute_grad_norm",
                message=f"DeepSpeed refuses compute_grad_norm: false when {reason}",
                help="remove it" + (", or write `gradient_clipping: 0`" if "above 0" in reason else ""),
            )


@rule("ZRO005")
def value_is_taken(view: View) -> Iterator[Problem]:
    """A value that DeepSpeed reads, and then refuses with an assertion after the model is loaded.

    These are legacy_stage1, an odd allgather_bucket_size at stage 1 or 2 (runtime/zero/stage_1_and_2.py), and
    prescale_gradients or gradient_predivide_factor with reduce_scatter at stage 2 or 3 (there and in stage3.py).

    Example:
        {"zero_optimization": {"stage": 2}, "prescale_gradients": true}

    Instead:
        {"zero_optimization": {"stage": 2, "reduce_scatter": false}, "prescale_gradients": true}

    Since: DeepSpeed 0.14
    """
    if not view.stage:
        return
    if lookup(view.config, f"{SECTION}.legacy_stage1") is True:
        yield Problem(
            path=f"{SECTION}.legacy_stage1",
            message="DeepSpeed no longer has the old implementation of stage 1 and refuses to start",
            help="remove it",
            on_key=True,
        )
    size = number(lookup(view.config, f"{SECTION}.allgather_bucket_size"))
    if view.stage in (1, 2) and size is not None and size % 2 and not view.bf16_optimizer:
        yield Problem(
            path=f"{SECTION}.allgather_bucket_size",
            message=f"allgather_bucket_size {size} is odd: DeepSpeed refuses to start",
            help=f"write {size + 1}, or leave it out",
        )
    if view.stage == 1 or lookup(view.config, f"{SECTION}.reduce_scatter") is False:
        return
    if view.stage == 2 and _sums(view):
        return
    for key, neutral in (("prescale_gradients", False), ("gradient_predivide_factor", 1)):
        value = view.config.get(key, neutral)
        if isinstance(value, (int, float)) and value != neutral and 0 < value < float("inf"):
            yield Problem(
                path=key,
                message=f"DeepSpeed refuses {key} together with reduce_scatter at stage {view.stage}",
                help=f"remove it, or write {view.spell(f'{SECTION}.reduce_scatter')}: false",
            )


@rule("ZRO006", Severity.WARNING)
def section_is_a_mapping(view: View) -> Iterator[Problem]:
    """zero_optimization is just true.

    DeepSpeed takes it for stage 1, with a warning in the log (runtime/zero/config.py, read_zero_config_deprecated).
    accelerate looks keys up in it and stops with an AttributeError (utils/deepspeed.py, find_config_node): an error for
    transformers.

    Example:
        {"zero_optimization": true}

    Instead:
        {"zero_optimization": {"stage": 1}}

    Since: DeepSpeed 0.14
    """
    if view.kind == "ds_config" and view.config.get(SECTION) is True:
        yield Problem(
            path=SECTION,
            message="zero_optimization: true is the old form of stage 1",
            help='write {"stage": 1}, or the stage that is meant',
            severity=Severity.ERROR if view.framework == "transformers" else None,
        )


@rule("ZRO007", Severity.WARNING)
def groups_have_a_size(view: View) -> Iterator[Problem]:
    """sub_group_size 0 at stage 3.

    DeepSpeed accepts it and makes each parameter a group of its own (runtime/zero/stage3.py,
    _create_fp16_sub_groups): the optimizer steps once for every parameter, which is slow.

    Example:
        {"zero_optimization": {"stage": 3, "sub_group_size": 0}}

    Instead:
        {"zero_optimization": {"stage": 3, "sub_group_size": 1000000000}}

    Since: DeepSpeed 0.14
    """
    if view.kind == "ds_config" and view.stage == 3 and number(lookup(view.config, f"{SECTION}.sub_group_size")) == 0:
        yield Problem(
            path=f"{SECTION}.sub_group_size",
            message="sub_group_size 0 makes each parameter a group of its own: as many optimizer steps as parameters",
            help="leave it out for 1e9, the default",
        )


@rule("ZRO008")
def gradients_can_be_summed(view: View) -> Iterator[Problem]:
    """gradient_allreduce_op "sum" with what only averages.

    DeepSpeed refuses it at stage 3, with ZenFlow and with DeepCompile (runtime/config.py, _do_error_check).

    Example:
        {"gradient_allreduce_op": "sum", "zero_optimization": {"stage": 3}}

    Instead:
        {"gradient_allreduce_op": "sum", "zero_optimization": {"stage": 2}}

    Since: DeepSpeed 0.19.6
    """
    if view.kind != "ds_config" or not view.since("0.19.6") or not _sums(view):
        return
    reasons = {
        "at stage 3": view.stage == 3,
        "with ZenFlow": isinstance(lookup(view.config, f"{SECTION}.zenflow"), Mapping),
        "with DeepCompile": truth(lookup(view.config, "compile.deepcompile")) is True,
    }
    for reason, holds in reasons.items():
        if holds:
            yield Problem(
                path="gradient_allreduce_op",
                message=f"DeepSpeed refuses to sum gradients {reason}",
                help='write "mean", which is the default',
            )


@rule("ZRO009")
def zenflow_has_what_it_needs(view: View) -> Iterator[Problem]:
    """ZenFlow without what it works on, or with intervals that contradict each other.

    It needs the optimizer states on the CPU at stage 1 and 2. select_interval is a number where select_strategy is not
    "auto", and not a number where it is, and is not below update_interval; `offload` needs overlap_comm
    (runtime/zenflow/zenflow_stage_1_and_2.py, _configure_zenflow). At stage 0 the first step is an AttributeError.

    Example:
        {"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}

    Instead:
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "zenflow": {"topk_ratio": 0.1}}}

    Since: DeepSpeed 0.17.5
    """
    section = lookup(view.config, f"{SECTION}.zenflow")
    if view.kind != "ds_config" or not isinstance(section, Mapping) or view.stage is None or not view.since("0.17.5"):
        return
    path = f"{SECTION}.zenflow"
    if view.stage == 0:
        yield Problem(
            path=path,
            message="zenflow at stage 0 is an AttributeError in the first step",
            help="take stage 2, or remove it",
            on_key=True,
        )
        return
    offload = lookup(view.config, f"{SECTION}.offload_optimizer")
    if view.stage < 3 and (view.offload_optimizer == "none" or (view.offload_optimizer is None and offload is None)):
        yield Problem(
            path=path,
            message="zenflow needs the optimizer states on the CPU: DeepSpeed refuses to start",
            help='add "offload_optimizer": {"device": "cpu"}, or remove zenflow',
            on_key=True,
        )
    select, update = section.get("select_interval", "auto"), section.get("update_interval", "auto")
    strategy = section.get("select_strategy", "auto")
    if strategy == "auto" and number(select) is not None:
        yield Problem(
            path=f"{path}.select_interval",
            message='select_interval is a number and select_strategy is "auto": DeepSpeed refuses to start',
            help='write "select_strategy": "step" or "epoch", or remove select_interval',
        )
    elif strategy in ("step", "epoch") and select == "auto":
        yield Problem(
            path=f"{path}.select_strategy",
            message=f'select_strategy "{strategy}" needs select_interval as a number: DeepSpeed refuses to start',
            help="give select_interval",
        )
    low, high = number(select), number(update)
    if strategy == "step" and low is not None and high is not None and 0 < low < high:
        yield Problem(
            path=f"{path}.select_interval",
            message=f"select_interval {low:g} is below update_interval {high:g}: DeepSpeed refuses to start",
            help=f"write {high:g} or more",
        )
    overlap = truth(lookup(view.config, f"{SECTION}.overlap_comm"))
    if truth(section.get("offload")) and not (overlap or (overlap is None and view.stage == 3)):
        yield Problem(
            path=f"{path}.offload",
            message="zenflow.offload needs overlap_comm: DeepSpeed refuses to start",
            help='write "overlap_comm": true in zero_optimization',
        )


_QUANTIZED = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")


@rule("ZRO010", Severity.WARNING)
def quantizer_has_kernels(view: View) -> Iterator[Problem]:
    """Quantized communication at stage 3, which needs DeepSpeed's quantizer kernels.

    There are some for CUDA, and others of its own for a few accelerators (op_builder); a CPU has none, and the run
    stops in its first step.

    Example:
        {"zero_optimization": {"stage": 3, "zero_quantized_gradients": true}}

    Instead:
        {"zero_optimization": {"stage": 3, "zero_quantized_gradients": false}}

    Since: DeepSpeed 0.14
    """
    kind = view.device.kind if view.device is not None else None
    if view.kind != "ds_config" or view.stage != 3 or kind == "cuda":
        return
    for key in _QUANTIZED:
        if truth(lookup(view.config, f"{SECTION}.{key}")):
            yield Problem(
                path=f"{SECTION}.{key}",
                message=f"{key} needs DeepSpeed's quantizer kernels, "
                + ("which a CPU does not have" if kind == "cpu" else "which not every accelerator has"),
                help="remove it" if kind == "cpu" else "build them before a long run: see ds_report, quantizer",
                severity=Severity.ERROR if kind == "cpu" else None,
            )


@rule("ZRO011")
def old_and_new_name_do_not_meet(view: View) -> Iterator[Problem]:
    """A key under its old name beside the key that takes its place.

    DeepSpeed: "Cannot provide deprecated parameter and replacing parameter together" (runtime/config_utils.py,
    _process_deprecated_field), whatever the two say.

    Example:
        {"zero_optimization": {"stage": 2, "cpu_offload": true, "offload_optimizer": {"device": "cpu"}}}

    Instead:
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}

    Since: DeepSpeed 0.14
    """
    section = view.config.get(SECTION)
    if view.kind != "ds_config" or not isinstance(section, Mapping):
        return
    said = {view.keys.canonical(f"{SECTION}.{name}"): name for name, value in section.items() if value != "auto"}
    for key in view.keys.children(SECTION):
        if not key.deprecated or key.path not in said or len(key.replaced_by) != 1:
            continue
        new = said.get(key.replaced_by[0])
        if new is not None:
            yield Problem(
                path=(SECTION, said[key.path]),
                message=f"{said[key.path]} is the old name of {new}, which stands here too: DeepSpeed refuses to start",
                help=f"remove {said[key.path]}",
                on_key=True,
            )


def _sums(view: View) -> bool:
    """Whether gradients are summed over the ranks instead of averaged."""
    operation = view.config.get("gradient_allreduce_op")
    return isinstance(operation, str) and operation.lower() == "sum"
