"""Runs that learn nothing are ended, each with the message that helps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Dtype
from dsgen.runtime.watch import NONFINITE_STEPS, SKIPPED_STEPS, ZERO_STEPS, Watch
from tests.runtime.conftest import Ranks, ds_config, settings, write_job


def end_of(dtype: Dtype, losses: list[float], *, skipped: bool = False) -> tuple[int, RuntimeProblem | None]:
    """The step at which a run with these losses is ended, and how."""
    watch = Watch(dtype)
    for step, loss in enumerate(losses, start=1):
        try:
            watch.step(step, loss, skipped=skipped)
        except RuntimeProblem as problem:
            return step, problem
    return len(losses), None


@pytest.mark.parametrize(("dtype", "help"), [("fp16", "use precision: bf16"), ("bf16", "lower the learning rate")])
def test_not_a_number(dtype: Dtype, help: str) -> None:
    step, problem = end_of(dtype, [1.0, 2.0] + [math.nan, math.inf] * 20)
    assert problem is not None
    assert step == 2 + NONFINITE_STEPS
    assert "the loss was not a number" in problem.message
    assert help in problem.help


def test_zero() -> None:
    step, problem = end_of("bf16", [1.0] + [0.0] * 20)
    assert problem is not None
    assert step == 1 + ZERO_STEPS
    assert "exactly 0" in problem.message


@pytest.mark.parametrize(("dtype", "help"), [("fp16", "initial_scale_power"), ("bf16", "gradient_clipping")])
def test_skipped(dtype: Dtype, help: str) -> None:
    step, problem = end_of(dtype, [1.0] * 100, skipped=True)
    assert problem is not None
    assert step == SKIPPED_STEPS
    assert help in problem.help


def test_a_run_that_recovers_goes_on() -> None:
    assert end_of("fp16", ([math.nan] * (NONFINITE_STEPS - 1) + [3.0]) * 5)[1] is None
    assert end_of("bf16", ([0.0] * (ZERO_STEPS - 1) + [3.0]) * 5)[1] is None


@pytest.mark.train
def test_overflow_in_a_real_run(ranks: Ranks, tmp_path: Path) -> None:
    """fp16 with a loss scale that overflows for ever: rows tell scale and skipped steps, then the run ends itself."""
    job = settings(model={"dtype": "fp16"}, steps=100)
    scale = {"enabled": True, "loss_scale": 1e9}
    script = write_job(tmp_path, job, ds_config(job, 1, fp16=scale))
    allow = "from deepspeed.accelerator import get_accelerator\nget_accelerator().is_fp16_supported = lambda: True\n"
    script.write_text(allow + script.read_text())
    result = ranks.run_script(script, tmp_path / "run")
    assert result.codes == [2, 2]
    assert f"{SKIPPED_STEPS} steps on end were skipped" in result.errors[0]["message"]
    assert [row["skipped_steps"] for row in result.rows] == list(range(1, SKIPPED_STEPS + 1))
    assert {row["loss_scale"] for row in result.rows} == {1e9}
    assert result.events("end")[-1]["status"] == "failed"
