"""Real training jobs for the tests of the training side: two ranks on CPU, tiny models."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dsgen.runtime.settings import Checkpoint, Data, Model, Settings

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
NEEDED = ("torch", "deepspeed", "transformers", "peft", "pyarrow")

if any(importlib.util.find_spec(name) is None for name in NEEDED):
    collect_ignore_glob = ["test_*.py"]

TINY: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}


def settings(**changes: Any) -> Settings:
    """Settings of a tiny job; `model` and `data` may be mappings of the fields that differ."""
    model = Model(**{"config": TINY, "dtype": "fp32", **changes.pop("model", {})})
    data = Data(**{"sequence_length": 32, "builtin": "python-topics", **changes.pop("data", {})})
    fields: dict[str, Any] = {
        "name": "tiny",
        "accelerator": "cpu",
        "backend": "gloo",
        "world_size": 2,
        "micro_batch": 2,
        "accumulation": 2,
        "steps": 8,
        "seed": 3,
        "checkpoint": Checkpoint(at_end=False),
    }
    return Settings(**{**fields, "model": model, "data": data, **changes})


def ds_config(job: Settings, stage: int, *, offload: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    """A DeepSpeed configuration that fits `job`; `offload` may hold `optimizer` and `param`."""
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": 20000, "overlap_comm": False}
    if stage in (1, 2):
        zero["allgather_bucket_size"] = 20000
    if stage == 3:
        zero.update(stage3_prefetch_bucket_size=5000, stage3_param_persistence_threshold=100)
    for part in offload:
        zero[f"offload_{part}"] = {"device": "cpu", "pin_memory": False}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": job.micro_batch,
        "gradient_accumulation_steps": job.accumulation,
        "train_batch_size": job.micro_batch * job.accumulation * job.world_size,
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 4e-3, "weight_decay": 0.01, "torch_adam": not offload}},
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": 1e-3, "warmup_max_lr": 4e-3, "warmup_num_steps": 4},
        },
        "gradient_clipping": 1.0,
        "steps_per_print": 1000000,
    }
    if job.model.dtype != "fp32":
        config[job.model.dtype] = {"enabled": True}
    return {**config, **changes}


def replace(job: Settings, **changes: Any) -> Settings:
    """Settings with some fields changed."""
    return dataclasses.replace(job, **changes)


TRAIN = """\
from pathlib import Path

from dsgen import runtime
from dsgen.runtime.settings import Adapter, Checkpoint, Data, Evaluation, Model, Settings

runtime.require_api(1, 0)
SETTINGS = {settings!r}


def main() -> None:
    with runtime.start(SETTINGS, folder=Path(__file__).resolve().parent) as run:
        import deepspeed

        data = runtime.build_data(run)
        model = runtime.build_model(run)
        engine, _, _, _ = deepspeed.initialize(
            model=model, model_parameters=runtime.trainable_parameters(model), config=str(run.ds_config)
        )
        runtime.train(run, engine, data)


if __name__ == "__main__":
    main()
"""


def write_job(folder: Path, job: Settings, config: dict[str, Any], script: str = TRAIN) -> Path:
    """Write `train.py` and `ds_config.json` as a rendered recipe would have them; returns the script."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ds_config.json").write_text(json.dumps(config))
    path = folder / "train.py"
    path.write_text(script.format(settings=job))
    return path


@dataclass(frozen=True)
class Result:
    """What a job left behind."""

    codes: list[int]
    run_dir: Path
    output: Path

    def json_lines(self, name: str) -> list[dict[str, Any]]:
        path = self.run_dir / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.json_lines("metrics.jsonl")

    @property
    def losses(self) -> list[float]:
        return [row["loss"] for row in self.rows]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.json_lines("events.jsonl") if event["event"] == kind]

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.run_dir / "report.json").read_text())
        return report

    @property
    def errors(self) -> dict[int, dict[str, Any]]:
        files = (self.run_dir / "errors").glob("rank-*.json")
        return {error["rank"]: error for error in (json.loads(path.read_text()) for path in files)}

    def console(self, rank: int = 0) -> str:
        return (self.output / f"rank-{rank}.txt").read_text()

    def log(self, rank: int = 0) -> str:
        path = self.run_dir / "logs" / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def checked(self) -> Result:
        """Itself, or a failure that shows what the ranks said."""
        if any(self.codes):
            said = "\n".join(f"[rank {n}]\n{self.console(n)}{self.log(n)[-3000:]}" for n in range(len(self.codes)))
            pytest.fail(f"exit codes {self.codes}\n{said}")
        return self


class Ranks:
    """Runs jobs on ranks forked from one process that has imported everything."""

    SERVER = HERE / "rank_server.py"

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(self.SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        # The first time on a machine this waits for a build of minutes.
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def run_script(
        self,
        script: Path,
        run_dir: Path,
        *argv: str,
        env: dict[str, str | None] | None = None,
        world_size: int = 2,
        timeout: float = 120,
        kill: dict[str, Any] | None = None,
    ) -> Result:
        """Run a script on `world_size` ranks and wait for all of them."""
        output = run_dir.with_name(f"{run_dir.name}-output")
        job = {
            "script": str(script),
            "argv": ["--run-dir", str(run_dir), *argv],
            "env": env or {},
            "world_size": world_size,
            "output": str(output),
            "timeout": timeout,
            "kill": kill,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return Result(self._answer()["codes"], run_dir, output)

    def run(self, folder: Path, job: Settings, config: dict[str, Any], *argv: str, **options: Any) -> Result:
        """Write the job into `folder` and run it there; the run folder is `folder/run`, or `run_dir`."""
        run_dir = options.pop("run_dir", folder / "run")
        script = write_job(folder, job, config, options.pop("script", TRAIN))
        return self.run_script(script, run_dir, *argv, world_size=options.pop("world_size", job.world_size), **options)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


def buffers() -> set[Path]:
    """What DeepSpeed's own CPU collectives have in /dev/shm; the runtime does not use them."""
    return set(Path("/dev/shm").glob("deepspeed_allreduce_buffer_*"))


@pytest.fixture(scope="session")
def environment(operators: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of training processes: CPU, one thread each."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DSGEN_") and name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE")
    }
    environment.update(
        DS_ACCELERATOR="cpu",
        OMP_NUM_THREADS="1",
        TORCH_EXTENSIONS_DIR=str(operators),
        DSGEN_CACHE_DIR=str(tmp_path_factory.mktemp("cache")),
        HF_HUB_OFFLINE="1",
        PYTHONPATH=os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
    )
    return environment


@pytest.fixture(scope="session")
def ranks(environment: dict[str, str]) -> Iterator[Ranks]:
    """Runs training jobs; the process behind it lives as long as the session."""
    server = Ranks(environment)
    yield server
    server.close()


STAGES: dict[str, tuple[int, tuple[str, ...]]] = {
    "0": (0, ()),
    "1": (1, ()),
    "2": (2, ()),
    "3": (3, ()),
    "2-optimizer": (2, ("optimizer",)),
    "3-optimizer-param": (3, ("optimizer", "param")),
}


class StageRuns:
    """The same 12 steps, saved after the 6th, at every stage and dtype; each run once, when first asked for."""

    def __init__(self, ranks: Ranks, folder: Path) -> None:
        self._ranks = ranks
        self._folder = folder
        self._results: dict[tuple[str, str], Result] = {}

    def job(self, dtype: str, case: str) -> tuple[Settings, dict[str, Any]]:
        stage, offload = STAGES[case]
        job = settings(model={"dtype": dtype}, steps=12, checkpoint=Checkpoint(every_steps=6, at_end=False))
        return job, ds_config(job, stage, offload=offload)

    def get(self, dtype: str, case: str) -> Result:
        if (dtype, case) not in self._results:
            job, config = self.job(dtype, case)
            result = self._ranks.run(self._folder / f"{dtype}-{case}", job, config)
            self._results[dtype, case] = result.checked()
        return self._results[dtype, case]


@pytest.fixture(scope="session")
def stage_runs(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> StageRuns:
    return StageRuns(ranks, tmp_path_factory.mktemp("stages"))
