"""Advice: what would make a job fit, each set a sound recipe that does what it promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsgen.documents.errors import DocumentError
from dsgen.findings import FindingsError
from dsgen.memory.estimate import estimate
from dsgen.planner.advice import Advised, advise
from dsgen.planner.variant import Variant, variant
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.resolve import resolve

from ..conftest import BASE, RECIPES

SINGLE = RECIPES / "7b-24g-single-gpu.yaml"
THIRTEEN = RECIPES / "13b-zero2.yaml"
SEVENTY = RECIPES / "70b-zero3-offload.yaml"


def advised(path: Path, *overrides: str) -> tuple[Variant, Advised]:
    """The job as it is, and what is advised."""
    loaded = load_recipe(path, overrides)
    plan = resolve(check_recipe(loaded))
    base = Variant(overrides=(), plan=plan, report=estimate(plan))
    return base, advise(loaded, base)


def sets(found: Advised) -> list[tuple[str, ...]]:
    return [each.variant.overrides for each in found.advice]


def test_a_fused_kernel_is_free() -> None:
    _, found = advised(THIRTEEN, "attention=eager", "activation_checkpointing=none")
    assert found.advice[0].variant.overrides[0] == "attention=sdpa"


def test_what_is_free_comes_first() -> None:
    base, found = advised(THIRTEEN, "precision.accumulate=bf16")
    assert base.report.verdict == "tight"
    assert sets(found)[:2] == [("precision.accumulate=fp32",), ("zero.stage=3",)]
    assert "rounded less" in found.advice[0].changes[0].cost


def test_recomputing_comes_before_sharding_and_offload() -> None:
    _, found = advised(THIRTEEN, "activation_checkpointing=none")
    # Offload alone leaves 5.9 of 61.0 GiB, less than a tenth.
    assert sets(found) == [("activation_checkpointing=full",), ("zero.stage=3",)]


def test_only_what_is_needed_is_advised() -> None:
    """Stage 2 with offload copies the weights on the device; stage 3 alone mends it."""
    base, found = advised(SINGLE, "zero.stage=2")
    assert base.report.verdict == "does not fit"
    # Offloading the parameters too would be stage 3 and more.
    assert sets(found) == [("zero.stage=3",)]


def test_the_loss_is_cut_where_the_logits_are_the_peak() -> None:
    batch = "batch={sequence_length: 16384, micro: 1, global: 64}"
    base, found = advised(RECIPES / "llama-3.2-1b-910a-fp16.yaml", batch, "loss=plain")
    assert base.report.verdict == "does not fit"
    assert base.report.peak_part == "logits and loss"
    # Nothing but the loss, and offload and sharding cannot make room for 12 x 16384 x 128256 bytes.
    assert sets(found) == [("loss=chunked",)]


def test_the_global_batch_is_kept() -> None:
    batch = "batch={sequence_length: 2048, micro: 6, accumulation: 2}"
    base, found = advised(THIRTEEN, batch, "loss=chunked")
    assert base.report.verdict == "does not fit"
    smaller = [each.variant.plan for each in found.advice if each.variant.plan.micro_batch < 6]
    assert smaller
    for plan in smaller:
        assert plan.global_batch == base.plan.global_batch == 96
        assert plan.micro_batch * plan.accumulation == 12


def test_a_micro_batch_of_too_many_zeros_and_no_small_divisors() -> None:
    # A prime: every smaller number would be tried as its divisor.
    base, found = advised(THIRTEEN, "batch.micro=99999999999973", "batch.accumulation=1", "batch.global=null")
    assert base.report.verdict == "does not fit"
    assert any("batch.micro=1" in overrides for overrides in sets(found))


def test_where_nothing_helps_the_closest_is_told() -> None:
    base, found = advised(SEVENTY, "hardware.nodes=1", "hardware.hosts=null")
    assert base.report.host.verdict == "does not fit"
    assert found.advice == ()
    assert found.closest is not None
    assert "zero.offload.optimizer.pin_memory=false" in found.closest.variant.overrides
    capacity = base.report.host.capacity_bytes
    assert capacity is not None
    assert capacity < found.closest.variant.report.host.peak_bytes < base.report.host.peak_bytes


def test_a_host_that_is_short_gets_what_frees_it() -> None:
    base, found = advised(SEVENTY, "hardware.host_memory=420GiB")
    assert base.report.host.verdict == "does not fit"
    assert base.report.device.verdict == "fits"
    # The device has room for the optimizer's states, or else for the weights.
    assert sets(found) == [
        ("zero.offload.optimizer=none",),
        ("zero.offload.parameters=none", "zero.offload.optimizer.pin_memory=false"),
        ("zero.offload.parameters=none", "precision.accumulate=bf16"),
    ]


SAID_COSTS = {
    "zero.overlap_comm=true": "none: gradients are reduced beside the backward pass",
    "zero.stage=1": "about the same communication",
    "zero.stage=2": "about the same communication",
    "zero.stage=3": "weights are gathered in every pass",
    "zero.offload.optimizer=cpu": "the host's cores take the optimizer's step",
    "zero.offload.optimizer=none": "none: it is faster",
    "zero.offload.optimizer.pin_memory=false": "slower copies between host and device",
    "zero.offload.parameters=none": "none: it is faster",
    "zero.offload.parameters=cpu": "weights cross the link",
    "precision.accumulate=bf16": "sums of gradients are rounded to bf16",
    "activation_checkpointing=full": "every layer is computed once more",
    "loss=plain": "none: the loss is taken at once",
}
LARGE = ("model=llama-2-70b", "precision=bf16", "hardware.host_memory=1500GiB")
TWO_NODES = ("model=qwen2.5-72b", "hardware={device: ascend-910b3-64g, per_node: 8, nodes: 2, host_memory: 1TiB}")
ONE_BATCH = "batch={sequence_length: 2048, micro: 1, accumulation: 1}"
A100 = "hardware={device: cuda-a100-80g, per_node: 8}"
# What fits, each the cheapest of its way.
MENDED: dict[str, tuple[Path, tuple[str, ...], list[tuple[str, ...]]]] = {
    "page-locked memory fills the host": (
        THIRTEEN,
        LARGE,
        [("zero.stage=3", "zero.offload.optimizer=cpu", "zero.offload.optimizer.pin_memory=false")],
    ),
    "a stage is enough": (
        RECIPES / "7b-fp16-accum4.yaml",
        ("zero.stage=0",),
        [("zero.stage=1",), ("zero.stage=2",), ("zero.stage=3",)],
    ),
    "fp32 has one kind of sums": (RECIPES / "1b-fp32-baseline.yaml", ("model=llama-2-7b",), [("zero.stage=3",)]),
    "the optimizer instead of the weights": (
        SEVENTY,
        (*TWO_NODES, "zero.offload={parameters: cpu}"),
        [("precision.accumulate=bf16", "zero.offload.optimizer=cpu")],
    ),
    "stage 1 with overlap": (
        THIRTEEN,
        ("precision=bf16", ONE_BATCH, A100, "zero={stage: 1, overlap_comm: false}"),
        [("zero.overlap_comm=true",), ("zero.stage=2",), ("zero.stage=3",)],
    ),
}


@pytest.mark.parametrize("job", MENDED)
def test_what_is_advised_is_enough_needed_and_priced(job: str) -> None:
    path, said, wanted = MENDED[job]
    loaded = load_recipe(path, said)
    _, found = advised(path, *said)
    assert sets(found) == wanted
    for each in found.advice:
        overrides = each.variant.overrides
        assert variant(loaded, overrides).report.verdict == "fits"
        costs = [change.cost for change in each.changes]
        assert len(costs) == len(overrides)
        for override in overrides:
            assert any(cost.startswith(SAID_COSTS[override]) for cost in costs)
            assert _verdict_without(override, each.variant, said, path) != "fits"


def _verdict_without(override: str, advice: Variant, said: tuple[str, ...], path: Path) -> str:
    try:
        fewer = variant(load_recipe(path, said), (each for each in advice.overrides if each != override))
    except (FindingsError, DocumentError):
        return "no sound recipe"
    return fewer.report.verdict


def test_sums_that_offload_rounds_are_a_cost() -> None:
    """At stage 2 dsgen takes fp32 sums, with offload bf16 ones: nobody says so in the overrides."""
    said = ("hardware.host_memory=1TiB", "model=llama-2-7b", "precision=bf16", "hardware.device=cuda-rtx4090-24g")
    base, found = advised(THIRTEEN, *said)
    assert base.plan.accumulate == "fp32" and base.plan.accumulation > 1
    for each in found.advice:
        rounded = each.variant.plan.accumulate == "bf16"
        assert rounded == any("rounded to bf16" in change.cost for change in each.changes)
    assert any(each.variant.plan.accumulate == "bf16" for each in found.advice)


def _brute_force(path: Path, said: tuple[str, ...]) -> Iterator[str]:
    """Verdicts of every stage, offload, page-locked memory, checkpointing, loss and gradient sums."""
    loaded = load_recipe(path, said)
    optimizers = ("none", "cpu", "{device: cpu, pin_memory: false}")
    for stage, optimizer, parameters, checkpointing, loss, sums in product(
        range(4), optimizers, ("none", "cpu"), ("none", "full"), ("plain", "chunked"), ("bf16", "fp32")
    ):
        changes = (
            f"zero.stage={stage}",
            f"zero.offload.optimizer={optimizer}",
            f"zero.offload.parameters={parameters}",
            f"activation_checkpointing={checkpointing}",
            f"loss={loss}",
            f"precision.accumulate={sums}",
        )
        try:
            yield variant(loaded, changes).report.verdict
        except (FindingsError, DocumentError):
            continue


@pytest.mark.parametrize("memory", [1300, 1400, 1500])
@pytest.mark.parametrize("zero", ["{stage: 2}", "{stage: 3, offload: {parameters: cpu}}"])
def test_nothing_fits_only_where_nothing_does(zero: str, memory: int) -> None:
    """Hosts around what the job needs: 1300 of 1611 GiB are not page-locked rounding."""
    said = ("model=llama-2-70b", "precision=bf16", f"zero={zero}", f"hardware.host_memory={memory}GiB")
    _, found = advised(THIRTEEN, *said)
    best = "does not fit"
    if found.advice:
        best = found.advice[0].variant.report.verdict
    verdicts = set(_brute_force(THIRTEEN, said))
    assert best == next(each for each in ("fits", "tight", "does not fit") if each in verdicts)


def test_a_job_that_fits_gets_none() -> None:
    assert advised(THIRTEEN)[1] == Advised()


def test_an_own_script_keeps_its_model_and_loss(write_recipe: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    _, found = advised(write_recipe(entrypoint="mine.py", model="llama-2-13b"))
    assert found.advice
    for each in found.advice:
        assert {"loss", "recompute"}.isdisjoint(change.kind for change in each.changes)


JOBS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["llama-2-7b", "llama-2-13b", "llama-3.2-3b", "qwen2.5-7b"]),
        "stage": st.integers(0, 3),
        "micro": st.integers(1, 9),
        "nodes": st.integers(1, 2),
        "accumulate": st.sampled_from(["null", "fp32"]),
        "offload": st.sampled_from(["{}", "{optimizer: cpu}"]),
        "device": st.sampled_from(["ascend-910b3-64g", "ascend-910a-32g", "cuda-rtx4090-24g"]),
        "memory": st.sampled_from([128, 512]),
    }
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(job=JOBS)
def test_advice_keeps_its_promise(job: dict[str, Any], write_recipe: Callable[..., Path]) -> None:
    """Given back as --set, each makes a sound recipe of the same training that fits as it says."""
    if job["stage"] == 0:
        job |= {"accumulate": "null", "offload": "{}"}
    precision = "fp16" if "910a" in job["device"] else "bf16"
    path = write_recipe(**{**BASE, "precision": precision})
    said = (
        f"model={job['model']}",
        f"zero={{stage: {job['stage']}, offload: {job['offload']}}}",
        f"batch={{sequence_length: 4096, micro: {job['micro']}, accumulation: 2}}",
        f"precision.accumulate={job['accumulate']}",
        f"hardware={{device: {job['device']}, per_node: 4, nodes: {job['nodes']}, host_memory: {job['memory']}GiB}}",
    )
    base, found = advised(path, *said)
    assert (base.report.verdict == "fits") <= (found == Advised())
    best = "fits" if any(each.variant.report.verdict == "fits" for each in found.advice) else "tight"
    for each in found.advice:
        plan = resolve(check_recipe(load_recipe(path, (*said, *each.variant.overrides))))
        assert estimate(plan) == each.variant.report
        assert plan.global_batch == base.plan.global_batch
        assert (plan.sequence_length, plan.precision) == (4096, precision)
        assert each.variant.report.verdict == best
        for override in each.variant.overrides:
            # Values of a batch go together, and null takes out what does nothing at the stage.
            if not override.startswith("batch.") and not override.endswith("=null"):
                without = _verdict_without(override, each.variant, said, path)
                assert without not in ("fits", best)
    for one in found.advice:
        for other in found.advice:
            assert one is other or not set(one.variant.overrides) <= set(other.variant.overrides)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_needs_none(path: Path) -> None:
    assert advised(path)[1].advice == ()
