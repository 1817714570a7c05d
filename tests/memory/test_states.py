"""What is held from step to step, against figures measured on the real engine: two ranks, 24 matrices."""

from __future__ import annotations

from typing import Any

import pytest

from dsgen.memory.job import Job, Optimizer, Weight, Weights
from dsgen.memory.phases import add
from dsgen.memory.states import accumulated, between_steps, largest_sub_group, owned_elements, partition_elements

from .conftest import bytes_by_phase, job_of

MATRICES = Weights(before=(), layer=(Weight(module="q_proj", elements=1024 * 1024),), after=(), layers=24)
N = MATRICES.elements


def matrices(stage: int, ranks: int = 2, **changes: Any) -> Job:
    """A job on 24 matrices and two ranks, with torch's AdamW and two micro batches to a step."""
    return job_of(
        "llama-2-7b",
        stage,
        ranks,
        **{
            "trained": MATRICES,
            "parameters": MATRICES,
            "optimizer": Optimizer(states=8, temporaries=8),
            "accumulation": 2,
            "bucket_elements": 2_000_000,
            **changes,
        },
    )


# bytes per parameter: between steps, between micro batches, at the peak of the step
MEASURED = [
    (matrices(1), 8.0, 10.16, 14.0),
    (matrices(1, accumulate="fp32"), 12.0, 14.0, 18.0),
    (matrices(2, accumulate="fp32"), 8.0, 10.0, 14.0),
    (matrices(2), 8.0, 9.0, 14.0),
    (matrices(3), 8.16, 8.16, 14.16),
    (matrices(3, accumulate="fp32"), 9.16, 9.16, 15.16),
    (matrices(3, sub_group_elements=4_000_000), 8.16, 8.16, 10.16),
]


@pytest.mark.parametrize(("job", "steady", "between", "step"), MEASURED)
def test_bytes_per_parameter(job: Job, steady: float, between: float, step: float) -> None:
    assert sum(between_steps(job).values()) / N == pytest.approx(steady, abs=0.01)
    assert sum(add(between_steps(job), accumulated(job, 0)).values()) / N == pytest.approx(between, abs=0.01)
    assert bytes_by_phase(job)["step"] / N == pytest.approx(step, abs=0.01)


def test_offload_leaves_weights_at_stage_2_and_partitions_at_stage_3() -> None:
    at_2 = between_steps(matrices(2, offload=("optimizer",)))
    assert at_2 == {"weights": 2 * N, "communication buckets": 2 * 1024 * 1024}
    at_3 = between_steps(matrices(3, offload=("optimizer",)))
    assert at_3 == {"weights": N, "gathered weights": 0, "communication buckets": 4_000_000}
    both = between_steps(matrices(3, offload=("optimizer", "parameters")))
    assert both == {"gathered weights": 0, "communication buckets": 4_000_000}


def test_a_partition_owns_parameters_that_cross_its_border() -> None:
    job = matrices(2, ranks=5)
    size = partition_elements(job)
    assert size * 5 >= N > size * 5 - 10
    # 24 matrices / 5 = 4.8: the first rank reaches into the fifth matrix, the second has a part of it as well.
    assert owned_elements(job, 0) == 5 * 1024 * 1024
    assert owned_elements(job, 1) == 6 * 1024 * 1024


def test_sub_groups_end_behind_the_parameter_that_reaches_the_limit() -> None:
    part = 1024 * 1024 // 2
    assert largest_sub_group(matrices(3, sub_group_elements=1)) == part
    assert largest_sub_group(matrices(3, sub_group_elements=part + 1)) == 2 * part
    assert largest_sub_group(matrices(3)) == 24 * part


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_stage_3_holds_no_more_than_stage_2(ranks: int) -> None:
    bucket: dict[str, Any] = {"bucket_elements": 0, "persistence_elements": 0}
    at_2 = sum(between_steps(job_of("llama-2-7b", 2, ranks, accumulation=2, **bucket)).values())
    at_3 = sum(between_steps(job_of("llama-2-7b", 3, ranks, accumulation=2, **bucket)).values())
    gradients = 2 * partition_elements(job_of("llama-2-7b", 3, ranks))
    assert at_3 - gradients <= at_2 + 64 * 291


def test_more_ranks_hold_less() -> None:
    for stage in (1, 2, 3):
        held = [sum(between_steps(job_of("llama-2-13b", stage, ranks)).values()) for ranks in (1, 2, 4, 8, 16, 64)]
        assert held == sorted(held, reverse=True), stage
