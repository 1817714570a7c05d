"""Other estimators' formulas: on a shape small enough for paper, and against what the tools themselves say."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.memory_peers import GIB, PEERS, predictions

from ..conftest import REPOSITORY

POINTS = {
    point["id"]: point
    for point in json.loads((REPOSITORY / "benchmarks" / "data" / "memory-points.json").read_text())["points"]
}
TINY: dict[str, Any] = {
    "layers": 10,
    "hidden": 1000,
    "heads": 10,
    "kv_heads": 10,
    "head_dim": 100,
    "ffn": 4000,
    "vocab": 10_000,
    "params": 7e9,
    "act": "gelu",
    "tied": False,
    "method": "full",
    "precision": "bf16",
    "param_bytes": 2,
    "seq": 100,
    "mbs": 1,
    "ga": 1,
    "zero": 0,
    "dp": 1,
    "tp": 1,
    "pp": 1,
    "ep": 1,
    "devices": 1,
    "offload_optimizer": False,
    "offload_param": False,
    "recompute": "none",
    "attn": "flash2",
}
"""A GPT of round numbers. `params` is that of a 7B, for the peers that look at nothing else."""
LORA = {"method": "lora", "lora": {"r": 64, "targets": "q,v"}}

needs_deepspeed = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")


def size(peer: str, **changes: Any) -> float | None:
    """Bytes."""
    said = predictions({**TINY, **changes})[peer]
    return None if said is None else said * GIB


@needs_deepspeed
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"zero": 2, "devices": 8}, 14e9 + 15.75e9),
        ({"zero": 2, "devices": 8, "offload_optimizer": True}, 14e9),
        # 18 bytes over 16 devices on two nodes, and 4 for each parameter of the embedding.
        ({"zero": 3, "devices": 16}, 7.875e9 + 40e6),
        ({"zero": 3, "devices": 8, "offload_optimizer": True}, 1.75e9 + 40e6),
        ({"zero": 3, "devices": 8, "offload_optimizer": True, "offload_param": True}, 40e6),
        ({"zero": 3, "devices": 8, "vocab": 1000}, 15.75e9 + 16e6),
        ({"zero": 3, "devices": 8, **LORA}, 15.75e9 + 40e6),
    ],
)
def test_deepspeed(changes: dict[str, Any], expected: float) -> None:
    assert size("DeepSpeed", **changes) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("stage", [0, 1])
def test_deepspeed_has_no_function_for_lower_stages(stage: int) -> None:
    assert size("DeepSpeed", zero=stage, devices=8) is None


def test_without_deepspeed_its_column_says_so() -> None:
    """An interpreter without site-packages."""
    script = (
        "import json, sys; from memory_peers import PEERS, predictions;"
        "point = json.load(sys.stdin);"
        "print(json.dumps([PEERS[0].version, predictions(point)]))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        input=json.dumps({**TINY, "zero": 3, "devices": 8}),
        cwd=REPOSITORY / "benchmarks",
        capture_output=True,
        text=True,
        check=True,
    )
    version, said = json.loads(done.stdout)
    assert version == "not installed"
    assert said["DeepSpeed"] is None
    assert said["accelerate"] == pytest.approx(56e9 / GIB)


# 20,102,000 outside the layers (with learned positions), 12,008,000 in each.
COOKBOOK = 140_182_000


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 18 * COOKBOOK + 34e6 + 5e6),
        ({"recompute": "full"}, 18 * COOKBOOK + 34e6),
        ({"precision": "fp32"}, 20 * COOKBOOK + 39e6),
        ({"zero": 1, "devices": 10}, 7.2 * COOKBOOK + 1e9 + 39e6),
        ({"zero": 2, "devices": 10}, 3.6 * COOKBOOK + 1e9 + 39e6),
        ({"zero": 3, "devices": 10}, 1.8 * COOKBOOK + 3e9 + 39e6),
        # Tensor parallel shares out the weights, and nothing else.
        ({"tp": 2, "devices": 2}, 17 * COOKBOOK + 39e6),
        # A third matrix of the MLP, half of the keys and values.
        ({"act": "swiglu", "kv_heads": 5}, 18 * (COOKBOOK + 40e6 - 10e6) + 39e6),
        (LORA, 18 * COOKBOOK + 39e6),
        ({"ep": 2}, None),
    ],
)
def test_cookbook(changes: dict[str, Any], expected: float | None) -> None:
    assert size("EleutherAI cookbook", **changes) == (expected and pytest.approx(expected, rel=1e-9))


# 10,001,000 outside the layers (one embedding), 12,002,000 in each.
LLM_ANALYSIS = 130_021_000
LAYER = 12_002_000


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Gradients are more than activations, two layers' weights more than the logits' gradient.
        ({}, 18 * LLM_ANALYSIS + 4 * LAYER),
        ({"zero": 1, "dp": 4}, (2 + 3 + 4) * LLM_ANALYSIS + 4 * LAYER),
        ({"zero": 3, "dp": 4}, 4.5 * LLM_ANALYSIS + 4 * LAYER),
        # 10,000 tokens: 41,080 bytes in each layer and 6,000 outside, and 2e8 bytes of logits twice.
        ({"mbs": 100}, 14 * LLM_ANALYSIS + 416_800e4 + 4e8),
        ({"mbs": 100, "attn": "eager"}, 14 * LLM_ANALYSIS + 416_000e4 + 4e8),
        ({"mbs": 100, "recompute": "selective-op"}, 14 * LLM_ANALYSIS + 376_000e4 + 4e8),
        ({"mbs": 200, "recompute": "full"}, 14 * LLM_ANALYSIS + 26_000 * 2e4 + 8e8),
        # Half of the matrices and of the activations; the norms' weights stay whole, but their gradients do not.
        ({"mbs": 100, "tp": 2}, 7 * (LLM_ANALYSIS + 20_000) + 208_400e4 + 2e8),
        # A GPT has 264e6 FLOPs a token; these are 2.6e6 and 2.66e6 more. With grouped queries nobody looks.
        ({"act": "swiglu", "ffn": 2710}, 18 * 131_321_000 + 4 * 12_132_000),
        ({"act": "swiglu", "ffn": 2711}, None),
        ({"act": "swiglu", "kv_heads": 5}, 18 * (LLM_ANALYSIS + 40e6 - 10e6) + 4 * (LAYER + 3e6)),
        ({"precision": "fp32"}, None),
        ({"ep": 2}, None),
    ],
)
def test_llm_analysis(changes: dict[str, Any], expected: float | None) -> None:
    assert size("llm-analysis", **changes) == (expected and pytest.approx(expected, rel=1e-9))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # 120e6 in matrices, 42,000 in norms, two embeddings of 10,112 entries; 36,323,200 bytes of activations.
        ({}, 18 * 140_266_000 + 1.05 * 36_323_200),
        ({"recompute": "full"}, 18 * 140_266_000 + 1.05 * 36_323_200),
        ({"tied": True}, 18 * 130_154_000 + 1.05 * 36_323_200),
        ({"zero": 1, "dp": 4}, 9 * 140_266_000 + 1.05 * 36_323_200),
        # 10,240 entries, which two devices share.
        ({"tp": 2}, 18 * 70_282_000 + 1.05 * 23_324_800),
        # Half of the layers and one embedding; one micro batch of two in flight, no logits on the first stage.
        ({"pp": 2}, 18 * (60_021_000 + 10_112_000) + 1.05 * 100 * (340_000 + 2016) / 2),
        # RMSNorm's 21,000 and a third matrix.
        ({"act": "swiglu"}, 18 * (140_266_000 - 21_000 + 40e6) + 1.05 * 36_323_200),
        (LORA, None),
        ({"ep": 2}, None),
    ],
)
def test_megatron(changes: dict[str, Any], expected: float | None) -> None:
    assert size("Megatron-LM", **changes) == (expected and pytest.approx(expected, rel=1e-9))


def test_multiples_of_the_weights() -> None:
    assert size("accelerate") == pytest.approx(56e9)
    assert size("accelerate", precision="fp32") == pytest.approx(112e9)
    assert size("accelerate", zero=3, devices=64, dp=64) == pytest.approx(56e9)
    assert size("accelerate", **LORA) is None
    assert size("hf-vram-calc") == pytest.approx(72.8e9)
    # 54,687,500 adapter parameters of 8 bytes: 0.4375e9, which the tool adds to GiB.
    assert size("hf-vram-calc", **LORA) == pytest.approx(1.2 * (14e9 + 0.4375 * GIB))


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (
            "qwen-042",
            {
                "EleutherAI cookbook": 68.588,
                "llm-analysis": 60.254,
                "Megatron-LM": 87.483,
                "accelerate": 57.526,
                "hf-vram-calc": 74.784,
            },
        ),
        (
            "qwen-045",
            {
                "EleutherAI cookbook": 311.08,
                "llm-analysis": None,
                "Megatron-LM": None,
                "accelerate": None,
                "hf-vram-calc": 167,
            },
        ),
        (
            "tune-131",
            {
                "EleutherAI cookbook": 188,
                "llm-analysis": 69.391,
                "Megatron-LM": 79.415,
                "accelerate": 23.939,
                "hf-vram-calc": 31.12,
            },
        ),
        (
            "titan-121",
            {
                "EleutherAI cookbook": 727.69,
                "llm-analysis": 90.435,
                "Megatron-LM": 131.8,
                "accelerate": 59.828,
                "hf-vram-calc": 155.55,
            },
        ),
        (
            "titan-127",
            {
                "EleutherAI cookbook": 2727,
                "llm-analysis": 32.119,
                "Megatron-LM": 1151.7,
                "accelerate": 525.67,
                "hf-vram-calc": 1366.7,
            },
        ),
        (
            "ascend-112",
            {
                "EleutherAI cookbook": 71.935,
                "llm-analysis": 53.146,
                "Megatron-LM": None,
                "accelerate": None,
                "hf-vram-calc": 33.152,
            },
        ),
        (
            "hfdoc-160",
            {
                "EleutherAI cookbook": 10.272,
                "llm-analysis": None,
                "Megatron-LM": 7.9166,
                "accelerate": 4.9934,
                "hf-vram-calc": 6.4914,
            },
        ),
    ],
)
def test_as_the_tools_themselves_say(point: str, expected: dict[str, float | None]) -> None:
    """What the tools' own code gave for published runs, rounded to five digits."""
    said = predictions(POINTS[point])
    assert {name: said[name] for name in expected} == {
        name: gib and pytest.approx(gib, rel=1e-4) for name, gib in expected.items()
    }


def test_every_point_has_a_column_for_every_peer() -> None:
    names = [peer.name for peer in PEERS]
    assert len(set(names)) == len(names)
    for point in POINTS.values():
        said = predictions(point)
        assert list(said) == names
        assert all(gib is None or gib > 0 for gib in said.values())
        assert said["EleutherAI cookbook"] is not None
        assert (said["accelerate"] is None) == (point["method"] != "full")
        # Refused: fp32, and the FLOPs of Qwen-72B.
        assert (said["llm-analysis"] is None) == (point["precision"] == "fp32" or point["model"] == "Qwen-72B")
