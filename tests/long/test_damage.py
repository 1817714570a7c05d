"""Checkpoints that were cut or changed behind the run's back: seen, named, and passed over for the one before."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from dsgen.runtime.settings import Checkpoint, Settings
from tests.runtime.conftest import Ranks, Result, ds_config, settings

STEPS, EVERY, NEWEST, BEFORE = 20, 4, 16, 12
CUTS: list[tuple[int, str, float]] = [
    # stage, file, what is left of it: a part below 1, or all but one byte
    (2, "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", 0),
    (3, "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", 1e-9),
    (2, "generators-0.pt", 0.1),
    (3, "generators-1.pt", 0.25),
    (2, "manifest.json", 0.4),
    (3, "model.json", 0.5),
    (2, "mp_rank_00_model_states.pt", 0.6),
    (3, "zero_pp_rank_1_mp_rank_00_model_states.pt", 0.75),
    (2, "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", 0.9),
    (3, "zero_pp_rank_0_mp_rank_00_model_states.pt", 1),
]
STAGES: dict[int, tuple[str, ...]] = {2: (), 3: ("optimizer", "param")}


class Wholes:
    """An uninterrupted run of each stage, and copies of it that stopped some steps after a checkpoint."""

    def __init__(self, ranks: Ranks, folder: Path) -> None:
        self.ranks, self.folder = ranks, folder
        self.runs: dict[int, Result] = {}

    def job(self, stage: int) -> tuple[Settings, dict[str, Any]]:
        job = settings(model={"dtype": "bf16"}, steps=STEPS, checkpoint=Checkpoint(every_steps=EVERY, at_end=False))
        return job, ds_config(job, stage, offload=STAGES[stage])

    def get(self, stage: int) -> Result:
        if stage not in self.runs:
            job, config = self.job(stage)
            self.runs[stage] = self.ranks.run(self.folder / str(stage), job, config).checked()
        return self.runs[stage]

    def stopped(self, stage: int, folder: Path) -> Path:
        """The newest checkpoint of a copy in `folder`."""
        shutil.copytree(self.get(stage).run_dir, folder / "run")
        checkpoints = folder / "run" / "checkpoints"
        shutil.rmtree(checkpoints / f"step-{STEPS:08d}")
        (checkpoints / "latest").write_text(f"step-{NEWEST:08d}\n")
        return checkpoints / f"step-{NEWEST:08d}"

    def go_on(self, stage: int, folder: Path, name: str) -> str:
        """Resume; returns why the newest checkpoint was refused."""
        job, config = self.job(stage)
        again = self.ranks.run(folder, job, config, "--resume", "auto").checked()
        assert again.report["resumed_after"] == BEFORE
        assert again.losses == self.get(stage).losses
        (refused,) = again.events("checkpoint_refused")
        assert refused["path"].endswith(f"step-{NEWEST:08d}")
        said = again.console() + again.console(1)
        assert "trying the checkpoint before it" in said
        assert name in said
        assert "Traceback" not in said
        reason: str = refused["reason"]
        return reason


@pytest.fixture(scope="module")
def wholes(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Wholes:
    return Wholes(ranks, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(("stage", "name", "part"), CUTS)
def test_cut(wholes: Wholes, tmp_path: Path, stage: int, name: str, part: float) -> None:
    newest = wholes.stopped(stage, tmp_path)
    content = (newest / name).read_bytes()
    left = min(math.ceil(len(content) * part), len(content) - 1)
    (newest / name).write_bytes(content[:left])
    reason = wholes.go_on(stage, tmp_path, name)
    print(f"  stage {stage}: {name} cut to {left} of {len(content)} bytes: {reason.rpartition('/')[2]}")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", ["model_states", "optim_states", "generators"])
@pytest.mark.parametrize("rank", [0, 1])
def test_changed(wholes: Wholes, tmp_path: Path, chance: random.Random, stage: int, kind: str, rank: int) -> None:
    """One byte of a tensor is another, the length is the same: torch.load would take it without a word."""
    newest = wholes.stopped(stage, tmp_path)
    files = sorted(newest.glob(f"*{kind}*.pt"))
    path = files[min(rank, len(files) - 1)]
    content = bytearray(path.read_bytes())
    # In the middle: archives end in directories, which not every byte matters in.
    place = chance.randrange(len(content) // 4, len(content) // 2)
    before = content[place]
    content[place] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    reason = wholes.go_on(stage, tmp_path, path.name)
    print(f"  stage {stage}: byte {place} of {path.name} {before} -> {content[place]}: {reason.rpartition('/')[2]}")
