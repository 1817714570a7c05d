"""The benchmark against published runs: what it compares, and that the estimate gets no worse unnoticed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..conftest import REPOSITORY

BENCHMARK = REPOSITORY / "benchmarks" / "memory_accuracy.py"
POINTS = REPOSITORY / "benchmarks" / "data" / "memory-points.json"


def run(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--format", "json", *words],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_every_point_is_compared_or_left_out_with_a_reason() -> None:
    points = {point["id"]: point for point in json.loads(POINTS.read_text())["points"]}
    said = run()
    compared = {each["id"]: each for each in said["points"]}
    assert compared.keys() | said["without_plan"].keys() == points.keys()
    assert compared.keys().isdisjoint(said["without_plan"])
    assert all(said["without_plan"].values())
    for name, each in compared.items():
        assert each["measured_gib"] == points[name]["measured_gib"]
        assert each["predicted_gib"] > 0
    groups = {group["group"]: group for group in said["groups"]}
    assert groups["all"]["points"] == len(compared) == sum(g["points"] for n, g in groups.items() if n != "all")
    # As measured on the day when it was written, and a little room.
    assert groups["qwen lora"]["median"] < 0.07
    assert groups["qwen full"]["median"] < 0.15


def test_the_figure_is_that_of_the_metric(tmp_path: Path) -> None:
    """The same run as three sources would tell it."""
    (point,) = [each for each in json.loads(POINTS.read_text())["points"] if each["id"] == "qwen-042"]
    metrics = {"allocated": "torch peak active", "reserved": "max_memory_reserved", "device total": "nvidia-smi"}
    points = [{**point, "id": name.replace(" ", "-"), "metric": metric} for name, metric in metrics.items()]
    path = tmp_path / "points.json"
    path.write_text(json.dumps({"points": points}))
    said = run("--points", str(path))
    allocated, reserved, total = (each["predicted_gib"] for each in said["points"])
    assert [each["metric"] for each in said["points"]] == list(metrics)
    assert reserved == pytest.approx(1.06 * allocated)
    assert total == pytest.approx(reserved + 1343e6 / 2**30)
    (group, everything) = said["groups"]
    errors = sorted(abs(size / point["measured_gib"] - 1) for size in (allocated, reserved, total))
    assert (group["median"], group["p90"]) == pytest.approx((errors[1], errors[2]))
    assert everything["median"] == group["median"]
