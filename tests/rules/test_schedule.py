from __future__ import annotations

from typing import Any

import pytest

from .conftest import Case, Findings
from .linted import lint_config, said

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


TRAINER = {"framework": "transformers"}


def schedule(type: str, **params: Any) -> dict[str, Any]:
    return {"scheduler": {"type": type, "params": params}}


def decay(**params: Any) -> dict[str, Any]:
    return schedule("WarmupDecayLR", **{"total_num_steps": 100, "warmup_max_lr": 1e-5, **params})


def of_torch(type: str, **params: Any) -> dict[str, Any]:
    """A schedule of torch where DeepSpeed's optimizer takes it: at stage 0 in fp32."""
    return schedule(type, **params) | {"zero_optimization": {"stage": 0}, "bf16": None}


def cycle(first: float) -> dict[str, Any]:
    return schedule("OneCycle", cycle_min_lr=0.0, cycle_max_lr=1e-5, cycle_first_step_size=first)


def at(key: str) -> str:
    return f"scheduler.params.{key}"


CONFIGS: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, str, str]]]] = [
    (schedule("WarmupLR", warmup_steps=1), {}, [("SCH001", "error", at("warmup_steps"))]),
    (schedule("WarmupLR", last_batch_iteration=-1), {}, []),
    (schedule("WarmupLR", warmup_num_steps=0), {}, [("SCH002", "error", at("warmup_num_steps"))]),
    (schedule("WarmupLR", warmup_num_steps="ten"), {}, [("SCH002", "error", at("warmup_num_steps"))]),
    (schedule("WarmupLR", warmup_num_steps="auto"), {}, []),
    (schedule("WarmupLR", warmup_type="cosine"), {}, [("SCH002", "warning", at("warmup_type"))]),
    (schedule("WarmupLR", warmup_min_lr=[0.0, 0.0], warmup_max_lr=[1e-5, 1e-4]), {}, []),
    (schedule("WarmupLR", warmup_num_steps=2.5), {}, [("SCH002", "error", at("warmup_num_steps"))]),
    (schedule("WarmupLR", warmup_num_steps=True), {}, [("SCH002", "warning", at("warmup_num_steps"))]),
    (cycle(2.5), {}, [("SCH002", "warning", at("cycle_first_step_size"))]),
    (cycle(-1), {}, [("SCH002", "error", at("cycle_first_step_size"))]),
    (decay(total_num_steps=0), {}, [("SCH002", "warning", at("total_num_steps"))]),
    (schedule("WarmupCosineLR", warmup_num_steps=2), {}, [("SCH003", "error", "scheduler.params")]),
    (decay(warmup_num_steps=1000), {}, [("SCH004", "warning", at("warmup_num_steps"))]),
    (decay(warmup_num_steps=10), {}, []),
    (decay(warmup_max_lr=3e-5), {}, [("SCH006", "warning", at("warmup_max_lr"))]),
    (schedule("WarmupLR", warmup_num_steps=1), {}, [("SCH007", "warning", at("warmup_num_steps"))]),
    (schedule("WarmupLr"), {}, [("SCH008", "error", "scheduler.type")]),
    (schedule("constant"), {}, [("SCH008", "error", "scheduler.type")]),
    (schedule("StepLR", step_size=10), {}, [("SCH008", "error", "scheduler.type")]),
    (
        schedule("StepLR", step_size=10) | {"zero_optimization": {"stage": 0}},
        {},
        [("SCH008", "error", "scheduler.type")],
    ),
    (schedule("StepLR", step_size=10) | {"zero_optimization": {"stage": 0}, "bf16": None}, {}, []),
    ({"scheduler": {}}, {}, [("SCH009", "warning", "scheduler")]),
    (of_torch("StepLR", step_size=10, last_epoch=-1), {}, []),
    (of_torch("StepLR", step_size=10, gama=1), {}, [("SCH001", "error", at("gama"))]),
    (of_torch("StepLR", step_size=10, verbose=True), {}, [("SCH001", "warning", at("verbose"))]),
    (of_torch("StepLR"), {}, [("SCH003", "error", "scheduler.params")]),
    (of_torch("LambdaLR"), {}, [("SCH003", "error", "scheduler.type")]),
    (of_torch("LambdaLR", lr_lambda="x"), {}, [("SCH003", "error", "scheduler.type")]),
    # what the schedule does not take cannot override anything
    (schedule("WarmupCosineLR", total_num_steps=9, warmup_max_lr=1), {}, [("SCH001", "error", at("warmup_max_lr"))]),
    ({"scheduler": {"type": "WarmupLR"}}, {}, [("SCH009", "error", "scheduler")]),
    ({"scheduler": {"type": "WarmupDecayLR"}}, {}, [("SCH009", "error", "scheduler")]),
    ({"scheduler": {"params": {"warmup_num_steps": 10}}}, {}, [("SCH009", "error", "scheduler")]),
    (
        schedule("WarmupLR", warmup_num_steps=10.0),
        {"framework": "native"},
        [("SCH010", "warning", at("warmup_num_steps"))],
    ),
    (schedule("WarmupLR", warmup_num_steps=10.0), TRAINER, [("SCH010", "error", at("warmup_num_steps"))]),
    (decay(total_num_steps=100.0), TRAINER, []),
    (schedule("WarmupDecayLR", total_num_steps=100), {}, [("SCH011", "warning", "scheduler.params")]),
    (schedule("WarmupLR", warmup_num_steps=10), {}, []),
]


@pytest.mark.parametrize(("changes", "job", "expected"), CONFIGS)
def test_in_a_ds_config(changes: dict[str, Any], job: dict[str, Any], expected: list[tuple[str, str, str]]) -> None:
    assert said(lint_config(changes, "SCH", **job)) == expected


def test_what_the_peak_is_instead() -> None:
    (finding,) = lint_config(schedule("WarmupDecayLR", total_num_steps=100), "SCH011")
    assert finding.message == "WarmupDecayLR without warmup_max_lr peaks at 0.001, not at the optimizer's lr 1e-05"
    (finding,) = lint_config(schedule("WarmupDecayLR", total_num_steps="auto"), "SCH011")
    assert finding.help == 'give warmup_max_lr: "auto"'


@pytest.mark.parametrize(
    ("config", "help", "to"),
    [
        (schedule("WarmupLR", warmup_num_step=10), "did you mean warmup_num_steps?", "warmup_num_steps"),
        (of_torch("StepLR", step_size=1, gama=1), "did you mean gamma?", "gamma"),
        (schedule("WarmupLR", warmup_num_step=10, warmup_num_steps=10), "did you mean warmup_num_steps?", None),
        (schedule("WarmupLR", steps=10), "did you mean warmup_num_steps?", None),
        (
            schedule("WarmupCosineLR", total_num_steps=9, warmup_max_lr=1),
            "remove it: WarmupCosineLR peaks at the optimizer's lr",
            None,
        ),
        (
            schedule("WarmupCosineLR", total_num_steps=9, warmup_min_lr=0),
            "write warmup_min_ratio: the rate at the start as a part of the optimizer's lr",
            None,
        ),
    ],
)
def test_what_a_parameter_is_called(config: dict[str, Any], help: str, to: str | None) -> None:
    (finding,) = lint_config(config, "SCH001")
    assert finding.help == help
    assert [edit.to for edit in finding.fix] == ([("scheduler", "params", to)] if to else [])


def test_warmup_of_nothing() -> None:
    (finding,) = lint_config(schedule("WarmupLR", warmup_num_steps=0), "SCH002")
    assert finding.help == "write 1, or more"
