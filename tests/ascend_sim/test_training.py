"""The recipe for two NPUs, rendered and trained on the simulated NPU with the real torch_npu, DeepSpeed and dsgen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ascend_sim.conftest import CASES, NpuRanks, Runs, listed_ops
from tests.runtime.conftest import Result

# One process takes them all: they look at the same runs.
pytestmark = [pytest.mark.train, pytest.mark.xdist_group("training")]

ROUNDING = {"fp32": 5e-6, "stage 2": 3e-3, "stage 0": 3e-3, "optimizer offload": 3e-3}
"""Nats in 6 steps, simulated NPU against CPU. The operators are the same; the optimizers are not: torch._fused_adamw_
here, PyTorch's own AdamW there. Measured: 2.4e-7 in fp32, 9.6e-4 in bf16, whose steps are 2**-9 of a weight."""

MIB = 1 << 20


def memory(result: Result) -> dict[tuple[str, int], dict[str, int]]:
    """Phase and step to what was measured; the last one of several."""
    return {(event["phase"], event["step"]): event for event in result.events("memory")}


@pytest.mark.parametrize("case", CASES)
def test_loss_falls(runs: Runs, case: str) -> None:
    losses = runs.npu(case).losses
    assert len(losses) == CASES[case].get("length", {"steps": 6})["steps"]
    # ln(257) = 5.55 nats is what a model that knows nothing has; its weights are drawn rather large.
    assert 5.8 < losses[0] < 6.2
    assert losses[-1] < losses[0] - (0.2 if case == "lora" else 1.5)


@pytest.mark.parametrize("case", ROUNDING)
def test_agrees_with_cpu(runs: Runs, case: str) -> None:
    assert runs.npu(case).losses == pytest.approx(runs.cpu(case).losses, abs=ROUNDING[case], rel=0)


def test_same_training_at_every_stage(runs: Runs) -> None:
    reference = runs.npu("stage 2").losses
    for case in ("stage 1", "stage 3", "optimizer offload", "full offload"):
        assert runs.npu(case).losses == pytest.approx(reference, abs=3e-3, rel=0), case


def test_says_where_it_ran(runs: Runs) -> None:
    report = runs.npu("stage 2").report
    assert (report["accelerator"], report["backend"], report["world_size"]) == ("npu", "hccl", 2)
    assert report["versions"]["torch_npu"] == report["versions"]["torch"].split("+")[0]
    for rank in range(2):
        assert "simulated NPU: 2 x Ascend910B3 of 60.96 GiB" in runs.npu("stage 2").log(rank)


def test_memory_as_torch_npu_counts_it(runs: Runs) -> None:
    """Peaks are real figures of torch_npu's allocator: sharding and offload lower them."""
    peaks = {case: runs.npu(case).rows[-1]["device_peak_bytes"] for case in CASES}
    # 1.58 million parameters: bf16 weights, fp32 masters, gradients and two moments.
    assert peaks["stage 0"] > 1_582_848 * 18
    assert peaks["stage 1"] < 0.8 * peaks["stage 0"]
    # The other half of masters and moments: 12 bytes for each of the 0.79 million parameters of a rank.
    assert peaks["stage 2"] - peaks["optimizer offload"] > 0.9 * 12 * 791_424 - 2 * MIB
    assert peaks["full offload"] < peaks["optimizer offload"]
    assert peaks["lora"] < 0.5 * peaks["stage 2"]


@pytest.mark.parametrize("case", ["stage 0", "stage 2", "stage 3", "full offload"])
def test_parts_add_up_to_what_torch_npu_holds(runs: Runs, case: str) -> None:
    """Of the bytes that the allocator counts nothing is left over but its rounding to 512 for each tensor."""
    measured = memory(runs.npu(case))
    for phase in ("forward", "backward", "step"):
        event = measured[phase, 2]
        rest = event["device_bytes"] - sum(event["parts"].values())
        assert 0 <= rest < 64 * 1024, (phase, event)
        assert event["device_peak_bytes"] >= event["device_bytes"]
    parts = measured["step", 2]["parts"]
    master = 0 if case == "full offload" else 4 * (1_582_848 if case == "stage 0" else 791_424)
    assert parts.get("master weights", 0) == master
    assert "activations" in measured["forward", 2]["parts"] and "activations" not in parts


def test_fp16_finds_its_loss_scale(runs: Runs) -> None:
    rows = runs.npu("fp16").rows
    skipped = rows[-1]["skipped_steps"]
    assert 1 <= skipped < 5
    assert rows[-1]["loss_scale"] == 2.0 ** (17 - skipped)


def test_activation_checkpointing(runs: Runs) -> None:
    """The same numbers bit for bit, with less held between forward and backward."""
    plain, recomputed = runs.npu("stage 2"), runs.npu("activation checkpointing")
    assert recomputed.losses == plain.losses
    held = [memory(result)["forward", 2]["device_bytes"] for result in (plain, recomputed)]
    assert held[0] - held[1] > 0.5 * MIB


def test_npu_optimizer(runs: Runs) -> None:
    """DeepSpeed's FusedAdam for NPUs is torch._fused_adamw_; with offload its CPUAdam steps on the host instead."""
    assert "aten::_fused_adamw_" in runs.used_ops("stage 2")
    assert "aten::_fused_adamw_" not in runs.used_ops("optimizer offload")


def test_reclaim(ranks: NpuRanks, runs: Runs, tmp_path: Path) -> None:
    """`memory.reclaim_every` gives cached memory back to the device, which torch_npu's reserved bytes show."""
    runs.npu("reclaim")
    script = runs.folder("reclaim", "npu") / "out" / "train.py"
    watched = script.with_name("watched.py")
    # The rendered script, with one line printed wherever the loop reclaims.
    watched.write_text(WATCH + script.read_text().replace('if __name__ == "__main__":', "watch()\n\nif True:"))
    result = ranks.run_script(watched, tmp_path / "run").checked()
    reserved = [json.loads(line[9:]) for line in result.log(0).splitlines() if line.startswith("reserved ")]
    # After steps 3 and 6.
    assert len(reserved) == 2
    for before, after, allocated in reserved:
        assert allocated <= after < before


WATCH = """\
def watch():
    import torch
    import dsgen.runtime.loop as loop

    original = loop.reclaim

    def reclaim(accelerator):
        before = torch.npu.memory_reserved()
        original(accelerator)
        print("reserved", [before, torch.npu.memory_reserved(), torch.npu.memory_allocated()], flush=True)

    loop.reclaim = reclaim


"""


def test_resume(ranks: NpuRanks, runs: Runs, tmp_path: Path) -> None:
    """From the checkpoint of step 3: what is left, bit for bit."""
    whole = runs.npu("stage 2")
    checkpoint = whole.run_dir / "checkpoints" / "step-00000003"
    script = runs.folder("stage 2", "npu") / "out" / "train.py"
    resumed = ranks.run_script(script, tmp_path / "run", "--resume", str(checkpoint)).checked()
    rows: list[dict[str, Any]] = resumed.rows
    assert [row["step"] for row in rows] == [4, 5, 6]
    assert resumed.losses == whole.losses[3:]


def test_every_overridden_operator_is_used(ranks: NpuRanks, runs: Runs, tmp_path: Path) -> None:
    """The list of overridden operators is as short as these runs, and torch's exchange of objects, allow."""
    used = set().union(*(runs.used_ops(case) for case in CASES))
    file = tmp_path / "used-ops.txt"
    exchange = 'dist.init_process_group("hccl"); dist.all_gather_object([None, None], rank); os._exit(0)'
    ranks.run_code(tmp_path, exchange, world_size=2, DSGEN_SIMULATED_NPU_USED_OPS=str(file)).checked()
    assert listed_ops() - used - set(file.read_text().split()) == set()
