"""Plans for the estimate, and the real engine to measure them by."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsgen.catalog.models import Architecture, load_preset
from dsgen.memory.job import ELEMENT_BYTES, Job, Optimizer, model_weights
from dsgen.memory.phases import phases
from dsgen.memory.report import PROCESSES, ROUNDING
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve import resolve

HERE = Path(__file__).resolve().parent
NEEDED = ("torch", "deepspeed", "transformers", "peft")
GIB = 1 << 30

if any(importlib.util.find_spec(name) is None for name in NEEDED):
    collect_ignore_glob = ["test_engine.py", "test_engine_grid.py"]

Planner = Callable[..., Plan]


@pytest.fixture
def plan(write_recipe: Callable[..., Path]) -> Planner:
    """The plan of BASE with some fields replaced."""

    def make(**changes: Any) -> Plan:
        return resolve(check_recipe(load_recipe(write_recipe(**changes), ())))

    return make


def job_of(
    model: str | Architecture,
    stage: int,
    ranks: int,
    *,
    precision: str = "bf16",
    accumulate: str | None = None,
    offload: tuple[str, ...] = (),
    device_bytes: int = 64 * GIB,
    **changes: Any,
) -> Job:
    """A job on NPUs in numbers, with what DeepSpeed takes where ds_config.json is silent, everything recomputed."""
    architecture = load_preset(model) if isinstance(model, str) else model
    weights = model_weights(architecture)
    element, sums = ELEMENT_BYTES[precision], ELEMENT_BYTES[accumulate or precision]
    fields: dict[str, Any] = {
        "architecture": architecture,
        "kind": "npu",
        "stage": stage,
        "ranks": ranks,
        "per_node": 8,
        "device_bytes": device_bytes,
        "element": element,
        "accumulate": sums,
        "scaled": precision == "fp16",
        "bf16_optimizer": (stage, precision, sums) == (1, "bf16", 4) and not offload,
        "optimizer": Optimizer(states=8, temporaries=0),
        "trained": weights,
        "frozen_elements": 0,
        "parameters": weights,
        "adapter_modules": frozenset(),
        "adapter_rank": 0,
        "accumulation": 1,
        "tokens": 2048,
        "sequence": 2048,
        "checkpoint_every": 1,
        "chunk": 0,
        "attention": "fused",
        "contiguous": True,
        "overlap": stage == 3,
        "bucket_elements": 500_000_000,
        "sub_group_elements": 1_000_000_000,
        "prefetch_elements": 50_000_000,
        "live_elements": 1_000_000_000,
        "reuse_elements": 1_000_000_000,
        "persistence_elements": 100_000,
        "offload_optimizer": "cpu" if "optimizer" in offload else "none",
        "offload_parameters": "cpu" if "parameters" in offload else "none",
        "pinned_optimizer": False,
        "pinned_parameters": False,
        "optimizer_buffers": 4,
        "parameter_buffers_elements": 500_000_000,
        "saves": True,
    }
    return Job(**{**fields, **changes})


def bytes_by_phase(job: Job, rank: int = 0) -> dict[str, int]:
    """Device bytes at the peak of each phase of one rank."""
    return {phase.name: phase.device.device_bytes for phase in phases(job, rank)}


def together(job: Job, rank: int = 0) -> dict[str, int]:
    """Bytes of tensors on device and host at each phase of one rank, as the CPU sees them: one and the same memory."""
    beside = (PROCESSES, ROUNDING)
    return {
        phase.name: phase.device.device_bytes
        + sum(size for part, size in phase.device.host.items() if part not in beside)
        for phase in phases(job, rank)
    }


def engine_job(planned: Plan, **more: Any) -> dict[str, Any]:
    """What the engine server needs to run a plan."""
    adapter = planned.adapter
    return {
        "ds_config": planned.ds_config,
        "model": planned.architecture.model_config(),
        "dtype": planned.precision,
        "attention": planned.attention,
        "micro": planned.micro_batch,
        "sequence": planned.sequence_length,
        "steps": 2,
        "checkpoint_every": planned.checkpoint_every_layers,
        "chunk": planned.loss_chunk_tokens,
        "adapter": None
        if adapter is None
        else {"rank": adapter.rank, "targets": list(adapter.targets), "dropout": adapter.dropout},
        **more,
    }


class Engine:
    """The server of one rank."""

    def __init__(self, ranks: int, rank: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "engine_server.py"), str(ranks), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def measure(self, job: dict[str, Any]) -> dict[str, Any]:
        """Peaks by phase."""
        assert self._process.stdin is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=60)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the engine server ended; its messages stand above"
        answer: dict[str, Any] = json.loads(line)
        return answer


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Rank 0 of 2."""
    server = Engine(2, 0)
    yield server
    server.close()


@pytest.fixture(scope="session")
def last_of_three() -> Iterator[Engine]:
    """Rank 2 of 3."""
    server = Engine(3, 2)
    yield server
    server.close()


@pytest.fixture(scope="session")
def alone() -> Iterator[Engine]:
    """The only rank."""
    server = Engine(1, 0)
    yield server
    server.close()
