"""Keys of zero_optimization against the ZeRO stage and each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsgen.catalog.deepspeed_keys import load_keys
from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, lookup

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


@rule("ZRO001")
def key_works_at_stage(view: View) -> Iterator[Problem]:
    """A key of zero_optimization that DeepSpeed does not read at the stage in use: it is accepted and does nothing."""
    section = view.config.get(SECTION)
    if view.stage is None or not isinstance(section, Mapping):
        return
    keys = load_keys()
    for key in section:
        canonical = keys.canonical(f"{SECTION}.{key}").rpartition(".")[2]
        stages = STAGE_OF_KEY.get(canonical)
        if stages is None or "." in key:
            continue
        names = " or ".join(str(stage) for stage in stages) if len(stages) < 3 else "1 to 3"
        if view.stage not in stages:
            where = f"at stage {view.stage}: DeepSpeed reads it at stage {names}" if stages else "in DeepSpeed 0.19.8"
            help = f"remove it, or take stage {names}" if stages else "remove it"
        elif view.bf16_optimizer and canonical not in BF16_OPTIMIZER_KEYS:
            where = "at stage 1 in bf16 with fp32 accumulation: DeepSpeed's BF16_Optimizer does not read it"
            help = f"remove it, or take {view.spell('data_types.grad_accum_dtype')} bf16, or stage 2"
        else:
            continue
        yield Problem(path=(SECTION, key), message=f"{key} does nothing {where}", help=help, on_key=True)


@rule("ZRO002", Severity.WARNING)
def buckets_fit_the_model(view: View) -> Iterator[Problem]:
    """A bucket larger than the model: DeepSpeed allocates reduce_bucket_size in full whatever the model size.

    The default of 5e8 elements was 954 MiB of a 1,109 MiB peak for a model of 15 M parameters.
    """
    if view.trainable_parameters is None:
        return
    for key in ("reduce_bucket_size", "allgather_bucket_size"):
        size = lookup(view.config, f"{SECTION}.{key}")
        if isinstance(size, (int, float)) and not isinstance(size, bool) and size > view.trainable_parameters:
            yield Problem(
                path=f"{SECTION}.{key}",
                message=f"{key} of {size:,.0f} elements is more than the {view.trainable_parameters:,} trained "
                "parameters: the rest is memory that nothing uses",
                help="leave it out: dsgen derives a size that fits",
            )


@rule("ZRO003")
def hpz_divides_ranks(view: View) -> Iterator[Problem]:
    """zero_hpz_partition_size that does not divide the ranks: DeepSpeed accepts it and builds no secondary groups."""
    size = lookup(view.config, f"{SECTION}.zero_hpz_partition_size")
    ranks = view.data_parallel
    if view.stage != 3 or ranks is None or not isinstance(size, int) or isinstance(size, bool):
        return
    if size < 1 or ranks % size:
        yield Problem(
            path=f"{SECTION}.zero_hpz_partition_size",
            message=f"zero_hpz_partition_size {size} does not divide the {ranks} data-parallel ranks: DeepSpeed "
            "accepts it silently and makes no secondary partition",
            help=f"write the devices of one node{f' ({view.per_node})' if view.per_node else ''}, or remove it",
        )


@rule("ZRO004")
def norm_is_there_when_needed(view: View) -> Iterator[Problem]:
    """compute_grad_norm off where DeepSpeed needs the norm: it refuses to start (runtime/zero/stage_1_and_2.py)."""
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
    """A value that DeepSpeed reads and then refuses, with an assertion after the model is loaded."""
    if not view.stage:
        return
    if lookup(view.config, f"{SECTION}.legacy_stage1") is True:
        yield Problem(
            path=f"{SECTION}.legacy_stage1",
            message="DeepSpeed no longer has the old implementation of stage 1 and refuses to start",
            help="remove it",
            on_key=True,
        )
    size = lookup(view.config, f"{SECTION}.allgather_bucket_size")
    if view.stage in (1, 2) and isinstance(size, (int, float)) and size % 2:
        yield Problem(
            path=f"{SECTION}.allgather_bucket_size",
            message=f"allgather_bucket_size {size} is odd: DeepSpeed refuses to start",
            help=f"write {size + 1}, or leave it out",
        )
    if view.stage == 1 or lookup(view.config, f"{SECTION}.reduce_scatter") is False:
        return
    for key, neutral in (("prescale_gradients", False), ("gradient_predivide_factor", 1)):
        value = view.config.get(key, neutral)
        if isinstance(value, (int, float)) and value != neutral and 0 < value < float("inf"):
            yield Problem(
                path=key,
                message=f"DeepSpeed refuses {key} together with reduce_scatter at stage {view.stage}",
                help=f"remove it, or write {view.spell(f'{SECTION}.reduce_scatter')}: false",
            )
