"""DeepSpeed's own activation checkpointing, which few models use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, truth

SECTION = "activation_checkpointing"

_SWITCHES = ("partition_activations", "cpu_checkpointing", "contiguous_memory_optimization")


@rule("ACT001", Severity.WARNING)
def model_calls_the_checkpoint_function(view: View) -> Iterator[Problem]:
    """An activation_checkpointing section, which most models never look at.

    It only sets up DeepSpeed's own checkpoint function (runtime/activation_checkpointing/checkpointing.py), and only
    where the script hands the config to deepspeed.checkpointing.configure. It saves no memory unless the model calls
    deepspeed.checkpointing.checkpoint, as Megatron's do; models of transformers do not.

    Example:
        {"activation_checkpointing": {"partition_activations": true}}

    Instead:
        {"activation_checkpointing": {"partition_activations": false}}

    Since: DeepSpeed 0.14
    """
    section = view.config.get(SECTION)
    if (
        view.kind != "ds_config"
        or not isinstance(section, Mapping)
        or not any(truth(section.get(n)) for n in _SWITCHES)
    ):
        return
    trainer = view.framework == "transformers"
    yield Problem(
        path=SECTION,
        message="activation_checkpointing saves nothing "
        + (
            "in a model of transformers: none calls DeepSpeed's checkpoint function"
            if trainer
            else "unless the model calls deepspeed.checkpointing.checkpoint and the script calls its configure()"
        ),
        help="turn on gradient_checkpointing in TrainingArguments, or model.gradient_checkpointing_enable()"
        if trainer
        else "see that both are called, or use torch.utils.checkpoint (gradient_checkpointing_enable in transformers)",
        on_key=True,
    )


@rule("ACT002", Severity.WARNING)
def contiguous_memory_has_its_size(view: View) -> Iterator[Problem]:
    """contiguous_memory_optimization without what it needs.

    DeepSpeed asserts partition_activations and number_checkpoints, "Must specify the number of layers with contiguous
    memory checkpointing", when the script calls deepspeed.checkpointing.configure; where it does not, nothing happens.

    Example:
        {"activation_checkpointing": {"partition_activations": true, "contiguous_memory_optimization": true}}

    Instead:
        {
          "activation_checkpointing": {
            "partition_activations": true,
            "contiguous_memory_optimization": true,
            "number_checkpoints": 32
          }
        }

    Since: DeepSpeed 0.14
    """
    section = view.config.get(SECTION)
    if view.kind != "ds_config" or not isinstance(section, Mapping):
        return
    if not truth(section.get("contiguous_memory_optimization")):
        return
    missing = []
    if not truth(section.get("partition_activations")):
        missing.append('"partition_activations": true')
    if section.get("number_checkpoints") is None:
        missing.append("number_checkpoints (the number of layers)")
    if missing:
        yield Problem(
            path=(SECTION, "contiguous_memory_optimization"),
            message="contiguous_memory_optimization lacks "
            + " and ".join(missing)
            + ": deepspeed.checkpointing.configure "
            "stops with an AssertionError",
            help="give it, or remove contiguous_memory_optimization",
            on_key=True,
        )
