"""The model of a run: a transformers model with random or given weights, ready for `deepspeed.initialize`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsgen.resources import local_path
from dsgen.runtime.memory import reclaim
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Settings

if TYPE_CHECKING:
    from dsgen.runtime.session import Session


def torch_dtype(name: str) -> Any:
    """The torch dtype called fp32, fp16 or bf16."""
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[name]


def read_model_config(settings: Settings, base_dir: Path) -> Any:
    """The transformers configuration that the settings describe.

    Raises RuntimeProblem for a model type that the installed transformers does not know.
    """
    from transformers import AutoConfig

    fields = dict(settings.model.config)
    kind = fields.pop("model_type", None)
    if not isinstance(kind, str):
        raise RuntimeProblem("the model's configuration has no model_type", "write model_type: llama, say")
    if settings.model.trust_remote_code and "auto_map" in fields and settings.model.weights is not None:
        folder = local_path(base_dir, settings.model.weights)
        config = AutoConfig.from_pretrained(
            str(folder) if folder.exists() else settings.model.weights, trust_remote_code=True
        )
    else:
        try:
            config = AutoConfig.for_model(kind, **fields)
        except ValueError as error:
            raise RuntimeProblem(
                f"transformers does not know the model type {kind!r}",
                "check the spelling, or install a newer transformers",
            ) from error
        except Exception as error:
            # transformers checks the fields of a configuration with exceptions of its own.
            raise RuntimeProblem(f"transformers refuses the configuration of the model: {error}") from error
    # Training keeps no keys and values of earlier tokens.
    config.get_text_config().use_cache = False
    config.use_cache = False
    return config


def build_model(run: Session) -> Any:
    """The model of the run: dtype, weights, adapter, activation checkpointing and loss as the settings say.

    At stage 3 every parameter is partitioned as soon as it exists, and weights are drawn or read for a few
    parameters at a time, so that no rank ever holds the whole model. Random weights depend on the seed, the
    parameter's module and its shape alone: they are the same at every stage and on every number of ranks.

    Raises RuntimeProblem where the accelerator does not know the dtype, transformers does not know the model,
    or given weights do not fit it.
    """
    from dsgen.runtime.adapters import add_adapter
    from dsgen.runtime.losses import chunk_loss
    from dsgen.runtime.recompute import checkpoint_activations
    from dsgen.runtime.weights import draw_weights, find_weights, load_weights

    settings = run.settings
    run.journal.phase("model")
    _check_dtype(run)
    config = read_model_config(settings, run.arguments.base_dir)
    files = find_weights(settings, run.arguments.base_dir)
    model = _empty_model(run, config)
    partitioned = run.zero_stage == 3
    if files is None:
        draw_weights(model, settings.seed, partitioned=partitioned)
    else:
        load_weights(model, files, partitioned=partitioned)
    if settings.model.loss_chunk_tokens:
        chunk_loss(model, settings.model.loss_chunk_tokens)
    if settings.model.checkpoint_every_layers:
        checkpoint_activations(model, settings.model.checkpoint_every_layers)
    if settings.model.adapter is not None:
        model = add_adapter(model, settings.model.adapter, settings.seed)
    model.train()
    reclaim(run.accelerator)
    run.measure_memory("model")
    run.journal.phase("initialize")
    return model


def trainable_parameters(model: Any) -> list[Any]:
    """The parameters that get gradients and optimizer states: with an adapter only its own."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def count_parameters(model: Any) -> tuple[int, int]:
    """Number of parameters, and of trainable ones; a tied weight counts once, a partitioned one whole."""
    every = trainable = 0
    for parameter in model.parameters():
        size = int(getattr(parameter, "ds_numel", None) or parameter.numel())
        every += size
        trainable += size if parameter.requires_grad else 0
    return every, trainable


def _check_dtype(run: Session) -> None:
    dtype = run.settings.model.dtype
    name = run.settings.accelerator
    if dtype == "bf16" and not run.accelerator.is_bf16_supported():
        raise RuntimeProblem(
            f"this {name} device cannot compute in bf16" + (" (Ascend 910A and 910Pro)" if name == "npu" else ""),
            "set precision: fp16, or fp32",
        )
    if dtype == "fp16" and not run.accelerator.is_fp16_supported():
        raise RuntimeProblem(f"DeepSpeed does not train in fp16 on this {name} device", "set precision: bf16, or fp32")


def _empty_model(run: Session, config: Any) -> Any:
    """The model with memory for its weights and nothing meaningful in it."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    settings = run.settings.model
    if type(config) in AutoModelForCausalLM._model_mapping:
        # Looking it up loads the model's code, which fails inside zero.Init: its classes meet patched constructors.
        _ = AutoModelForCausalLM._model_mapping[type(config)]
    elif not settings.trust_remote_code:
        raise RuntimeProblem(f"model type {config.model_type!r} has no causal language model in transformers")
    options = {"dtype": torch_dtype(settings.dtype), "attn_implementation": settings.attention}
    if settings.trust_remote_code:
        options["trust_remote_code"] = True
    with ExitStack() as stack:
        stack.enter_context(no_init_weights())
        if run.zero_stage == 3:
            stack.enter_context(_partitioning(run))
        elif run.settings.accelerator != "cpu":
            # Where zero.Init builds it at stage 3, so that random draws agree.
            stack.enter_context(torch.device(run.device))
        try:
            model = AutoModelForCausalLM.from_config(config, **options)
        except (ImportError, ValueError) as error:
            raise RuntimeProblem(f"transformers cannot build the model: {error}") from error
    model.tie_weights()
    return model


@contextmanager
def _partitioning(run: Session) -> Iterator[None]:
    import deepspeed
    from transformers.integrations.deepspeed import prevent_arange_dtype_change

    # Otherwise zero.Init would round the rotary frequencies to the dtype of the weights.
    with prevent_arange_dtype_change(), deepspeed.zero.Init(config_dict_or_path=str(run.ds_config)):
        yield
