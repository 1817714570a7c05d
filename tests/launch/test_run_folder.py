"""Run folders are numbered and never overwritten."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from dsgen.findings import DsgenError
from dsgen.launch.run_folder import (
    base_of_run,
    left_by_script,
    new_run_folder,
    newest_run_of_script,
    newest_saved_run,
    next_run_folder,
    was_started,
)

HELP = "start elsewhere"


def test_numbers_start_at_one_and_go_on_after_the_highest(tmp_path: Path) -> None:
    assert new_run_folder(tmp_path, "a", help=HELP) == tmp_path / "a" / "001"
    (tmp_path / "a" / "041").mkdir()
    (tmp_path / "a" / "099-old").mkdir()
    assert next_run_folder(tmp_path, "a") == tmp_path / "a" / "042"
    assert new_run_folder(tmp_path, "a", help=HELP) == tmp_path / "a" / "042"
    assert new_run_folder(tmp_path, "b", help=HELP) == tmp_path / "b" / "001"


def test_numbers_grow_past_three_digits(tmp_path: Path) -> None:
    (tmp_path / "a" / "999").mkdir(parents=True)
    assert new_run_folder(tmp_path, "a", help=HELP).name == "1000"
    assert new_run_folder(tmp_path, "a", help=HELP).name == "1001"


def _make(root: str) -> list[str]:
    return [new_run_folder(Path(root), "job", help=HELP).name for _ in range(25)]


def test_concurrent_runs_never_share_a_folder(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        names = [name for part in pool.map(_make, [str(tmp_path)] * 4) for name in part]
    assert sorted(names) == [f"{number:03d}" for number in range(1, 101)]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file")
    with pytest.raises(DsgenError, match="no run folder can be made") as caught:
        new_run_folder(tmp_path, "job", help=HELP)
    assert caught.value.help == HELP


def test_the_newest_run_is_the_last_one_that_saved(tmp_path: Path) -> None:
    assert newest_saved_run(tmp_path, "job") is None
    folders = [new_run_folder(tmp_path, "job", help=HELP) for _ in range(12)]
    (folders[11] / "checkpoints" / "step-00000003.partial").mkdir(parents=True)
    assert newest_saved_run(tmp_path, "job") is None
    for index in (8, 9):
        (folders[index] / "checkpoints" / "step-00000003").mkdir(parents=True)
    assert newest_saved_run(tmp_path, "job") == folders[9]


def _started(root: Path, *names: str) -> Path:
    """A run that was started and holds these files (folders end in a slash)."""
    folder = new_run_folder(root, "job", help=HELP)
    for name in (".started", "settings.json", "launch.sh", "logs/launcher.log", "helper.py", *names):
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()
    return folder


def test_what_a_script_left(tmp_path: Path) -> None:
    assert left_by_script(_started(tmp_path)) == []
    own = (
        "events.jsonl",
        "metrics.jsonl",
        "report.json",
        "errors/rank-0.json",
        "tokens/a",
        "memory/a",
        "trainer/runs/a",
    )
    assert left_by_script(_started(tmp_path, *own, "checkpoints/step-00000002.partial/", "checkpoints/latest")) == []
    assert left_by_script(_started(tmp_path, "checkpoints/global_step2/")) == ["checkpoints/"]
    assert left_by_script(_started(tmp_path, "best.pt", "saved/1/")) == ["best.pt", "saved/"]
    not_started = new_run_folder(tmp_path, "job", help=HELP)
    (not_started / "best.pt").touch()
    assert left_by_script(not_started) == []


def test_the_run_that_a_script_goes_on_from(tmp_path: Path) -> None:
    """A checkpoint that dsgen knows counts most; then what a script left; then a run that may have saved elsewhere."""
    assert newest_run_of_script(tmp_path, "job") is None
    new_run_folder(tmp_path, "job", help=HELP)
    _started(tmp_path, "events.jsonl")
    assert newest_run_of_script(tmp_path, "job") is None
    plain = _started(tmp_path)
    assert newest_run_of_script(tmp_path, "job") == plain
    left = _started(tmp_path, "best.pt")
    _started(tmp_path)
    assert newest_run_of_script(tmp_path, "job") == left
    (plain / "checkpoints" / "step-00000003").mkdir(parents=True)
    assert newest_run_of_script(tmp_path, "job") == plain


def test_a_run_remembers_its_base_folder(tmp_path: Path) -> None:
    assert not was_started(tmp_path)
    assert base_of_run(tmp_path) is None
    (tmp_path / ".started").write_text("/a b/ü\n")
    assert was_started(tmp_path)
    assert base_of_run(tmp_path) == Path("/a b/ü")
    (tmp_path / ".started").write_text("")
    assert base_of_run(tmp_path) is None
