"""A disk that is really full: the right message, whole checkpoints, and the same losses after making room."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsgen.runtime.checkpoints import check_contents, complete_checkpoints, read_manifest
from dsgen.runtime.journal import read_rows
from dsgen.runtime.settings import Checkpoint
from tests.runtime.conftest import Ranks, ds_config, settings, write_job

pytestmark = pytest.mark.train

FILL = """
import os

def fill(folder, leave=0):
    with open(folder / "other-users-file", "ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
        file.truncate(max(0, file.tell() - leave))
"""
"""For train.py: somebody else takes the room on the disk."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A run folder on a file system of its own, of 2.2 MB."""
    folder = tmp_path / "run"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=2200k", "tmpfs", str(folder)]
    mounted = subprocess.run(mounting, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def whole_checkpoints(run_dir: Path) -> list[int]:
    steps = []
    for folder in complete_checkpoints(run_dir):
        manifest = read_manifest(folder)
        check_contents(folder, manifest.files)
        steps.append(manifest.step)
    return sorted(steps)


def test_no_room_for_a_checkpoint(ranks: Ranks, disk: Path, tmp_path: Path) -> None:
    """The checkpoint that does not fit is not begun and training goes on; the end says it again."""
    job = settings(steps=8, checkpoint=Checkpoint(every_steps=2))
    config = ds_config(job, 2)
    first = ranks.run(tmp_path, job, config)
    assert first.codes == [2, 2]
    losses = first.losses
    assert len(losses) == 8
    assert whole_checkpoints(disk) == [2, 4, 6]
    assert {event["step"] for event in first.events("checkpoint_skipped")} == {8}
    assert "warning: no checkpoint at step 8: it needs 0.00 GiB" in first.console()
    assert "its last checkpoint could not be written: no room on the disk" in first.errors[0]["message"]
    assert "Traceback" not in first.console() + first.console(1)

    subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
    again = ranks.run(tmp_path, job, config, "--resume", "auto").checked()
    assert again.report["resumed_after"] == 6
    assert again.losses == losses
    assert whole_checkpoints(disk) == [2, 4, 6, 8]


def test_room_is_taken_while_a_checkpoint_is_written(ranks: Ranks, disk: Path, tmp_path: Path) -> None:
    job = settings(steps=6, checkpoint=Checkpoint(every_steps=2))
    config = ds_config(job, 2)
    script = write_job(tmp_path, job, config)
    taken = """\
        save = engine.save_checkpoint
        def save_checkpoint(folder, tag, **options):
            if "step-00000004" in tag:
                fill(run.run_dir, leave=200000)
            return save(folder, tag=tag, **options)
        engine.save_checkpoint = save_checkpoint
        runtime.train("""
    script.write_text(FILL + script.read_text().replace("        runtime.train(", taken))
    first = ranks.run_script(script, disk)
    assert 0 not in first.codes
    said = first.console() + first.console(1)
    assert "error: the checkpoint of step 4 could not be written" in said
    assert "make room and start again with --resume auto" in said
    assert "Traceback" not in said
    losses = [row["loss"] for row in read_rows(disk / "metrics.jsonl")]
    assert len(losses) == 4
    assert whole_checkpoints(disk) == [2]

    (disk / "other-users-file").unlink()
    again = ranks.run(tmp_path, job, config, "--resume", "auto").checked()
    assert again.report["resumed_after"] == 2
    assert again.losses[:4] == losses
    assert whole_checkpoints(disk) == [2, 4, 6]
    assert not list((disk / "checkpoints").glob("*.partial"))


def test_no_room_for_a_line(ranks: Ranks, disk: Path, tmp_path: Path) -> None:
    """Not even metrics, logs and the error's own file can be written: the console still says what is wrong."""
    job = settings(steps=100, checkpoint=Checkpoint(every_steps=20, keep=1))
    config = ds_config(job, 2)
    script = write_job(tmp_path, job, config)
    taken = """\
        step = engine.step
        def take_room_and_step():
            if run.ranks.rank == 0 and engine.global_steps == 21:
                fill(run.run_dir)
            step()
        engine.step = take_room_and_step
        runtime.train("""
    script.write_text(FILL + script.read_text().replace("        runtime.train(", taken))
    first = ranks.run_script(script, disk, timeout=60)
    assert first.codes == [2, 1]
    said = first.console() + first.console(1)
    assert "error: no room is left on the disk" in said
    assert "make room and start again with --resume auto" in said
    assert "Traceback" not in said
    assert not (disk / "report.json").exists()
    losses = [row["loss"] for row in read_rows(disk / "metrics.jsonl")]
    assert 21 <= len(losses) < 100
    assert whole_checkpoints(disk)[-1] == 20

    (disk / "other-users-file").unlink()
    again = ranks.run(tmp_path, job, config, "--resume", "auto").checked()
    assert again.report["resumed_after"] == 20
    assert again.losses[: len(losses)] == losses
    assert len(again.losses) == 100
