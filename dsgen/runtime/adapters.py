"""LoRA adapters, through peft."""

from __future__ import annotations

from typing import Any

from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Adapter


def add_adapter(model: Any, adapter: Adapter, seed: int) -> Any:
    """The model with low-rank matrices beside the linear layers that `adapter.targets` names; all else is frozen.

    The matrices have the model's dtype (DeepSpeed keeps fp32 copies in the optimizer). Raises RuntimeProblem when
    peft is missing or no layer has such a name.
    """
    config = lora_config(adapter)
    import torch
    from peft import get_peft_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return get_peft_model(model, config, autocast_adapter_dtype=False)
        except ValueError as error:
            layers = sorted({name.rsplit(".", 1)[-1] for name, module in model.named_modules() if _is_linear(module)})
            raise RuntimeProblem(
                f"the adapter fits no layer: {error}", f"linear layers of this model are {', '.join(layers)}"
            ) from error


def lora_config(adapter: Adapter) -> Any:
    """The adapter in peft's words. Raises RuntimeProblem when peft is missing."""
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise RuntimeProblem("LoRA adapters need peft", "pip install 'dsgen[train]'") from error
    return LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules="all-linear" if adapter.targets == ("all-linear",) else list(adapter.targets),
        task_type="CAUSAL_LM",
    )


def _is_linear(module: Any) -> bool:
    import torch

    return isinstance(module, torch.nn.Linear)
