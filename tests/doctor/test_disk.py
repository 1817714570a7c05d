from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsgen.doctor import disk
from dsgen.doctor.check import State, Subject
from dsgen.doctor.disk import check_disk, checkpoint_bytes, existing_parent
from dsgen.doctor.probe import Machine


def test_checkpoints(
    plan: Callable[..., object], subject: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(disk.shutil.disk_usage("/"))
    one = 14 * 6_738_415_616

    def judged(free: int, keep: int | None) -> tuple[State, str]:
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: usage(10**15, 0, free))
        checkpoint = {"every_steps": 10} if keep is None else {"every_steps": 10, "keep": keep}
        (check,) = check_disk(subject(Machine(), checkpoint=checkpoint))
        return check.state, check.remedy

    assert checkpoint_bytes(6_738_415_616, 6_738_415_616) == one
    assert judged(2**29, 2)[0] is State.ERROR
    assert judged(one - 1, 2)[0] is State.ERROR
    state, remedy = judged(3 * one - 1, 2)
    assert (state, remedy.endswith("(--set checkpoint.keep=1)")) == (State.WARNING, True)
    assert judged(3 * one, 2)[0] is State.OK
    assert judged(one, None)[0] is State.OK


def test_without_a_recipe_room_to_start_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(disk.shutil.disk_usage("/"))
    for free, state in ((2**29, State.WARNING), (2**31, State.OK)):
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda path, free=free: usage(10**15, 0, free))
        (check,) = check_disk(Subject(probe=Machine()))
        assert check.state is state


def test_the_disk_is_that_of_the_run(tmp_path: Path) -> None:
    (check,) = check_disk(Subject(probe=Machine(), run_dir=tmp_path / "runs" / "001"))
    assert f"are free in {tmp_path}" in check.found


def test_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    assert existing_parent(tmp_path / "a" / "b") == tmp_path
    assert existing_parent(tmp_path) == tmp_path
