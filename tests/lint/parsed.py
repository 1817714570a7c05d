"""Where DeepSpeed keeps what a config says: the place of every key in the `parsed` of engine_server.py."""

from __future__ import annotations

from typing import Any

from dsgen.catalog.deepspeed_keys import Keys
from dsgen.rules.view import lookup

MISSING = object()

PLACES = {
    "activation_checkpointing": "activation_checkpointing_config",
    "aio": "aio_config",
    "autotuning": "autotuning_config",
    "bf16": "bfloat16_config",
    "checkpoint": "checkpoint_config",
    "checkpoint.load_universal": "load_universal_checkpoint",
    "checkpoint.parallel_write.pipeline_stage": "checkpoint_parallel_write_pipeline",
    "checkpoint.use_node_local_storage": "use_node_local_storage",
    "comet": "monitor_config.comet",
    "comms_logger": "comms_config.comms_logger",
    "compile": "compile_config",
    "csv_monitor": "monitor_config.csv_monitor",
    "data_efficiency": "data_efficiency_config",
    "data_types.buffer_dtype": "buffer_dtype",
    "data_types.grad_accum_dtype": "grad_accum_dtype",
    "data_types.keep_in_fp32_modules": "keep_in_fp32_modules",
    "data_types.param_dtype": "param_dtype",
    "datastates_ckpt": "datastates_config",
    "expert_parallel": "expert_parallel_config",
    "flops_profiler": "flops_profiler_config",
    "fp16": "float16_config",
    "optimizer.legacy_fusion": "optimizer_legacy_fusion",
    "optimizer.params": "optimizer_params",
    "optimizer.type": "optimizer_name",
    "scheduler.params": "scheduler_params",
    "scheduler.type": "scheduler_name",
    "tensor_parallel": "tensor_parallel_config",
    "tensorboard": "monitor_config.tensorboard",
    "timers.throughput": "timers_config",
    "torch_autocast.dtype": "torch_autocast_dtype",
    "torch_autocast.enabled": "torch_autocast_enabled",
    "torch_autocast.lower_precision_safe_modules": "torch_autocast_lower_precision_safe_modules",
    "use_data_before_expert_parallelism": "use_data_before_expert_parallel_",
    "wandb": "monitor_config.wandb",
    "weight_quantization": "weight_quantization_config",
    "zero_optimization": "zero_config",
}
"""Key or section -> its place in the parsed config; a key at the top level that is not here keeps its name."""

NOT_KEPT = {
    "vocabulary_size": "DeepSpeed only looks whether it is a multiple of 8 (runtime/config.py, _do_warning_check)",
    "checkpoint.tag_validation": "it becomes two switches; `tag_validation` below puts them together",
    "data_parallel_size": "read by deepspeed.initialize, which makes the groups of ranks of it",
    "sequence_parallel_size": "read by deepspeed.initialize, which makes the groups of ranks of it",
    "timers": "only its part `throughput` is kept",
    "data_types": "its keys are kept one by one",
    "torch_autocast": "its keys are kept one by one",
    "optimizer": "its keys are kept one by one",
    "scheduler": "its keys are kept one by one",
}
"""Keys that cannot be read back under a name -> why."""

FACTS = {
    "train_batch_size": "global_batch",
    "train_micro_batch_size_per_gpu": "micro_batch",
    "gradient_accumulation_steps": "accumulation",
    "gradient_clipping": "clipping",
    "scheduler.type": "scheduler",
    "zero_optimization.stage": "stage",
}
"""Keys that the engine itself can be asked for."""

DTYPES = {
    "fp16": ("fp16", "float16", "half", "torch.float16"),
    "bf16": ("bf16", "bfloat16", "torch.bfloat16"),
    "fp32": ("fp32", "float32", "float", "torch.float32"),
}


def places(keys: Keys, path: str) -> tuple[str, ...]:
    """Every place in the parsed config that the key of that path may decide; none for an unknown key."""
    key = keys.get(path)
    if key is None:
        return ()
    found = []
    for each in (key.path, *key.replaced_by):
        section, _, name = each.rpartition(".")
        known = keys.get(each)
        names = (name, *(known.aliases if known is not None else ()))
        found += [_place(f"{section}.{each_name}" if section else each_name) for each_name in names]
    return tuple(found)


def _place(path: str) -> str:
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        place = PLACES.get(".".join(parts[:length]))
        if place is not None:
            return ".".join((place, *parts[length:]))
    return path


def kept(keys: Keys, path: str, report: dict[str, Any]) -> Any:
    """What DeepSpeed keeps of the key of that path; MISSING when it keeps nothing."""
    parsed = report["parsed"]
    if keys.canonical(path) == "checkpoint.tag_validation":
        if not parsed["checkpoint_tag_validation_enabled"]:
            return "IGNORE"
        return "FAIL" if parsed["checkpoint_tag_validation_fail"] else "WARN"
    for place in places(keys, path) or (_place(path),):
        section, _, name = place.rpartition(".")
        found = lookup(parsed, section) if section else parsed
        if isinstance(found, dict) and name in found:
            return found[name]
    return MISSING


def same(written: Any, read: Any) -> bool:
    """Whether a value came through as it was written: 2.0 and 2 are one number, bf16 and torch.bfloat16 one type."""
    if isinstance(written, dict) and isinstance(read, dict):
        return all(key in read and same(value, read[key]) for key, value in written.items())
    if isinstance(written, bool) or isinstance(read, bool):
        return written is read
    if isinstance(written, str) and isinstance(read, str):
        return written.lower() == read.lower() or any(written in names and read in names for names in DTYPES.values())
    return bool(written == read)
