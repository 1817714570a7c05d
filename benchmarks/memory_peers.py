"""What other public estimators say of a point of a truth file.

DeepSpeed's estimator is called as it is installed. The others' formulas are written here anew from the mathematics of
their sources; each function names the file and the commit. Every tool keeps its defaults, and is told what it has a
setting for: shape, batch, stage, devices, recomputation.

Four decisions where a tool and a point do not meet:

- Adapters. Only hf-vram-calc counts LoRA. DeepSpeed's estimator, the cookbook and llm-analysis let a user describe the
  rest of such a job, and then count all weights as trained without a word: that number stands here. Megatron-LM's is
  part of a trainer without adapters, and accelerate's is headed "Training using Adam" for a bare model name: None.
- Optimizers with 16-bit states. No default knows them: fp32 states are counted.
- Experts (`ep` above 1). The cookbook, llm-analysis and Megatron-LM need numbers that points do not have: None.
- Context parallel. None of them knows it: the whole sequence is counted.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

GIB = 1 << 30
PER_NODE = 8
"""Devices of a node, where a tool wants nodes."""

Point = Mapping[str, Any]


def deepspeed(point: Point) -> float | None:
    """Bytes per device by DeepSpeed's own functions: weights, gradients and optimizer states.

    Without offload: stage 2 is 2 N + 18 N / n, stage 3 is 18 N / n and 4 bytes for each parameter of the largest
    layer. None at stages 0 and 1, for which there is no function, and where DeepSpeed is not installed.

    `largest layer` is there a module's own parameters: the embedding, or a matrix of the MLP.
    """
    if point["zero"] not in (2, 3):
        return None
    functions = _deepspeed_functions()
    if functions is None:
        return None
    stage2, stage3 = functions
    per_node = min(PER_NODE, point["devices"])
    job = {
        "total_params": int(point["params"]),
        "num_gpus_per_node": per_node,
        "num_nodes": -(-point["devices"] // per_node),
        "cpu_offload": point["offload_optimizer"],
    }
    if point["zero"] == 2:
        return float(stage2(**job)[1])
    largest = max(point["vocab"], point["ffn"]) * point["hidden"]
    return float(stage3(**job, largest_layer_params=largest, cpu_offload_params=point["offload_param"])[1])


@cache
def _deepspeed_functions() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """DeepSpeed's functions for stages 2 and 3. What its import prints is dropped: it would spoil JSON on stdout."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as stage3
            from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as stage2
        except ImportError:
            return None
    return stage2, stage3


def cookbook(point: Point) -> float | None:
    """Bytes per device by EleutherAI/cookbook, calc/calc_transformer_mem.py at 827ee3b (2026-03-15).

    Weights (2 bytes, 4 without mixed precision), gradients (4) and Adam (12), each shared out from its stage on;
    tensor and pipeline parallel share out the weights only. ZeRO adds a bucket of 5e8 weights, stage 3 1e9 live ones.
    Activations: 34 bytes for each token, hidden element and layer (Korthikanti et al. 2022, table 2), and 5 for each
    attention score. Recomputation removes only the latter.

    The tool counts parameters by itself: an untied head and learned positions always, 8 h of norms in a layer.
    """
    if point["ep"] > 1:
        return None
    hidden, layers, sequence, devices = point["hidden"], point["layers"], point["seq"], point["devices"]
    tokens, stage = sequence * point["mbs"], point["zero"]
    attention = 2 * (1 + point["kv_heads"] / point["heads"]) * hidden**2
    mlp = _mlp_matrices(point) * hidden * point["ffn"]
    parameters = (2 * point["vocab"] + sequence + 2) * hidden + layers * (attention + mlp + 8 * hidden)

    weight = 4 if point["precision"] == "fp32" else 2
    weights = weight * parameters / (point["tp"] * point["pp"]) / (devices if stage == 3 else 1)
    gradients = 4 * parameters / (devices if stage >= 2 else 1)
    adam = 12 * parameters / (devices if stage >= 1 else 1)
    buffers = 0.0
    if devices > 1 and stage >= 1:
        buffers = weight * (5e8 + (1e9 if stage == 3 else 0))
    activations = 34 * tokens * hidden * layers
    if point["recompute"] != "full":
        activations += 5 * point["heads"] * sequence * tokens * layers
    return float(weights + gradients + adam + buffers + activations)


def llm_analysis(point: Point) -> float | None:
    """Bytes per device by cli99/llm-analysis, llm_analysis/analysis.py at d841e40 (2024-11-13): its estimated peak.

    Weights (2) + fp32 weights and Adam (12) + the larger of activations and fp32 gradients (4) + the larger of two
    whole layers' weights (prefetching, at any stage) and the 16-bit gradient of the logits. A layer keeps, with flash
    attention and t = tensor = sequence parallel, (25 h + 8 a + 4 ffn) / t bytes a token; 4 a s in place of 4 h + 8 a
    without flash attention; 2 h / t when it is recomputed. Operators chosen one by one are the tool's selective
    recomputation: nothing is kept of attention's inside. The embedding is counted once, tied or not.

    None for fp32, which the tool refuses, and for models whose forward FLOPs are 1 % or more away from those of a GPT
    with as many heads for keys as for queries: its own check stops there (Qwen-72B).
    """
    if point["ep"] > 1 or point["precision"] == "fp32" or not _passes_flops_check(point):
        return None
    hidden, heads, tensor, ranks = point["hidden"], point["heads"], point["tp"], point["dp"]
    tokens, stage = point["seq"] * point["mbs"], point["zero"]
    on_device = point["layers"] // point["pp"]

    # At least one head of keys on each device.
    matrices = 2 * hidden**2 * (1 + max(point["kv_heads"], tensor) / heads)
    matrices += _mlp_matrices(point) * hidden * point["ffn"]
    norms = 2 * hidden
    outside = (point["vocab"] + 1) * hidden / tensor
    layer = matrices / tensor + norms
    weights = 2 * (on_device * layer + outside) / (ranks if stage == 3 else 1)
    adam = 12 * (on_device * layer + outside) / (ranks if stage >= 1 else 1)
    gradients = 4 * (on_device * (matrices + norms) / tensor + outside) / (ranks if stage >= 2 else 1)

    if point["recompute"] == "full":
        kept = 2 * hidden
    else:
        kept = 21 * hidden + 4 * point["ffn"]
        if point["recompute"] == "none":
            kept += 4 * heads * point["seq"] if point["attn"] == "eager" else 4 * hidden + 8 * heads
    logits = 2 * point["vocab"] * tokens / tensor
    # The embedding's output in 16 bits and the last norm's input in 32.
    activations = tokens * (point["layers"] * kept + 6 * hidden) / tensor + logits
    return float(weights + adam + max(activations, gradients) + max(2 * 2 * layer, logits))


def _passes_flops_check(point: Point) -> bool:
    """Whether llm-analysis goes on: forward FLOPs within 1 % of a GPT's, looked at for multi-head attention only."""
    if point["kv_heads"] != point["heads"]:
        return True
    hidden, sequence = point["hidden"], point["seq"]
    # Per token. What both have alike: attention's matrices and scores, and the head.
    alike = point["layers"] * (8 * hidden**2 + 4 * sequence * hidden) + 2 * hidden * point["vocab"]
    here = alike + point["layers"] * 2 * _mlp_matrices(point) * hidden * point["ffn"]
    gpt = alike + point["layers"] * 16 * hidden**2
    return bool(abs(here - gpt) / gpt < 0.01)


def megatron(point: Point) -> float | None:
    """Bytes per device by NVIDIA/Megatron-LM, megatron/training/theoretical_memory_usage.py at 1bcb3b9e0b (2026-06-15).

    18 bytes a parameter, 6 + 12 / dp with the distributed optimizer, which stands here for ZeRO of any stage.
    Activations as without sequence parallelism, the default: 10 + 24 / t bytes for each token, hidden element and
    layer, the embedding's, and without pipeline stages the 16-bit logits', all 1.05 times. Whether layers are
    recomputed is not looked at.
    Vocabularies are padded to multiples of 128 t. RMSNorm where the MLP is gated, LayerNorm elsewhere.
    """
    if point["method"] != "full" or point["ep"] > 1:
        return None
    hidden, tensor, pipeline = point["hidden"], point["tp"], point["pp"]
    tokens = point["seq"] * point["mbs"]
    vocab = -(-point["vocab"] // (128 * tensor)) * 128 * tensor
    norm = (1 if _gated(point) else 2) * hidden
    attention = 2 * hidden * point["head_dim"] * (point["heads"] + point["kv_heads"])
    mlp = _mlp_matrices(point) * hidden * point["ffn"]
    embeddings = vocab * hidden * (2 if pipeline == 1 and not point["tied"] else 1)
    parameters = (point["layers"] * (attention + mlp) / pipeline + embeddings) / tensor
    parameters += (point["layers"] * 2 * norm + norm) / pipeline
    states = parameters * (6 + 12 / point["dp"] if point["zero"] >= 1 else 18)

    activations = tokens * (point["layers"] * hidden * (10 + 24 / tensor) + pipeline * (8 + hidden))
    activations *= min(1, point["ga"] / pipeline)
    if pipeline == 1:
        activations += 2 * tokens * (vocab / tensor + hidden)
    return float(states + 1.05 * activations)


def accelerate(point: Point) -> float | None:
    """Bytes by huggingface/accelerate, src/accelerate/commands/estimate.py at 7ed69be0 (2026-02-27).

    `estimate-memory` shows the largest of its four stages: the optimizer's 2 x 4 N in mixed precision, the step's
    4 x 4 N in fp32. It knows one device, and neither batch nor sequence.
    """
    if point["method"] != "full":
        return None
    return (16 if point["precision"] == "fp32" else 8) * float(point["params"])


def hf_vram_calc(point: Point) -> float | None:
    """Bytes by hf-vram-calc 1.0.9 (PyPI), hf_vram_calc/calculator.py; W is the weights in the type they are kept in.

    Training: 4 x 1.3 x W. LoRA: 1.2 x (W + 8 bytes for each adapter parameter), those being N / 4 x 2 r / 4096
    whatever the model and the targets. The tool has theirs in 1e9 bytes and W in GiB, and adds the two as they are.
    It knows one device, and neither batch nor sequence in training.
    """
    weights = point["params"] * point["param_bytes"]
    if point["method"] == "full":
        return float(4 * 1.3 * weights)
    adapters = point["params"] / 4 * 2 * point["lora"]["r"] / 4096
    return float(1.2 * (weights + 8 * adapters / 1e9 * GIB))


def _gated(point: Point) -> bool:
    return bool(point["act"] == "swiglu")


def _mlp_matrices(point: Point) -> int:
    """How many matrices of h x ffn an MLP has."""
    return 3 if _gated(point) else 2


@dataclass(frozen=True, kw_only=True)
class Peer:
    """An estimator of somebody else's."""

    name: str
    version: str
    """Release, or commit of the file that the formula is from, and its day; `not installed`."""
    licence: str
    url: str
    covers: str
    estimate: Callable[[Point], float | None]
    """Bytes per device of a point; None where the tool gives no number."""


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


PEERS = (
    Peer(
        name="DeepSpeed",
        version=_installed("deepspeed"),
        licence="Apache-2.0",
        url="https://github.com/deepspeedai/DeepSpeed",
        covers="weights, gradients and optimizer states at stages 2 and 3, offload; no activations, no buffers",
        estimate=deepspeed,
    ),
    Peer(
        name="EleutherAI cookbook",
        version="827ee3b (2026-03-15)",
        licence="Apache-2.0",
        url="https://github.com/EleutherAI/cookbook/blob/827ee3b/calc/calc_transformer_mem.py",
        covers="states at stages 0 to 3, ZeRO's buffers, activations; no flash attention, no logits",
        estimate=cookbook,
    ),
    Peer(
        name="llm-analysis",
        version="d841e40 (2024-11-13)",
        licence="Apache-2.0",
        url="https://github.com/cli99/llm-analysis/blob/d841e40/llm_analysis/analysis.py",
        covers="states at stages 0 to 3, prefetching, activations with flash attention, recomputation, 16-bit logits",
        estimate=llm_analysis,
    ),
    Peer(
        name="Megatron-LM",
        version="1bcb3b9e0b (2026-06-15)",
        licence="BSD-3-Clause",
        url="https://github.com/NVIDIA/Megatron-LM/blob/1bcb3b9e0b/megatron/training/theoretical_memory_usage.py",
        covers="states with and without the distributed optimizer, activations, 16-bit logits; no recomputation",
        estimate=megatron,
    ),
    Peer(
        name="accelerate",
        version="7ed69be0 (2026-02-27)",
        licence="Apache-2.0",
        url="https://github.com/huggingface/accelerate/blob/7ed69be0/src/accelerate/commands/estimate.py",
        covers="all weights trained by Adam on one device; no activations",
        estimate=accelerate,
    ),
    Peer(
        name="hf-vram-calc",
        version="1.0.9",
        licence="MIT",
        url="https://pypi.org/project/hf-vram-calc/1.0.9/",
        covers="training and LoRA as multiples of the weights on one device; no activations",
        estimate=hf_vram_calc,
    ),
)


def predictions(point: Point) -> dict[str, float | None]:
    """GiB per device by name of the peer; None where it gives no number."""
    sizes = {peer.name: peer.estimate(point) for peer in PEERS}
    return {name: None if size is None else size / GIB for name, size in sizes.items()}
