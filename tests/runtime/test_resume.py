"""Continuing a run: the same losses, bit for bit, as if nothing had happened."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsgen.runtime.checkpoints import check_contents, read_manifest
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Checkpoint
from tests.runtime.conftest import STAGES, Ranks, Result, StageRuns, ds_config, settings, write_job

pytestmark = pytest.mark.train

STAGE_0_BAND = 1e-3
"""Nats. DeepSpeed's FP16_Optimizer without ZeRO does not restore itself exactly in bf16. Measured: about 1e-5."""


def without_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    varying = ("time", "tokens_per_second", "host_peak_bytes")
    return [{name: value for name, value in row.items() if name not in varying} for row in rows]


@pytest.mark.parametrize("case", STAGES)
def test_same_losses_after_resume(stage_runs: StageRuns, ranks: Ranks, tmp_path: Path, case: str) -> None:
    whole = stage_runs.get("bf16", case)
    job, config = stage_runs.job("bf16", case)
    resumed = ranks.run(
        tmp_path, job, config, "--resume", str(whole.run_dir / "checkpoints" / "step-00000006")
    ).checked()
    assert [row["step"] for row in resumed.rows] == list(range(7, 13))
    if case == "0":
        assert resumed.losses == pytest.approx(whole.losses[6:], abs=STAGE_0_BAND, rel=0)
    else:
        assert without_time(resumed.rows) == without_time(whole.rows)[6:]
    assert resumed.report["resumed_after"] == 6


def test_cpu_adam_after_a_resume(environment: dict[str, str], tmp_path: Path) -> None:
    """DeepSpeed's CPU Adam goes on bit for bit, also from step 20 on, where its `pow` is not its running product."""
    script = tmp_path / "adam.py"
    script.write_text(ADAM)
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    apart = json.loads(done.stdout.splitlines()[-1])
    assert 0 < apart["as saved"] < 1e-6
    assert apart["completed"] == 0


ADAM = """
import copy, json
import torch
from types import SimpleNamespace
from deepspeed.ops.adam import DeepSpeedCPUAdam
from dsgen.runtime.optimizer_states import complete_optimizer

def train(resumed_at, complete=False):
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(10000))
    optimizer = DeepSpeedCPUAdam([weights], lr=1e-3)
    for step in range(30):
        if step == resumed_at:
            saved = copy.deepcopy(optimizer.state_dict())
            weights = torch.nn.Parameter(weights.detach().clone())
            optimizer = DeepSpeedCPUAdam([weights], lr=1e-3)
            optimizer.load_state_dict(saved)
            if complete:
                zero = SimpleNamespace(optimizer=optimizer)
                complete_optimizer(SimpleNamespace(optimizer=zero, zero_nvme_offload_optimizer=lambda: False), None)
        weights.grad = torch.randn(10000)
        optimizer.step()
    return weights.detach()

whole = train(None)
print()
print(json.dumps({
    "as saved": (train(20) - whole).abs().max().item(),
    "completed": (train(20, complete=True) - whole).abs().max().item(),
}))
"""


@pytest.mark.parametrize(
    ("case", "rank", "file", "lines"),
    [
        ("2", 1, "metrics.jsonl", 8),
        ("3", 0, "metrics.jsonl", 10),
        # The sixth line announces the second checkpoint: killed while it is being written.
        ("1", 1, "events.jsonl", 8),
    ],
)
def test_killed_rank(
    stage_runs: StageRuns, ranks: Ranks, tmp_path: Path, case: str, rank: int, file: str, lines: int
) -> None:
    """SIGKILL of one rank: the others end by themselves, and a resumed run gives what an unbroken one gives."""
    whole = stage_runs.get("bf16", case)
    job, config = stage_runs.job("bf16", case)
    when = {"rank": rank, "when": str(tmp_path / "run" / file), "lines": lines}
    killed = ranks.run(tmp_path, job, config, kill=when, timeout=60)
    assert killed.codes[rank] == -signal.SIGKILL
    assert killed.codes[1 - rank] == 1
    assert killed.errors[1 - rank]["traceback"]
    again = ranks.run(tmp_path, job, config, "--resume", "auto").checked()
    assert without_time(again.rows) == without_time(whole.rows)
    assert not list((tmp_path / "run" / "checkpoints").glob("*.partial"))


def test_term_saves_and_stops(ranks: Ranks, tmp_path: Path) -> None:
    """SIGTERM to one rank: all ranks save together and end well; the run can go on."""
    job = settings(steps=40)
    when = {"rank": 1, "when": str(tmp_path / "run" / "metrics.jsonl"), "lines": 3, "signal": signal.SIGTERM}
    stopped = ranks.run(tmp_path, job, ds_config(job, 2), kill=when).checked()
    done = stopped.report["steps"]
    assert stopped.report["status"] == "stopped"
    assert stopped.events("end")[-1]["status"] == "stopped"
    assert 3 <= done < 40
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text() == f"step-{done:08d}\n"
    assert f"stopped after step {done} of 40" in stopped.console()

    (tmp_path / "run" / "stop").touch()
    again = ranks.run(tmp_path, job, ds_config(job, 2), "--resume").checked()
    assert again.report["status"] == "finished"
    assert [row["step"] for row in again.rows] == list(range(1, 41))


def test_stop_file(ranks: Ranks, tmp_path: Path) -> None:
    job = settings(steps=300)
    script = write_job(tmp_path, job, ds_config(job, 0))
    watching = script.read_text().replace(
        "        runtime.train(", '        (run.run_dir / "stop").touch()\n        runtime.train('
    )
    script.write_text(watching)
    stopped = ranks.run_script(script, tmp_path / "run").checked()
    assert stopped.report["status"] == "stopped"
    assert stopped.report["steps"] == 1


def test_checkpoints_kept_and_damage_passed_over(ranks: Ranks, tmp_path: Path) -> None:
    job = settings(steps=5, checkpoint=Checkpoint(every_steps=1, keep=3))
    config = ds_config(job, 2)
    first = ranks.run(tmp_path, job, config).checked()
    checkpoints = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in checkpoints.glob("step-*")) == [f"step-0000000{step}" for step in (3, 4, 5)]
    assert [event["step"] for event in first.events("checkpoint")] == [1, 2, 3, 4, 5]

    torn = next((checkpoints / "step-00000005").glob("*optim_states.pt"))
    torn.write_bytes(torn.read_bytes()[:-100])
    # Only rank 1 reads this file, and rank 0 must not go on without it.
    changed = next((checkpoints / "step-00000004").glob("*zero_pp_rank_1_*optim_states.pt"))
    change_a_byte(changed)
    losses = first.losses
    longer = settings(steps=6, checkpoint=Checkpoint(every_steps=1, keep=3))
    again = ranks.run(tmp_path, longer, config, "--resume", "auto").checked()
    refused = again.events("checkpoint_refused")
    assert [Path(event["path"]).name for event in refused] == ["step-00000005", "step-00000004"]
    assert torn.name in refused[0]["reason"]
    assert "files of rank 1 are damaged" in refused[1]["reason"]
    assert again.console().count("trying the checkpoint before it") == 1
    assert f"{changed.name} is damaged: " in again.console(1)
    assert again.report["resumed_after"] == 3
    assert [row["step"] for row in again.rows] == [1, 2, 3, 4, 5, 6]
    assert again.losses[:5] == losses


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def test_refuses_another_job(ranks: Ranks, stage_runs: StageRuns, tmp_path: Path) -> None:
    whole = stage_runs.get("bf16", "2")
    job, _ = stage_runs.job("bf16", "2")
    other = settings(model={"dtype": "bf16"}, seed=4)
    checkpoint = str(whole.run_dir / "checkpoints" / "step-00000006")
    result = ranks.run(tmp_path, other, ds_config(other, 1), "--resume", checkpoint)
    assert result.codes == [2, 2]
    assert "the ZeRO stage was 2 and is 1; the seed was 3 and is 4" in result.errors[0]["message"]

    # Nobody asked to continue, and nothing is overwritten.
    run_dir = tmp_path / "copy"
    shutil.copytree(whole.run_dir, run_dir)
    script = write_job(tmp_path / "again", job, ds_config(job, 2))
    result = ranks.run_script(script, run_dir)
    assert result.codes == [2, 2]
    assert "already holds a run" in result.errors[0]["message"]
    for name in ("metrics.jsonl", "events.jsonl", "report.json"):
        assert (run_dir / name).read_bytes() == (whole.run_dir / name).read_bytes()


def test_full_disk(ranks: Ranks, tmp_path: Path) -> None:
    """Too little room: the checkpoint is not begun, this is said, training goes on; the end says it again."""
    job = settings(steps=2, checkpoint=Checkpoint(every_steps=1))
    script = write_job(tmp_path, job, ds_config(job, 1))
    full = "import shutil\nshutil.disk_usage = lambda path: shutil._ntuple_diskusage(1 << 30, 1 << 30, 12345)\n"
    script.write_text(full + script.read_text())
    result: Result = ranks.run_script(script, tmp_path / "run")
    assert result.codes == [2, 2]
    assert [event["step"] for event in result.events("checkpoint_skipped")] == [1, 2, 2]
    assert "no checkpoint at step 1" in result.console()
    assert "no room on the disk" in result.errors[0]["message"]
    assert len(result.rows) == 2
    assert not list((tmp_path / "run" / "checkpoints").glob("step-*"))


def test_writing_fails_halfway(ranks: Ranks, tmp_path: Path) -> None:
    """The disk gives out while a checkpoint is being written: the run ends and says why, the one before is whole."""
    job = settings(steps=4, checkpoint=Checkpoint(every_steps=1))
    config = ds_config(job, 2)
    script = write_job(tmp_path, job, config)
    # From the second checkpoint on no file may grow beyond 50 kB.
    limit = """\
import resource
from dsgen.runtime import loop
whole = loop.save_checkpoint
def save(run, engine, data, step):
    if step == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50000, resource.RLIM_INFINITY))
    return whole(run, engine, data, step)
loop.save_checkpoint = save
"""
    script.write_text(limit + script.read_text())
    result = ranks.run_script(script, tmp_path / "run")
    assert 0 not in result.codes
    assert "the checkpoint of step 2 could not be written" in " ".join(e["message"] for e in result.errors.values())
    checkpoints = tmp_path / "run" / "checkpoints"
    assert (checkpoints / "latest").read_text() == "step-00000001\n"
    assert [path.name for path in checkpoints.glob("step-????????")] == ["step-00000001"]
    again = ranks.run(tmp_path, job, config, "--resume", "auto").checked()
    assert again.report["resumed_after"] == 1
    assert sorted(path.name for path in checkpoints.glob("step-*"))[-1] == "step-00000004"


def test_manifest_names_every_file(stage_runs: StageRuns, tmp_path: Path) -> None:
    """Cut any file of a checkpoint anywhere, or take it away: the check sees it."""
    whole = stage_runs.get("bf16", "3").run_dir / "checkpoints" / "step-00000006"
    manifest = read_manifest(whole)
    assert manifest.step == 6
    assert manifest.samples == 6 * 8
    copy = tmp_path / whole.name
    for position in range(10):
        shutil.copytree(whole, copy)
        name = sorted(manifest.files)[position % len(manifest.files)]
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content[: len(content) * position // 10])
        with pytest.raises(RuntimeProblem, match=name):
            read_manifest(copy)
        (copy / name).unlink()
        with pytest.raises(RuntimeProblem, match=name):
            read_manifest(copy)
        shutil.rmtree(copy)
    shutil.copytree(whole, copy)
    for path in copy.glob("*.pt"):
        content = path.read_bytes()
        check_contents(copy, [path.name])
        change_a_byte(path)
        assert read_manifest(copy) == manifest
        with pytest.raises(RuntimeProblem, match=rf"{path.name} is damaged"):
            check_contents(copy, manifest.files)
        path.write_bytes(content)
    half = json.dumps(json.loads((copy / "manifest.json").read_text()))[:-20]
    (copy / "manifest.json").write_text(half)
    with pytest.raises(RuntimeProblem, match="manifest"):
        read_manifest(copy)
    (copy / "manifest.json").write_text((whole / "manifest.json").read_text().replace('"step": 6', '"step": 7'))
    with pytest.raises(RuntimeProblem, match=r"manifest\.json is damaged: it says step 7"):
        read_manifest(copy)
