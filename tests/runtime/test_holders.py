"""What holds memory, against what the formulas of ZeRO say of a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.conftest import STAGES, Ranks, ds_config, settings

pytestmark = pytest.mark.train

ELEMENTS = 35040
"""Of the tiny model: 2 x 257 x 32 in embedding and head, 2 x 9280 in the layers, 32 in the last norm. A multiple of
2 ranks x 2 (the alignment of a flat group), so nothing is added."""


def moments(folder: Path, rank: int = 0) -> dict[str, Any]:
    (path,) = (folder / "run" / "memory").glob(f"step-00000002-rank-{rank}.json")
    return {moment["moment"]: moment for moment in json.loads(path.read_text())["moments"]}


@pytest.mark.parametrize("case", ["0", "1", "2", "3"])
def test_parts_by_stage(ranks: Ranks, tmp_path: Path, case: str) -> None:
    """bf16 with fp32 Adam after a step: 2 + 4 + 8 bytes for each parameter, divided by 2 ranks as the stage says."""
    stage, offload = STAGES[case]
    job = settings(model={"dtype": "bf16"}, steps=2, memory_snapshot_step=2)
    config = ds_config(job, stage, offload=offload)
    config["zero_optimization"]["reduce_bucket_size"] = ELEMENTS
    result = ranks.run(tmp_path, job, config).checked()
    seen = moments(tmp_path)
    assert list(seen) == ["forward", "backward", "step"]
    held = seen["step"]["parts"]["cpu"]
    states = ELEMENTS if stage == 0 else ELEMENTS // 2
    buffers = 2 * 8 * 4
    """Two rotary tables of 8 fp32 numbers."""
    weights = 2 * (ELEMENTS // 2 if stage == 3 else ELEMENTS)
    assert held["master weights"] == 4 * states
    # Adam's count of steps is a tensor of 4 bytes for each of its parameters.
    assert 0 <= held["optimizer states"] - 8 * states <= 4 * 30
    assert 0 <= held["parameters"] - weights - buffers <= (0 if stage < 3 else 2 * 9000)
    assert seen["forward"]["parts"]["cpu"]["activations"] > 0
    assert "activations" not in seen["step"]["parts"]["cpu"]
    assert (tmp_path / "run" / "memory" / "step-00000002-rank-1.json").exists()
    assert result.events("memory_snapshot")[0]["step"] == 2


def test_activations_are_named_by_module_and_freed(ranks: Ranks, tmp_path: Path) -> None:
    """Without recomputation a layer keeps much; with it, its input alone: micro batch x tokens x hidden, 4 bytes."""
    sizes = {}
    for every in (0, 1):
        job = settings(model={"checkpoint_every_layers": every}, steps=2, memory_snapshot_step=2)
        folder = tmp_path / str(every)
        ranks.run(folder, job, ds_config(job, 2)).checked()
        holders = [h for h in moments(folder)["forward"]["holders"] if h["part"] == "activations"]
        inside = [h for h in holders if any(".layers." in name for name in h["names"])]
        sizes[every] = sum(h["bytes"] for h in inside)
    assert sizes[1] == 2 * (2 * 32 * 32 * 4)
    assert sizes[0] > 8 * sizes[1]
