"""`auto` values: who fills them in, and what DeepSpeed does with those that nobody fills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsgen.catalog.deepspeed_keys import Keys
from dsgen.documents.positions import Path, dotted
from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, keys_of, shown

FILLED_BY_TRAINER = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "fp16.enabled",
        "bf16.enabled",
        "optimizer.params.lr",
        "optimizer.params.betas",
        "optimizer.params.eps",
        "optimizer.params.weight_decay",
        "scheduler.params.warmup_min_lr",
        "scheduler.params.warmup_max_lr",
        "scheduler.params.warmup_num_steps",
        "scheduler.params.total_num_steps",
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.stage3_param_persistence_threshold",
    }
)
"""Keys that transformers 5.24 fills in where they say `auto` (integrations/deepspeed.py, HfTrainerDeepSpeedConfig)."""

FILLED_BY_ACCELERATE = {
    "zero_optimization.stage": "2, unless accelerate is told another stage",
    "zero_optimization.offload_optimizer.device": "none, unless accelerate is told another device",
    "zero_optimization.offload_optimizer.nvme_path": "the path that accelerate is told",
    "zero_optimization.offload_param.device": "none, unless accelerate is told another device",
    "zero_optimization.offload_param.nvme_path": "the path that accelerate is told",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "false, unless accelerate is told otherwise",
}
"""Keys that accelerate 1.15 fills in from its own settings (utils/dataclasses.py, DeepSpeedPlugin) -> with what."""

OVERWRITTEN = "steps_per_print"
"""What accelerate sets whatever the config says (the same place)."""

LOOKED_INTO = frozenset(
    path.rpartition(".")[0] for path in (*FILLED_BY_TRAINER, *FILLED_BY_ACCELERATE) if "." in path
) | {"optimizer", "scheduler"}
"""Sections that transformers and accelerate look keys up in (accelerate, utils/deepspeed.py, find_config_node)."""


@rule("AUT001", Severity.INFO)
def a_trainer_fills_in_auto(view: View) -> Iterator[Problem]:
    """A config with `auto` is only for a trainer that fills the values in.

    That is transformers' Trainer, or accelerate; DeepSpeed itself knows no `auto`. A file that holds it is judged as
    one for such a trainer, unless `--framework native` says otherwise.

    Example:
        {"gradient_clipping": "auto"}

    Instead:
        {"gradient_clipping": 1.0}

    Since: DeepSpeed 0.14
    """
    if view.framework != "transformers":
        return
    found = [dotted(path) for path, _ in autos(view.config, view.keys) if dotted(path) in FILLED_BY_TRAINER]
    if found:
        yield Problem(
            path=(),
            message=f"judged as a config for transformers, which fills in {len(found)} `auto` "
            f"value{'s' if len(found) != 1 else ''}: {_listed(found)}",
            help="deepspeed.initialize alone knows no `auto`: for that, lint with --framework native",
        )


@rule("AUT002")
def somebody_fills_in_auto(view: View) -> Iterator[Problem]:
    """An `auto` that nobody fills in.

    DeepSpeed drops it for the default in the sections that it reads with pydantic (stage "auto" trains at stage 0), and
    fails on it elsewhere, often at the first optimizer step: TypeError for batch sizes, clipping and learning rates.

    With transformers and accelerate every `auto` that is left stops the job: ValueError "not found in kwargs"
    (accelerate, utils/dataclasses.py, fill_match), an AttributeError where a whole section says it. They go by the
    names in the list of AUT001 and no others: `bfloat16.enabled` is not filled in. Some keys only accelerate fills in,
    from settings of its own: there it is a warning.

    Example:
        {"zero_optimization": {"stage": "auto"}}

    Instead:
        {"zero_optimization": {"stage": 2}}

    Options: --framework native
    Since: DeepSpeed 0.14
    """
    if view.framework == "transformers":
        yield from _left_by_trainer(view)
        return
    keys = view.keys
    for path, canonical in autos(view.config, keys):
        key = keys.get(canonical)
        if key is None and path[:2] not in (("optimizer", "params"), ("scheduler", "params")):
            continue  # an unknown key, which is said already
        section = canonical.rpartition(".")[0]
        dropped = section in keys.known_sections and keys.section_policy(section) == "refused"
        fatal = not dropped or path[:2] in (("optimizer", "params"), ("scheduler", "params"))
        if fatal or key is None:
            effect = "DeepSpeed fails on it, with a TypeError or ValueError"
        else:
            effect = f"DeepSpeed drops it for its default, {shown(key.default)}"
        decisive = view.framework == "dsgen" or key is None or fatal or key.name in ("stage", "enabled", "device")
        yield Problem(
            path=path,
            message=f"{path[-1]}: nobody fills in `auto` here: {effect}",
            help="write the value that is meant"
            + (", or lint with --framework transformers" if view.framework == "native" else ""),
            severity=None if decisive else Severity.WARNING,
        )


def _left_by_trainer(view: View) -> Iterator[Problem]:
    """What transformers and accelerate do with each `auto` that they fill in otherwise than meant, or not at all."""
    keys = view.keys
    # An `auto` of DeepSpeed's own does not make a config one for a trainer.
    for_trainer = any(dotted(path) in FILLED_BY_TRAINER for path, _ in autos(view.config, keys))
    for path, canonical in autos(view.config, keys, own=for_trainer):
        name, key = dotted(path), keys.get(canonical)
        if name in FILLED_BY_TRAINER or (name == OVERWRITTEN and for_trainer):
            continue
        if key is None and path[:2] not in (("optimizer", "params"), ("scheduler", "params")):
            continue  # an unknown key, which is said already
        severity = None
        if name == OVERWRITTEN:
            message = (
                f"{path[-1]}: accelerate sets it itself, DeepSpeed alone fails on `auto` at the first optimizer step"
            )
            severity = Severity.WARNING
        elif name in FILLED_BY_ACCELERATE:
            message = f"{path[-1]}: accelerate makes `auto` {FILLED_BY_ACCELERATE[name]}"
            severity = Severity.WARNING
        elif name in LOOKED_INTO:
            message = f"{path[-1]} is `auto`, and no section: accelerate stops with an AttributeError"
        else:
            message = f"{path[-1]}: neither transformers nor accelerate fills in `auto` here: accelerate stops with a "
            message += "ValueError"
            sure = for_trainer or (key is not None and key.name in ("stage", "enabled", "device"))
            severity = None if sure else Severity.WARNING
        help = "write the value that is meant"
        if canonical in FILLED_BY_TRAINER:
            help = f"it is filled in under the name {canonical}"
        elif name in LOOKED_INTO:
            help = "write its keys, or leave it out"
        elif key is not None and key.has_default:
            help += ", or leave it out"
        yield Problem(path=path, message=message, help=help, severity=severity)


def _listed(paths: list[str]) -> str:
    """Paths, shortened where they are many."""
    return ", ".join(paths) if len(paths) <= 6 else f"{', '.join(paths[:5])} and {len(paths) - 5} more"


def autos(config: Mapping[str, Any], keys: Keys, *, own: bool = False) -> Iterator[tuple[Path, str]]:
    """Every `auto` in a config: its path, and the path by DeepSpeed's own names.

    Those that DeepSpeed itself knows are left out, unless `own` is set.
    """
    for path, value in keys_of(config):
        if value == "auto" and not any("." in str(part) for part in path):
            canonical = keys.canonical(".".join(map(str, path)))
            key = keys.get(canonical)
            if own or key is None or "auto" not in (*key.choices, key.default):
                yield path, canonical
