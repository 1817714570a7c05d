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
    "allgather_partitions": (1, 2),
    "allgather_bucket_size": (1, 2),
    "round_robin_gradients": (1, 2),
    "use_multi_rank_bucket_allreduce": (1, 2),
    "compute_grad_norm": (1, 2),
    "parameter_alignment": (1, 2),
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
}
"""ZeRO stages at which a key of zero_optimization is read, from the arguments that DeepSpeed 0.19.8 hands to its
optimizers (runtime/engine.py, _configure_zero_optimizer)."""

SECTION = "zero_optimization"


@rule("ZRO001")
def key_works_at_stage(view: View) -> Iterator[Problem]:
    """A key of zero_optimization that DeepSpeed does not read at the stage in use: it is accepted and does nothing."""
    section = view.config.get(SECTION)
    if view.stage is None or not isinstance(section, Mapping):
        return
    keys = load_keys()
    for key in section:
        stages = STAGE_OF_KEY.get(keys.canonical(f"{SECTION}.{key}").rpartition(".")[2])
        if stages is None or view.stage in stages:
            continue
        names = " or ".join(str(stage) for stage in stages) if len(stages) < 3 else "1 to 3"
        yield Problem(
            path=f"{SECTION}.{key}",
            message=f"{key} does nothing at stage {view.stage}: DeepSpeed reads it at stage {names}",
            help=f"remove it, or take stage {names}",
            on_key=True,
        )


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
