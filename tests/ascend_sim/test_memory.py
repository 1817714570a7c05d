"""What torch_npu's allocator counts of real jobs, beside the estimate, and a profile from such a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsgen.memory.estimate import estimate
from dsgen.memory.measured import compare, record
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve import resolve
from tests.ascend_sim.conftest import Runs, recipe

pytestmark = pytest.mark.train

MIB = 1 << 20
DEVICE = "ascend-910b3-64g"

APART = {"stage 0": 0.01, "stage 1": 0.02, "stage 2": 0.01, "stage 3": 0.03, "activation checkpointing": 0.03}
"""Relative to what was measured. A part of it is rounding: torch_npu's allocator counts in pieces of 512 bytes."""


def planned(path: Path) -> Plan:
    return resolve(check_recipe(load_recipe(path, ())))


@pytest.mark.parametrize("case", APART)
def test_the_allocated_peak_is_the_estimated_one(runs: Runs, case: str) -> None:
    result = runs.npu(case)
    measured = result.report["memory"]["device"]
    plan = planned(runs.folder(case, "npu") / "small.yaml")
    rows = {row["what"]: row for row in compare(record(estimate(plan), plan), measured)}
    assert rows["allocated"]["estimated_bytes"] == pytest.approx(rows["allocated"]["measured_bytes"], rel=APART[case])
    for what in ("initialize", "forward, loss, backward"):
        assert rows[what]["estimated_bytes"] == pytest.approx(rows[what]["measured_bytes"], rel=0.04), what
    # The figure of all ranks and the one that rank 0 writes after each step are of the same counters.
    assert measured["allocated_peak_bytes"] >= result.rows[-1]["device_peak_bytes"] - MIB
    assert measured["ranks"] == 2
    assert measured["capacity_bytes"] == plan.device.usable_bytes


def test_what_the_device_holds_beside_tensors(runs: Runs) -> None:
    """Communicators of 400 MiB: DeepSpeed makes one of its own beside that of torch.distributed, but at stage 3."""
    for case, communicators in (("stage 2", 2), ("stage 3", 1)):
        assert runs.npu(case).report["memory"]["device"]["beside_bytes"] == communicators * 400 * MIB


def test_launch_sets_both_side_by_side_and_calibrates(environment: dict[str, str], tmp_path: Path) -> None:
    recipe(
        tmp_path, "tiny-npu.yaml", checkpoint={"at_end": True}, length={"steps": 3}, schedule={"warmup_num_steps": 2}
    )

    def dsgen(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dsgen", *words],
            cwd=tmp_path,
            env={**environment, "XDG_CONFIG_HOME": str(tmp_path / "config")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    done = dsgen("launch", "small.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "runs" / "small" / "001"
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    plan = planned(tmp_path / "small.yaml")
    compared = compare(record(estimate(plan), plan), report["memory"]["device"], report["host_peak_bytes"])
    assert report["memory"]["compared"] == compared
    shown = [line.strip().split("  ")[0] for line in done.stdout.splitlines()]
    names = [row["what"] for row in compared]
    assert names[:5] == ["load", "initialize", "forward, loss, backward", "step, all-gather", "save"]
    assert names[5:] == ["allocated", "reserved", "device total", "node"]
    start = shown.index("memory")
    assert shown[start + 1 : start + 1 + len(names)] == names
    assert done.stdout.startswith("memory estimate: fits\n  device ")

    refused = dsgen("calibrate", str(folder))
    assert refused.returncode == 2
    assert "ran on the simulated NPU, which tells nothing of a real one" in refused.stderr
    made = dsgen("calibrate", str(folder), "--simulated", "--output", "simulated.yaml")
    assert made.returncode == 0, made.stderr
    profile = yaml.safe_load((tmp_path / "simulated.yaml").read_text())
    beside = report["memory"]["device"]["beside_bytes"]
    communicators = estimate(plan).device.parts["communicators"]
    assert profile["context_bytes"] == max(0, beside - communicators)
    assert (profile["device"], profile["simulated"], profile["reserved_factors"]) == (DEVICE, True, None)
    assert profile["runs"][0]["versions"]["torch_npu"] == report["versions"]["torch_npu"]
