"""The closed form against the real engine over a grid: peak, phase, and the median of the errors.

`tests/long/test_memory_grid.py` does the same with more jobs.
"""

from __future__ import annotations

import statistics

import pytest

from . import grid
from .conftest import Engine

JOBS = 20

# One process takes them all: every job is measured for all tests at once.
pytestmark = pytest.mark.xdist_group("grid")


@pytest.fixture(scope="module")
def results(
    engine: Engine, alone: Engine, last_of_three: Engine, tmp_path_factory: pytest.TempPathFactory
) -> list[grid.Result]:
    """All jobs, measured."""
    engines = {1: alone, 2: engine, 3: last_of_three}
    return grid.measure(grid.design(JOBS), engines, tmp_path_factory.mktemp("grid"))


@pytest.mark.parametrize("number", range(JOBS))
def test_the_peak_and_its_phase(number: int, results: list[grid.Result]) -> None:
    result = results[number]
    assert result.is_close, str(result)
    assert result.is_right_phase, str(result)


def test_the_median_error(results: list[grid.Result]) -> None:
    assert statistics.median(abs(result.error) for result in results) <= 0.002
    # The jobs are of all kinds: what holds most is not always the same.
    assert {result.phase for result in results} >= {"loss", "backward"}
