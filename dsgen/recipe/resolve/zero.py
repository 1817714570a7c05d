"""The zero_optimization section: what the stage reads, in sizes that fit the model and the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsgen.catalog.devices import Device
from dsgen.catalog.models import Architecture
from dsgen.catalog.parameters import ParameterCount
from dsgen.recipe.resolve.ledger import SAID, Ledger
from dsgen.recipe.resolve.said import as_read
from dsgen.recipe.schema import OffloadOptimizer, OffloadParameters, Zero
from dsgen.recipe.words import OFFLOAD_SECTIONS, offload_config

BUCKET_ELEMENTS = 50_000_000
SUB_GROUP_ELEMENTS = 100_000_000
LIVE_ELEMENTS = 1_000_000_000
SMALL_DEVICE_BYTES = 40 * 2**30
SECTION = "zero_optimization"

Section = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the sizes depend on."""

    architecture: Architecture
    parameters: ParameterCount
    trainable: int
    device: Device
    ranks: int
    bf16_optimizer: bool
    """DeepSpeed's BF16_Optimizer takes the place of ZeRO's: it reads no other size than that of its gather."""


def zero_config(zero: Zero, facts: Facts, ledger: Ledger) -> Section:
    """The whole section. What the recipe says wins over what is derived."""
    stage = ledger.note("zero_optimization.stage", zero.stage, SAID)
    derived: dict[str, tuple[Any, str]] = {}
    if facts.bf16_optimizer:
        derived = _gathered_weights(facts)
    elif stage in (1, 2):
        derived = _common(facts) | _gathered_weights(facts)
    elif stage == 3:
        derived = _common(facts) | _partitioned_parameters(facts, zero)
    said = {key: value for key, value in as_read(zero.model_extra or {}, SECTION).items() if value is not None}
    section: Section = {"stage": stage}
    for key, (value, reason) in derived.items():
        section[key] = ledger.choose(f"{SECTION}.{key}", said.get(key), value, reason)
    for name, key in OFFLOAD_SECTIONS.items():
        part: OffloadOptimizer | OffloadParameters | None = getattr(zero.offload, name)
        if part is not None and part.device != "none":
            section[key] = _offload(f"{SECTION}.{key}", part, said.pop(key, {}), facts.device, ledger)
    for key, value in said.items():
        if key not in derived:
            section[key] = ledger.note(f"{SECTION}.{key}", value, SAID)
    return section


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
            else (
                "the CPU has no streams to overlap on" if facts.device.kind == "cpu" else "one rank: nothing to send"
            ),
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


def _gathered_weights(facts: Facts) -> dict[str, tuple[Any, str]]:
    bucket = _even(min(BUCKET_ELEMENTS, facts.trainable))
    return {"allgather_bucket_size": (bucket, "weights are gathered after the step through a buffer of this size")}


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


def _offload(
    path: str, part: OffloadOptimizer | OffloadParameters, more: Section, device: Device, ledger: Ledger
) -> Section:
    """`more` are keys of DeepSpeed's that the recipe's own section does not have."""
    said = offload_config(part) | more
    pinned = device.kind != "cpu"
    reason = (
        "copies between host and device run at full speed from page-locked memory"
        + (" (torch_npu may round each buffer up to a power of two)" if device.kind == "npu" else "")
        if pinned
        else "host and device memory are the same"
    )
    section: Section = {"device": ledger.note(f"{path}.device", part.device, SAID)}
    section["pin_memory"] = ledger.choose(f"{path}.pin_memory", said.get("pin_memory"), pinned, reason)
    for key, value in said.items():
        if key not in section:
            section[key] = ledger.note(f"{path}.{key}", value, SAID)
    return section
