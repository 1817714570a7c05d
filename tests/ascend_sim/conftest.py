"""Real runs on the simulated NPU; skipped, with the reason, where it cannot be built."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsgen.ascend_sim import build, simulated_environment, why_not
from dsgen.ascend_sim.build import OVERRIDDEN_OPS
from tests.conftest import RECIPES, REPOSITORY, remove_dead_locks
from tests.runtime.conftest import NEEDED, Ranks, Result

HERE = Path(__file__).resolve().parent

# Of the machine, not of the job: a recipe for 192 cores would start 96 threads a rank here.
_NOT_OF_THE_RECIPE = ("OMP_NUM_THREADS", "CPU_AFFINITY_CONF")


def why_skipped() -> str | None:
    """Why nothing here can run, or None."""
    import importlib.util

    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed: pip install 'dsgen[train]'"
    return why_not()


@pytest.fixture(scope="session")
def toolkit() -> Path:
    """The folder of the simulated CANN; compiles it the first time."""
    reason = why_skipped()
    if reason:
        pytest.skip(reason)
    return build()


def plain_environment() -> dict[str, str]:
    """What every process of these tests gets: nothing of a job or of Ascend, this checkout, one thread."""
    strange = ("DSGEN_", "ASCEND_", "HCCL_", "TASK_QUEUE", "PYTORCH_NPU")
    ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(strange) and name not in ranks
    }
    environment.update(
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
        PYTHONPATH=os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
        PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    )
    return environment


@pytest.fixture(scope="session")
def environment(toolkit: Path, operators: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of training processes on the simulated NPU, with what the recipe for it sets."""
    # Not the folder of the CPU's tests: DeepSpeed builds cpu_adam for NPU hosts with other flags under the same name.
    extensions = operators / "simulated-npu"
    extensions.mkdir(parents=True, exist_ok=True)
    remove_dead_locks(extensions)
    result = plain_environment()
    result.update(simulated_environment(toolkit, devices=2, environ=result))
    result.update(TORCH_EXTENSIONS_DIR=str(extensions), DSGEN_CACHE_DIR=str(tmp_path_factory.mktemp("cache")))
    return result


def listed_ops() -> set[str]:
    """The aten operators that may be overridden."""
    lines = OVERRIDDEN_OPS.read_text().splitlines()
    return {f"aten::{line}" for line in lines if line and not line.startswith("#")}


class NpuRanks(Ranks):
    """Ranks forked from one process that has imported torch_npu and touched no device."""

    SERVER = HERE / "rank_server.py"

    def run_code(self, folder: Path, code: str, *, world_size: int = 1, **environment: str) -> Result:
        """Run Python text on ranks that have set their device; what it prints is `console(rank)`."""
        folder.mkdir(parents=True, exist_ok=True)
        script = folder / "code.py"
        script.write_text(PREAMBLE + textwrap.dedent(code))
        return self.run_script(script, folder / "run", env=dict(environment), world_size=world_size)


PREAMBLE = """\
import json, os
import torch, torch_npu
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.npu.set_device(rank)

"""


def recipe(folder: Path, base: str, **changes: Any) -> Path:
    """A small recipe that extends a shipped one."""
    content = {
        "extends": str(RECIPES / base),
        "name": "small",
        "length": {"steps": 6},
        "schedule": {"warmup_num_steps": 1},
        "memory": {"reclaim_every": 0},
        "checkpoint": {"at_end": False},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**content, **changes}, sort_keys=False))
    return path


def rendered(folder: Path, base: str, **changes: Any) -> dict[str, str]:
    """Render such a recipe into `folder`; gives the environment that its launch.sh would set."""
    from dsgen.render.files import render_recipe
    from dsgen.render.output import write

    result = render_recipe(recipe(folder, base, **changes), ())
    write(result, folder / "out", force=False)
    return {
        variable.name: variable.value for variable in result.plan.environment if variable.name not in _NOT_OF_THE_RECIPE
    }


@pytest.fixture(scope="session")
def ranks(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[NpuRanks]:
    """Ranks on the simulated NPU."""
    # torch_npu reads some of its variables when it is imported.
    of_recipe = rendered(tmp_path_factory.mktemp("environment"), "tiny-npu.yaml")
    server = NpuRanks({**of_recipe, **environment})
    yield server
    server.close()


@pytest.fixture(scope="session")
def cpu_ranks(environment: dict[str, str]) -> Iterator[NpuRanks]:
    """The same on the CPU, for comparison."""
    # With the libraries: where torch_npu is installed, torch and transformers import it even for the CPU.
    server = NpuRanks({**environment, "DS_ACCELERATOR": "cpu"})
    yield server
    server.close()


CASES: dict[str, dict[str, Any]] = {
    "stage 0": {"zero": {"stage": 0}},
    "stage 1": {"zero": {"stage": 1}},
    "stage 2": {"zero": {"stage": 2}, "checkpoint": {"every_steps": 3, "at_end": False}},
    "stage 3": {"zero": {"stage": 3}},
    "optimizer offload": {"zero": {"stage": 2, "offload": {"optimizer": {"device": "cpu"}}}},
    "full offload": {
        "zero": {"stage": 3, "offload": {"optimizer": {"device": "cpu"}, "parameters": {"device": "cpu"}}}
    },
    "fp32": {"precision": "fp32"},
    # The first scale is too large: dynamic scaling has to find a smaller one.
    "fp16": {"precision": {"type": "fp16", "initial_scale_power": 17, "hysteresis": 1}, "length": {"steps": 8}},
    "activation checkpointing": {"activation_checkpointing": "full"},
    "lora": {"adapter": {"type": "lora", "rank": 4, "dropout": 0.1}},
    "biases": {"model": {"model_type": "qwen2"}},
    "evaluation": {"evaluation": {"every": 3, "steps": 1}},
    "reclaim": {"memory": {"reclaim_every": 3}},
}
"""What differs from tiny-npu.yaml, whose stage is 2 and whose precision is bf16."""


_SHOWN: dict[str, Result] = {}
_TRAINED = "trained on the simulated NPU"


@pytest.fixture(autouse=True)
def shown(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hand what a test has trained to the process that writes the summary."""
    yield
    for name, result in _SHOWN.items():
        peak = result.rows[-1]["device_peak_bytes"]
        losses = " ".join(f"{loss:.4f}" for loss in result.losses)
        line = f"{name}: {losses}" + (f"; {peak:,} bytes" if peak is not None else "")
        request.node.user_properties.append((_TRAINED, line))
    _SHOWN.clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was really trained, for whoever reads the log."""
    reports = [report for some in terminalreporter.stats.values() for report in some]
    said = [pair for report in reports for pair in getattr(report, "user_properties", ())]
    lines = dict.fromkeys(line for name, line in said if name == _TRAINED)
    if lines:
        terminalreporter.section("training on the simulated NPU: losses, torch_npu's peak bytes on a device")
        for line in lines:
            terminalreporter.line(line)


class Runs:
    """Every case once, when first asked for."""

    def __init__(self, ranks: NpuRanks, cpu_ranks: Callable[[], NpuRanks], folder: Path) -> None:
        self._ranks = ranks
        self._cpu_ranks = cpu_ranks
        self._folder = folder
        self._results: dict[tuple[str, str], Result] = {}

    def npu(self, case: str) -> Result:
        return self._get(case, "npu")

    def cpu(self, case: str) -> Result:
        return self._get(case, "cpu")

    def used_ops(self, case: str) -> set[str]:
        """Overridden operators that the case really used, on any rank."""
        return set((self.npu(case).run_dir.parent / "used-ops.txt").read_text().split())

    def folder(self, case: str, kind: str) -> Path:
        return self._folder / f"{kind} {case}"

    def _get(self, case: str, kind: str) -> Result:
        if (case, kind) not in self._results:
            folder = self.folder(case, kind)
            rendered(folder, f"tiny-{kind}.yaml", **CASES[case])
            ranks = self._ranks if kind == "npu" else self._cpu_ranks()
            result = ranks.run_script(
                folder / "out" / "train.py",
                folder / "run",
                env={"DSGEN_SIMULATED_NPU_USED_OPS": str(folder / "used-ops.txt")},
            )
            self._results[case, kind] = result.checked()
            _SHOWN[f"{case} on {'the simulated NPU' if kind == 'npu' else 'the CPU'}"] = result
        return self._results[case, kind]


@pytest.fixture(scope="session")
def runs(ranks: NpuRanks, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Runs:
    return Runs(ranks, lambda: request.getfixturevalue("cpu_ranks"), tmp_path_factory.mktemp("runs"))
