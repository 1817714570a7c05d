from __future__ import annotations

import pytest

from .conftest import Case, Findings

CASES = [
    Case(
        code="SCH001",
        path="schedule.warmup_steps",
        wrong="schedule:\n  type: WarmupLR\n  warmup_steps: 10 # here",
        right="schedule:\n  type: WarmupLR\n  warmup_num_steps: 10",
    ),
    Case(
        code="SCH001",
        path="schedule.warmup_num_steps",
        wrong="schedule: {type: constant, warmup_num_steps: 10} # here",
        right="schedule: {type: constant}",
    ),
    Case(
        code="SCH001",
        path="schedule.a.b",
        wrong="schedule:\n  type: WarmupLR\n  a.b: 10 # here",
        right="schedule:\n  type: WarmupLR",
    ),
    Case(
        code="SCH002",
        path="schedule.warmup_num_steps",
        wrong="schedule: {type: WarmupLR, warmup_num_steps: 0} # here",
        right="schedule: {type: WarmupLR, warmup_num_steps: 10.0}",
    ),
    Case(
        code="SCH002",
        path="schedule.warmup_type",
        wrong="schedule: {type: WarmupLR, warmup_type: cosine} # here",
        right="schedule: {type: WarmupLR, warmup_type: log}",
    ),
    Case(
        code="SCH002",
        path="schedule.cycle_first_step_size",
        wrong="schedule: {type: OneCycle, cycle_min_lr: 1e-6, cycle_max_lr: 1e-5, cycle_first_step_size: 0} # here",
        right="schedule: {type: OneCycle, cycle_min_lr: 1e-6, cycle_max_lr: 1e-5, cycle_first_step_size: 50}",
    ),
    Case(
        code="SCH003",
        path="schedule",
        wrong="schedule: {type: OneCycle, cycle_min_lr: 1e-6} # here",
        right="schedule: {type: OneCycle, cycle_min_lr: 1e-6, cycle_max_lr: 1e-5}",
    ),
    Case(
        code="SCH003",
        path="schedule",
        wrong="length: {epochs: 2}\nschedule: {type: WarmupDecayLR} # here",
        right="length: {epochs: 2}\nschedule: {type: WarmupDecayLR, total_num_steps: 500}",
    ),
    Case(
        code="SCH004",
        path="schedule.warmup_num_steps",
        wrong="schedule: {type: WarmupCosineLR, warmup_num_steps: 100} # here",
        right="schedule: {type: WarmupCosineLR, warmup_num_steps: 99}",
    ),
    # 8 steps of 64 x 2048 tokens
    Case(
        code="SCH004",
        path="schedule.warmup_num_steps",
        wrong="length: {tokens: 1M}\nschedule: {type: WarmupDecayLR, warmup_num_steps: 8} # here",
        right="length: {tokens: 1M}\nschedule: {type: WarmupDecayLR, warmup_num_steps: 7}",
    ),
    Case(
        code="SCH005",
        path="schedule.total_num_steps",
        wrong="schedule: {type: WarmupCosineLR, total_num_steps: 50} # here",
        right="schedule: {type: WarmupCosineLR, total_num_steps: 100}",
    ),
    Case(
        code="SCH006",
        path="schedule.warmup_max_lr",
        wrong="schedule: {type: WarmupLR, warmup_max_lr: 3e-5} # here",
        right="schedule: {type: WarmupLR, warmup_max_lr: 2e-5}",
    ),
    Case(
        code="SCH007",
        path="schedule.warmup_num_steps",
        wrong="schedule: {type: WarmupLR, warmup_num_steps: 1} # here",
        right="schedule: {type: WarmupLR, warmup_num_steps: 2}",
    ),
    Case(
        code="SCH007",
        path="length",
        wrong="length: {steps: 2} # here\nschedule: {type: WarmupCosineLR}",
        right="length: {steps: 3}\nschedule: {type: WarmupCosineLR}",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)


def test_raw_parameters_are_checked_too(findings: Findings) -> None:
    (found,) = findings("schedule: {type: WarmupLR}\ndeepspeed: {scheduler: {params: {warmup_num_steps: 0}}}")
    assert (found.code, found.path) == ("SCH002", "deepspeed.scheduler.params.warmup_num_steps")
