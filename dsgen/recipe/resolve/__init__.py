"""From a checked Recipe to a Plan: every number decided, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from dsgen.catalog.devices import load_device
from dsgen.catalog.models import Architecture
from dsgen.catalog.parameters import count_parameters
from dsgen.recipe import plan, schema
from dsgen.recipe.check import CheckedRecipe
from dsgen.recipe.load import is_path
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve.batch import decide_batch, decide_steps
from dsgen.recipe.resolve.container import decide_container
from dsgen.recipe.resolve.environment import decide_environment
from dsgen.recipe.resolve.ledger import SAID, Ledger
from dsgen.recipe.resolve.optimizer import optimizer_config, schedule_config
from dsgen.recipe.resolve.precision import decide_accumulate, precision_config
from dsgen.recipe.resolve.said import as_read
from dsgen.recipe.resolve.version import for_version
from dsgen.recipe.resolve.zero import Facts, zero_config
from dsgen.recipe.schema import ChunkedLoss, EveryLayers, Recipe
from dsgen.recipe.view import (
    adapter_target_names,
    argument_text,
    data_files,
    default_per_node,
    environment_text,
    trainable_parameters,
)
from dsgen.recipe.words import merged
from dsgen.rules.view import uses_bf16_optimizer

BACKENDS = {"npu": "hccl", "cuda": "nccl", "cpu": "gloo"}
CHUNK_TOKENS = 1024


def resolve(checked: CheckedRecipe) -> Plan:
    """Decide everything that the recipe leaves open."""
    recipe, architecture, ledger = checked.recipe, checked.architecture, Ledger()
    device = load_device(recipe.hardware.device)
    hardware = recipe.hardware
    nodes = hardware.nodes or len(hardware.hosts or ()) or 1
    per_node = ledger.choose(
        "hardware.per_node",
        hardware.per_node,
        default_per_node(device),
        "one rank" if device.kind == "cpu" else "all devices of a server",
    )
    hosts = _hosts(hardware.hosts, nodes, ledger)
    ranks = nodes * per_node // (recipe.parallel.tensor * recipe.parallel.sequence)
    cores = hardware.cores or device.host_cores

    micro, accumulation, total = decide_batch(recipe.batch, ranks, ledger)
    steps = decide_steps(recipe.length, total * recipe.batch.sequence_length, ledger)
    trainable = trainable_parameters(architecture, recipe.adapter)
    assert trainable is not None
    parameters = count_parameters(architecture)
    offload = recipe.zero.offload
    offload_optimizer = offload.optimizer.device if offload.optimizer else "none"
    accumulate = decide_accumulate(
        recipe.precision, recipe.zero.stage, offload_optimizer != "none", accumulation, ledger
    )
    facts = Facts(
        architecture=architecture,
        parameters=parameters,
        trainable=trainable,
        device=device,
        ranks=ranks,
        bf16_optimizer=uses_bf16_optimizer(recipe.zero.stage, recipe.precision.type, accumulate, offload_optimizer),
    )
    raw = as_read(recipe.deepspeed)
    clipping = ledger.choose(
        "gradient_clipping",
        recipe.gradient_clipping,
        1.0,
        "the usual norm for language models; written out because the default differs between DeepSpeed versions "
        "(0 before 0.19.3)",
    )
    config: dict[str, Any] = {
        "train_batch_size": total,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clipping,
        "steps_per_print": ledger.note(
            "steps_per_print",
            max(10, recipe.logging.every),
            "DeepSpeed's own line in the log of rank 0; every step is in metrics.jsonl",
        ),
        **precision_config(recipe.precision, accumulate, device, ledger),
        "zero_optimization": zero_config(recipe.zero, facts, ledger),
        **optimizer_config(recipe.optimizer, ledger),
        **schedule_config(recipe.schedule, recipe.optimizer.lr, steps, ledger),
    }
    config = merged(config, raw)
    for path, value in _leaves(raw):
        ledger.note(path, value, "a raw key of the recipe")
    config = for_version(config, checked.deepspeed, ledger)

    environment = decide_environment(
        device,
        recipe.name,
        nodes,
        per_node,
        cores,
        not _names_a_hub(recipe),
        {name: environment_text(value) for name, value in recipe.environment.items()},
    )
    return Plan(
        name=recipe.name,
        description=recipe.description,
        kind=device.kind,
        backend=BACKENDS[device.kind],
        device=device,
        nodes=nodes,
        per_node=per_node,
        hosts=hosts,
        host_memory_bytes=hardware.host_memory,
        host_cores=cores,
        tensor_parallel=recipe.parallel.tensor,
        sequence_parallel=recipe.parallel.sequence,
        launcher=recipe.launcher,
        environment=environment,
        architecture=architecture,
        parameters=parameters,
        trainable_parameters=trainable,
        weights=recipe.weights,
        adapter=_adapter(recipe, architecture, ledger),
        trust_remote_code=recipe.trust_remote_code,
        precision=recipe.precision.type,
        accumulate=accumulate,
        sequence_length=recipe.batch.sequence_length,
        micro_batch=micro,
        accumulation=accumulation,
        global_batch=total,
        steps=steps,
        epochs=recipe.length.epochs,
        tokens=recipe.length.tokens,
        stage=recipe.zero.stage,
        offload_optimizer=offload_optimizer,
        offload_parameters=offload.parameters.device if offload.parameters else "none",
        checkpoint_every_layers=_checkpoint_every_layers(recipe, architecture, ledger),
        attention=recipe.attention,
        loss_chunk_tokens=_loss_chunk(recipe, ledger),
        container=decide_container(recipe),
        entrypoint=_entrypoint(recipe),
        data=_data(recipe),
        evaluation_every_steps=recipe.evaluation.every if recipe.evaluation else 0,
        evaluation_steps=recipe.evaluation.steps if recipe.evaluation else 0,
        save_every_steps=recipe.checkpoint.every_steps or 0,
        save_every_seconds=recipe.checkpoint.every or 0.0,
        save_keep=recipe.checkpoint.keep or 0,
        save_at_end=recipe.checkpoint.at_end,
        log_every_steps=recipe.logging.every,
        memory_snapshot_step=recipe.logging.memory_snapshot or 0,
        reclaim_every_steps=ledger.choose(
            "memory.reclaim_every",
            recipe.memory.reclaim_every,
            0,
            "the allocator keeps freed memory for the next step; giving it back costs time",
        ),
        headroom=recipe.memory.headroom,
        seed=recipe.seed,
        deepspeed=checked.deepspeed,
        ds_config=config,
        decisions=(
            *ledger.decisions(),
            *(plan.Decision(path=f"environment.{v.name}", value=v.value, reason=v.reason) for v in environment),
        ),
    )


def _hosts(hosts: list[str] | None, nodes: int, ledger: Ledger) -> tuple[str, ...]:
    if nodes == 1:
        return ()
    placeholders = [f"node-{number}" for number in range(1, nodes + 1)]
    return tuple(ledger.choose("hardware.hosts", hosts, placeholders, "placeholders: the recipe names no hosts"))


def _adapter(recipe: Recipe, architecture: Architecture, ledger: Ledger) -> plan.Adapter | None:
    adapter = recipe.adapter
    if adapter is None:
        return None
    alpha = ledger.choose("adapter.alpha", adapter.alpha, 2.0 * adapter.rank, "twice the rank")
    targets = adapter_target_names(architecture, adapter)
    ledger.note("adapter.targets", list(targets), SAID)
    return plan.Adapter(rank=adapter.rank, alpha=alpha, targets=targets, dropout=adapter.dropout)


def _checkpoint_every_layers(recipe: Recipe, architecture: Architecture, ledger: Ledger) -> int:
    said = recipe.activation_checkpointing
    path = "activation_checkpointing"
    if isinstance(said, EveryLayers):
        return ledger.note(path, said.every, SAID)
    if said == "sqrt":
        every = max(1, isqrt(architecture.layers))
        return ledger.note(path, every, f"groups of {every} layers: the square root of {architecture.layers}")
    return ledger.note(path, 1 if said == "full" else 0, SAID if said == "full" else "all activations are kept")


def _loss_chunk(recipe: Recipe, ledger: Ledger) -> int:
    if isinstance(recipe.loss, ChunkedLoss):
        return ledger.note("loss.chunk_tokens", recipe.loss.chunk_tokens, SAID)
    if recipe.loss == "chunked":
        return ledger.note(
            "loss.chunk_tokens", CHUNK_TOKENS, "tokens whose fp32 logits exist at once (12 bytes x vocabulary each)"
        )
    return 0


def _entrypoint(recipe: Recipe) -> plan.Entrypoint | None:
    said = recipe.entrypoint
    if said is None:
        return None
    return plan.Entrypoint(script=said.script, args=tuple(map(argument_text, said.args)), local_rank=said.local_rank)


def _data(recipe: Recipe) -> plan.Data:
    data = recipe.data or schema.Data.model_construct()
    return plan.Data(
        files=data_files(data.files) or (),
        builtin=data.builtin,
        mode=data.mode,
        text_field=data.field,
        prompt_field=data.prompt_field,
        answer_field=data.answer_field,
        shuffle=data.shuffle,
        tokenizer=recipe.tokenizer,
    )


def _names_a_hub(recipe: Recipe) -> bool:
    weights_on_hub = recipe.weights is not None and not is_path(recipe.weights)
    return weights_on_hub or (recipe.tokenizer != "bytes" and not is_path(recipe.tokenizer))


def _leaves(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        path = f"{prefix}.{key}" if prefix else key
        found += _leaves(value, path) if isinstance(value, Mapping) and value else [(path, value)]
    return found
