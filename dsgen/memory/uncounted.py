"""Settings of ds_config.json that change memory in a way that the estimate does not follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsgen.rules.view import lookup

_SAID: dict[str, str] = {
    "bf16.bf16_master_weights_and_grads": "bf16 master weights: counted in fp32, takes less",
    "bf16.bf16_optimizer_states": "bf16 optimizer states: counted in fp32, takes less",
    "fp16.fp16_master_weights_and_grads": "fp16 master weights: counted in fp32, takes less",
    "zero_optimization.offload_optimizer.super_offload": "super_offload",
    "zero_optimization.zenflow": "zenflow: its copies of important gradients",
    "zero_optimization.mics_shard_size": "MiCS: counted as if all ranks shared the weights, takes more",
    "zero_optimization.zero_quantized_weights": "quantized weights: buffers of quantizing",
    "zero_optimization.zero_quantized_gradients": "quantized gradients: buffers of quantizing",
    "compile.deepcompile": "DeepCompile: gathers and frees weights by its own plan",
    "hybrid_engine.enabled": "the hybrid engine: what generation holds",
    "torch_autocast.enabled": "torch_autocast: copies of weights in 16 bits, and activations in them",
}
"""Neutral path -> what is not counted."""


def uncounted(config: Mapping[str, Any]) -> Iterator[str]:
    """What a ds_config.json asks for and the estimate does not follow."""
    for path, what in _SAID.items():
        value = lookup(config, path)
        # MiCS is off at -1 and 0.
        on = value > 0 if isinstance(value, int) and not isinstance(value, bool) else bool(value)
        if on:
            yield f"{what} ({path})"
