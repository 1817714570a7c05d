"""The zero_optimization section: what the stage reads, in sizes that fit the model and the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsgen.catalog.deepspeed_keys import load_keys
from dsgen.catalog.devices import Device
from dsgen.catalog.models import Architecture
from dsgen.catalog.parameters import ParameterCount
from dsgen.recipe.resolve.ledger import SAID, Ledger
from dsgen.recipe.schema import OffloadOptimizer, OffloadParameters, Zero
from dsgen.recipe.view import offload_config

BUCKET_ELEMENTS = 50_000_000
SUB_GROUP_ELEMENTS = 100_000_000
LIVE_ELEMENTS = 1_000_000_000
SMALL_DEVICE_BYTES = 40 * 2**30

Section = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the sizes depend on."""

    architecture: Architecture
    parameters: ParameterCount
    trainable: int
    device: Device
    ranks: int


def zero_config(zero: Zero, facts: Facts, ledger: Ledger) -> Section:
    """The whole section. What the recipe says wins over what is derived."""
    stage = ledger.note("zero_optimization.stage", zero.stage, SAID)
    derived: dict[str, tuple[Any, str]] = {}
    if stage in (1, 2):
        derived = _common(facts) | _partitioned_states(facts)
    elif stage == 3:
        derived = _common(facts) | _partitioned_parameters(facts, zero)
    said = canonical_keys(zero.model_extra or {})
    section: Section = {"stage": stage}
    for key, (value, reason) in derived.items():
        section[key] = ledger.choose(f"zero_optimization.{key}", said.get(key), value, reason)
    for key in said:
        if key not in derived:
            section[key] = ledger.note(f"zero_optimization.{key}", said[key], SAID)
    for name, part in (("offload_optimizer", zero.offload.optimizer), ("offload_param", zero.offload.parameters)):
        if part is not None and part.device != "none":
            section[name] = _offload(f"zero_optimization.{name}", part, facts.device, ledger)
    return section


def canonical_keys(said: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of zero_optimization under the name that DeepSpeed documents: both names of a key are valid."""
    keys = load_keys()
    return {keys.canonical(f"zero_optimization.{key}").rpartition(".")[2]: value for key, value in said.items()}


def _even(number: int) -> int:
    # allgather_bucket_size must be a multiple of the start alignment, 2 (runtime/zero/stage_1_and_2.py)
    return max(2, number - number % 2)


def _common(facts: Facts) -> dict[str, tuple[Any, str]]:
    bucket = _even(min(BUCKET_ELEMENTS, facts.trainable))
    overlap = facts.device.kind != "cpu" and facts.ranks > 1
    return {
        "contiguous_gradients": (True, "gradients are copied into one buffer as they come: less fragmentation"),
        "overlap_comm": (
            overlap,
            "gradients are reduced while the backward pass goes on, for a second bucket"
            if overlap
            else ("the CPU has no streams to overlap on" if facts.device.kind == "cpu" else "one rank: nothing to send"),
        ),
        "reduce_scatter": (True, "each rank receives only the part of the gradients that it owns"),
        "reduce_bucket_size": (
            bucket,
            "all trained parameters: the model is smaller than a full bucket, and DeepSpeed allocates the bucket in "
            "full"
            if bucket < BUCKET_ELEMENTS
            else "large enough to use a link fully; DeepSpeed's 5e8 would hold ten times the memory",
        ),
    }


def _partitioned_states(facts: Facts) -> dict[str, tuple[Any, str]]:
    bucket = _even(min(BUCKET_ELEMENTS, facts.trainable))
    return {
        "allgather_partitions": (True, "one all-gather per bucket instead of a broadcast per rank"),
        "allgather_bucket_size": (bucket, "as reduce_bucket_size: it bounds the buffer of the gather after the step"),
    }


def _partitioned_parameters(facts: Facts, zero: Zero) -> dict[str, tuple[Any, str]]:
    layer, total = facts.parameters.per_layer, facts.parameters.total
    hidden = facts.architecture.hidden_size
    memory = facts.device.memory_bytes or 0
    offloaded = zero.offload.parameters is not None and zero.offload.parameters.device != "none"
    tight = offloaded or 0 < memory < SMALL_DEVICE_BYTES
    live = min(LIVE_ELEMENTS, total)
    live_reason = "all parameters" if live == total else "DeepSpeed's own limit: up to 2 GB of 16-bit parameters"
    if tight:
        live = min(live, 2 * layer + facts.parameters.largest_tensor)
        why = "parameters are offloaded to save memory" if offloaded else f"{facts.device.id} is small"
        live_reason = f"two layers and the largest matrix: {why}, and every live parameter is held twice while gathered"
    sub_group = min(SUB_GROUP_ELEMENTS, facts.trainable)
    prefetch = min(BUCKET_ELEMENTS, layer)
    return {
        "sub_group_size": (
            sub_group,
            "the optimizer steps over this many elements at a time and holds up to 6 bytes for each; DeepSpeed's 1e9 "
            "can cost 6 GB",
        ),
        "stage3_prefetch_bucket_size": (
            prefetch,
            "one layer is gathered ahead" if prefetch < BUCKET_ELEMENTS else "part of a layer is gathered ahead",
        ),
        "stage3_param_persistence_threshold": (
            10 * hidden,
            "norms and biases (up to 10 x hidden size elements) stay on every rank: gathering them costs more than "
            "holding them",
        ),
        "stage3_max_live_parameters": (live, live_reason),
        "stage3_max_reuse_distance": (live, "as stage3_max_live_parameters"),
        "stage3_gather_16bit_weights_on_model_save": (
            True,
            "without it save_16bit_model writes a file without weights",
        ),
    }


def _offload(path: str, part: OffloadOptimizer | OffloadParameters, device: Device, ledger: Ledger) -> Section:
    said = offload_config(part)
    section: Section = {"device": ledger.note(f"{path}.device", part.device, SAID)}
    pinned = device.kind != "cpu"
    section["pin_memory"] = ledger.choose(
        f"{path}.pin_memory",
        part.pin_memory,
        pinned,
        "copies between host and device run at full speed from page-locked memory"
        + (" (torch_npu may round each buffer up to a power of two)" if device.kind == "npu" else "")
        if pinned
        else "host and device memory are the same",
    )
    for key, value in said.items():
        if key not in section:
            section[key] = ledger.note(f"{path}.{key}", value, SAID)
    return section
