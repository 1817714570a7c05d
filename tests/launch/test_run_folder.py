"""Run folders are numbered and never overwritten."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from dsgen.findings import DsgenError
from dsgen.launch.run_folder import base_of_run, new_run_folder, newest_saved_run, next_run_folder, was_started


def test_numbers_start_at_one_and_go_on_after_the_highest(tmp_path: Path) -> None:
    assert new_run_folder(tmp_path, "a") == tmp_path / "a" / "001"
    (tmp_path / "a" / "041").mkdir()
    (tmp_path / "a" / "099-old").mkdir()
    assert next_run_folder(tmp_path, "a") == tmp_path / "a" / "042"
    assert new_run_folder(tmp_path, "a") == tmp_path / "a" / "042"
    assert new_run_folder(tmp_path, "b") == tmp_path / "b" / "001"


def test_numbers_grow_past_three_digits(tmp_path: Path) -> None:
    (tmp_path / "a" / "999").mkdir(parents=True)
    assert new_run_folder(tmp_path, "a").name == "1000"
    assert new_run_folder(tmp_path, "a").name == "1001"


def _make(root: str) -> list[str]:
    return [new_run_folder(Path(root), "job").name for _ in range(25)]


def test_concurrent_runs_never_share_a_folder(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        names = [name for part in pool.map(_make, [str(tmp_path)] * 4) for name in part]
    assert sorted(names) == [f"{number:03d}" for number in range(1, 101)]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file")
    with pytest.raises(DsgenError, match="no run folder can be made"):
        new_run_folder(tmp_path, "job")


def test_the_newest_run_is_the_last_one_that_saved(tmp_path: Path) -> None:
    assert newest_saved_run(tmp_path, "job") is None
    folders = [new_run_folder(tmp_path, "job") for _ in range(12)]
    (folders[11] / "checkpoints" / "step-00000003.partial").mkdir(parents=True)
    assert newest_saved_run(tmp_path, "job") is None
    for index in (8, 9):
        (folders[index] / "checkpoints" / "step-00000003").mkdir(parents=True)
    assert newest_saved_run(tmp_path, "job") == folders[9]


def test_a_run_remembers_its_base_folder(tmp_path: Path) -> None:
    assert not was_started(tmp_path)
    assert base_of_run(tmp_path) is None
    (tmp_path / ".started").write_text("/a b/ü\n")
    assert was_started(tmp_path)
    assert base_of_run(tmp_path) == Path("/a b/ü")
    (tmp_path / ".started").write_text("")
    assert base_of_run(tmp_path) is None
