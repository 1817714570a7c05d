"""What the training side is told: the fields of `dsgen.runtime.Settings`, from a Plan.

train.py states them as Python, settings.json as JSON.
"""

from __future__ import annotations

from typing import Any

from dsgen.recipe.plan import Plan

CLASSES = {
    "model": "Model",
    "adapter": "Adapter",
    "data": "Data",
    "evaluation": "Evaluation",
    "checkpoint": "Checkpoint",
}
"""Field -> class of dsgen.runtime that it is an instance of."""


def settings(plan: Plan) -> dict[str, Any]:
    """The settings of a job, in the order of their fields; what is off or not given is left out."""
    fields: dict[str, Any] = {
        "name": plan.name,
        "accelerator": plan.kind,
        "backend": plan.backend,
        "world_size": plan.world_size,
        "model": _model(plan),
        "data": _data(plan),
        "micro_batch": plan.micro_batch,
        "accumulation": plan.accumulation,
        **({"steps": plan.steps} if plan.steps is not None else {"epochs": plan.epochs}),
        "seed": plan.seed,
        "reclaim_every_steps": plan.reclaim_every_steps,
        "log_every_steps": plan.log_every_steps,
    }
    if plan.memory_snapshot_step:
        fields["memory_snapshot_step"] = plan.memory_snapshot_step
    if plan.evaluation_every_steps:
        fields["evaluation"] = {"every_steps": plan.evaluation_every_steps, "steps": plan.evaluation_steps}
    fields["checkpoint"] = {
        "every_steps": plan.save_every_steps,
        "every_seconds": plan.save_every_seconds,
        "keep": plan.save_keep,
        "at_end": plan.save_at_end,
    }
    return fields


def _model(plan: Plan) -> dict[str, Any]:
    fields: dict[str, Any] = {"config": plan.architecture.model_config(), "dtype": plan.precision}
    if plan.weights is not None:
        fields["weights"] = plan.weights
    if plan.adapter is not None:
        adapter = plan.adapter
        fields["adapter"] = {
            "rank": adapter.rank,
            "alpha": adapter.alpha,
            "targets": adapter.targets,
            "dropout": adapter.dropout,
        }
    fields["checkpoint_every_layers"] = plan.checkpoint_every_layers
    if plan.attention != "sdpa":
        fields["attention"] = plan.attention
    if plan.loss_chunk_tokens:
        fields["loss_chunk_tokens"] = plan.loss_chunk_tokens
    if plan.trust_remote_code:
        fields["trust_remote_code"] = True
    return fields


def _data(plan: Plan) -> dict[str, Any]:
    data = plan.data
    fields: dict[str, Any] = {"sequence_length": plan.sequence_length}
    if data.files:
        fields["files"] = data.files
    elif data.builtin is not None:
        fields["builtin"] = data.builtin
    fields["mode"] = data.mode
    if data.mode == "instruction":
        fields |= {"prompt_field": data.prompt_field, "answer_field": data.answer_field}
    elif data.files:
        fields["text_field"] = data.text_field
    return {**fields, "tokenizer": data.tokenizer, "shuffle": data.shuffle}
