"""Tensor and sequence parallelism: the closed form against the real engine, storage by storage on CPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsgen.catalog.models import load_preset
from dsgen.memory.estimate import estimate
from dsgen.memory.job import Job, model_weights, read_job
from dsgen.memory.parallel import Parallel, embedding_rows, head_rows, rank_architecture
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve import resolve

from ..conftest import RECIPES
from .conftest import HERE, NEEDED, Planner, engine_job, together

MODEL = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
}
STAGE_2 = {"stage": 2, "reduce_bucket_size": 300_000, "overlap_comm": False}
STAGE_3 = {
    "stage": 3,
    "reduce_bucket_size": 300_000,
    "sub_group_size": 500_000,
    "stage3_prefetch_bucket_size": 50_000,
    "stage3_max_live_parameters": 100_000,
    "stage3_max_reuse_distance": 100_000,
    "stage3_param_persistence_threshold": 2560,
}
# Activations hold most of the memory in all of them.
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "tensor 2": (2, {"parallel": {"tensor": 2}}),
    "tensor 2, recomputed": (2, {"parallel": {"tensor": 2}, "activation_checkpointing": "full"}),
    "tensor 2, tied": (
        2,
        {"parallel": {"tensor": 2}, "model": {**MODEL, "vocab_size": 2048, "tie_word_embeddings": True}},
    ),
    "sequence 2": (2, {"parallel": {"sequence": 2}}),
    "tensor 2 x data 2": (4, {"parallel": {"tensor": 2}}),
    "stage 3, tensor 2 x data 2": (4, {"parallel": {"tensor": 2}, "zero": STAGE_3}),
    "tensor 4 for 2 heads of keys": (4, {"parallel": {"tensor": 4}, "activation_checkpointing": "full"}),
    "sequence 4 for 2 heads of keys": (4, {"parallel": {"sequence": 4}}),
    # With 2 heads of keys the closed form is 1.01 % too high, by one tensor.
    "sequence 4, recomputed": (
        4,
        {
            "parallel": {"sequence": 4},
            "model": {**MODEL, "num_key_value_heads": 4},
            "activation_checkpointing": "full",
        },
    ),
    "stage 3, sequence 2 x data 2": (4, {"parallel": {"sequence": 2}, "zero": STAGE_3}),
}


WIDE_HEADS = {
    "parallel": {"sequence": 2},
    "model": {**MODEL, "num_key_value_heads": 8, "head_dim": 64},
    "activation_checkpointing": "full",
}


class Engines:
    """Rank 0 of 2 and of 4, each started when it is first needed."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[str]] = {}

    def measure(self, ranks: int, job: dict[str, Any]) -> dict[str, Any]:
        """Peaks by phase."""
        if ranks not in self._processes:
            words = [sys.executable, str(HERE / "parallel_server.py"), str(ranks), "0", "fake"]
            self._processes[ranks] = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._answer(ranks)
        stdin = self._processes[ranks].stdin
        assert stdin is not None
        print(json.dumps(job), file=stdin, flush=True)
        return self._answer(ranks)

    def close(self) -> None:
        """End them."""
        for process in self._processes.values():
            process.communicate(timeout=60)

    def _answer(self, ranks: int) -> dict[str, Any]:
        stdout = self._processes[ranks].stdout
        assert stdout is not None
        line = stdout.readline()
        assert line, "the engine server ended; its messages stand above"
        answer: dict[str, Any] = json.loads(line)
        return answer


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """The engines of this file."""
    started = Engines()
    yield started
    started.close()


needs_the_engine = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED), reason="measures the real engine"
)


def planned(path: Path) -> Plan:
    """The plan of a recipe that is only estimated."""
    return resolve(check_recipe(load_recipe(path, ()), to_run=False))


def both(
    engines: Engines, ranks: int, case: dict[str, Any], write_recipe: Callable[..., Path]
) -> tuple[dict[str, int], dict[str, int]]:
    """Peaks by phase: of the closed form, and measured."""
    fields = {
        "model": MODEL,
        "zero": STAGE_2,
        "batch": {"sequence_length": 1024, "micro": 1, "accumulation": 1},
        "activation_checkpointing": "none",
        "optimizer": {"type": "AdamW", "lr": 1e-4, "torch_adam": True},
        "hardware": {"device": "cpu", "per_node": ranks},
        "data": {"builtin": "python-topics"},
        "tokenizer": "bytes",
        **case,
    }
    plan = planned(write_recipe(**fields))
    job = read_job(plan)
    shares = {"tensor": plan.tensor_parallel, "sequence_parallel": plan.sequence_parallel}
    answer = engines.measure(ranks, engine_job(plan, **shares))
    assert job.parameters.elements == answer["elements"]
    closed, measured = together(job), answer["peaks"]
    for phase in ("load", "save"):
        closed.pop(phase)
    measured.pop("model")
    return closed, measured


@needs_the_engine
@pytest.mark.parametrize("name", CASES)
def test_the_peak_of_the_real_engine(name: str, write_recipe: Callable[..., Path], engines: Engines) -> None:
    closed, measured = both(engines, *CASES[name], write_recipe)
    assert max(closed.values()) == pytest.approx(max(measured.values()), rel=0.01), (closed, measured)
    assert closed["step"] == pytest.approx(measured["step"], rel=0.01)


@needs_the_engine
def test_attention_of_a_shared_sequence(write_recipe: Callable[..., Path], engines: Engines) -> None:
    """Where heads are wider than the feed-forward part, the forward pass of a recomputed layer is highest in it."""
    closed, measured = both(engines, 2, WIDE_HEADS, write_recipe)
    assert closed["forward"] == pytest.approx(measured["forward"], rel=0.01)
    assert max(closed.values()) == pytest.approx(max(measured.values()), rel=0.01), (closed, measured)


def test_every_parameter_is_somewhere() -> None:
    """70B on 8 ranks: what is cut adds up to the whole; norms and the embedding are on every rank."""
    whole = load_preset("llama-2-70b")
    shared = Parallel(tensor=8, gathers_logits=True)
    weights = model_weights(rank_architecture(whole, shared), embedding_rows(whole, shared), head_rows(whole, shared))
    norms = whole.hidden_size * (2 * whole.layers + 1)
    everywhere = whole.vocabulary_size * whole.hidden_size + norms
    assert 8 * (weights.elements - everywhere) + everywhere == model_weights(whole).elements


def job_with(*overrides: str) -> Job:
    """A shipped recipe's job on 8 devices."""
    return read_job(resolve(check_recipe(load_recipe(RECIPES / "13b-zero2.yaml", overrides), to_run=False)))


def test_what_zero_divides_by() -> None:
    """The ranks of a sequence share weights and states; those of a layer hold different ones."""
    plain, sequence, tensor = job_with(), job_with("parallel.sequence=4"), job_with("parallel.tensor=4")
    assert (plain.ranks, sequence.ranks, tensor.ranks) == (8, 8, 2)
    assert sequence.trained == plain.trained
    assert (sequence.tokens, tensor.tokens) == (plain.tokens // 4, plain.tokens)
    assert (sequence.sent, tensor.sent) == (4, 2)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("parallel.tensor=2", "parallel.sequence=2"), "stops such a job at its first batch"),
        (("parallel.tensor=2", "adapter={rank: 8, targets: [q_proj]}"), "stops where it cuts a layer"),
        (("parallel.sequence=16", "hardware.nodes=2", "hardware.hosts=null"), "DeepSpeed refuses 40 heads"),
        (("parallel.tensor=2",), "as if a rank read only its part"),
        (("parallel.sequence=8", "batch.sequence_length=2047"), "2047 tokens are not equal parts for 8 ranks"),
    ],
)
def test_what_cannot_be_or_is_not_known_is_said(overrides: tuple[str, ...], said: str) -> None:
    plan = resolve(check_recipe(load_recipe(RECIPES / "13b-zero2.yaml", overrides), to_run=False))
    assert any(said in line for line in estimate(plan).unmeasured)


def test_a_plan_without_parallelism_says_nothing_of_it(plan: Planner) -> None:
    assert not any("parallel" in line for line in estimate(plan()).unmeasured)
