"""The examples of the documentation, started as a user starts them: two ranks of the real DeepSpeed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import REPOSITORY

pytestmark = pytest.mark.train

EXAMPLES = REPOSITORY / "docs" / "examples"


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`dsgen launch` in `folder`, shortened to eight steps."""
    environ = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    done = subprocess.run(
        [sys.executable, "-m", "dsgen", "launch", *words],
        cwd=folder,
        env={**environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done


def rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def check(run: Path, stage: int) -> None:
    """Eight steps that learn, and the report that says so."""
    losses = [row["loss"] for row in rows(run)]
    assert len(losses) == 8
    assert losses[0] > math.log(257) - 0.5
    assert losses[-1] < losses[0] - 1
    report = json.loads((run / "report.json").read_text())
    assert (report["status"], report["zero_stage"], report["last_loss"]) == ("finished", stage, losses[-1])


def test_trainer_at_stage_3(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    done = launch(tmp_path, str(EXAMPLES / "trainer.yaml"), "--set", "length.steps=8", "--set", "zero.stage=3")
    assert done.returncode == 0, done.stdout + done.stderr
    check(tmp_path / "runs" / "trainer" / "001", 3)


def test_plain_loop_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Saved after step 4, continued in a second run: the losses are those of the unbroken run, bit for bit."""
    recipe = tmp_path / "loop.yaml"
    recipe.write_text(
        f"extends: {EXAMPLES / 'plain-loop.yaml'}\nname: loop\nentrypoint: {{args: ['--save-every', 4]}}\n"
        "length: {steps: 8}\n"
    )
    assert launch(tmp_path, str(recipe)).returncode == 0
    run = tmp_path / "runs" / "loop" / "001"
    check(run, 2)
    whole = [row["loss"] for row in rows(run)]
    newest = run / "checkpoints" / "step-00000008"
    newest.rename(tmp_path / "away")
    again = launch(tmp_path, str(run), "--resume")
    assert again.returncode == 0, again.stdout + again.stderr
    assert [row["loss"] for row in rows(run)] == whole
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "resume"] == [4]


def test_a_script_without_dsgen(tmp_path: Path) -> None:
    """A script that only calls DeepSpeed: launched, given its words and folders; its failure is told."""
    script = tmp_path / "own.py"
    script.write_text(
        "import json, os, sys\n"
        "import deepspeed, deepspeed.ops, torch\n"
        # Otherwise collectives on CPU wait for a build of a minute.
        "deepspeed.ops.__compatible_ops__['deepspeed_shm_comm'] = False\n"
        "deepspeed.init_distributed()\n"
        "engine, *_ = deepspeed.initialize(model=torch.nn.Linear(8, 1), config=sys.argv[1])\n"
        "print(json.dumps([sys.argv, engine.zero_optimization_stage(), os.environ['DSGEN_RUN_DIR']]))\n"
        "open(os.path.join(sys.argv[2], f'done-{os.environ[\"RANK\"]}'), 'w').close()\n"
        "torch.distributed.destroy_process_group()\n"
        "assert len(sys.argv) == 4, 'too many words'\n"
    )
    recipe = tmp_path / "own.yaml"
    recipe.write_text(
        f"extends: {REPOSITORY / 'recipes' / 'tiny-cpu.yaml'}\nname: own\nzero: {{stage: 1}}\nprecision: fp32\n"
        "entrypoint: {script: own.py, args: ['{ds_config}', '{run_dir}', \"it's\"]}\n"
    )
    done = launch(tmp_path, str(recipe))
    run = tmp_path / "runs" / "own" / "001"
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrote no report.json" in done.stdout
    assert {path.name for path in run.glob("done-*")} == {"done-0", "done-1"}
    log = (run / "logs" / "launcher.log").read_text()
    assert json.dumps([[str(script), str(run / "ds_config.json"), str(run), "it's"], 1, str(run)]) in log

    recipe.write_text(recipe.read_text().replace("it's", "a").replace('"a"]', "a, b]"))
    failed = launch(tmp_path, str(recipe))
    assert failed.returncode == 1
    assert "too many words" in failed.stderr

    script.unlink()
    missing = launch(tmp_path, str(recipe))
    assert missing.returncode == 1
    assert f"error[inputs.entrypoint]: there is no script {script}" in missing.stderr
