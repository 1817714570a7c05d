"""The closed form of the estimate against the real engine over a grid of 200 jobs."""

from __future__ import annotations

import collections
import statistics

import pytest

from tests.memory import grid
from tests.memory.conftest import Engine, alone, engine, last_of_three  # noqa: F401

JOBS = 200


def test_the_estimate_of_every_job(
    engine: Engine,  # noqa: F811
    alone: Engine,  # noqa: F811
    last_of_three: Engine,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    engines = {1: alone, 2: engine, 3: last_of_three}
    results = grid.measure(grid.design(JOBS), engines, tmp_path_factory.mktemp("grid"))
    errors = sorted(abs(result.error) for result in results)
    print(f"\n{len(results)} jobs: median {statistics.median(errors):.3%}, P90 {errors[len(errors) * 9 // 10]:.3%}")
    print(f"highest {errors[-1]:.3%}; peaks in {dict(collections.Counter(result.phase for result in results))}")
    for stage in range(4):
        some = [abs(result.error) for result in results if result.choice["stage"] == stage]
        print(f"stage {stage}: {len(some)} jobs, median {statistics.median(some):.3%}, highest {max(some):.3%}")
    wrong = [
        f"{number}: {result}"
        for number, result in enumerate(results)
        if not (result.is_close and result.is_right_phase)
    ]
    assert not wrong, "\n".join(wrong)
    assert statistics.median(errors) <= 0.002
