from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsgen.documents.atomic import write_set


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_writes_and_removes_as_a_set(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    write_set(folder, {"x": (b"1", False), "sub/y.sh": (b"2", True)})
    assert snapshot(folder) == {"x": b"1", "sub/y.sh": b"2"}
    assert os.access(folder / "sub/y.sh", os.X_OK)
    assert not os.access(folder / "x", os.X_OK)
    write_set(folder, {"x": (b"3", False)}, remove=["sub/y.sh"])
    assert snapshot(folder) == {"x": b"3"}


def test_failure_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "inside").write_bytes(b"kept")
    # "z/inside/file" needs a folder where a file stands: the last rename cannot work
    with pytest.raises(OSError):
        write_set(tmp_path, {"x": (b"new", False), "z/inside/file": (b"new", False)})
    assert snapshot(tmp_path) == {"x": b"old", "z/inside": b"kept"}


def test_failure_takes_new_folders_away_again(tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError)):
        write_set(tmp_path / "new" / "deeper", {"a": (b"", False), "bad\0name": (b"", False)})
    assert list(tmp_path.iterdir()) == []


def test_links_are_replaced_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"outside")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "x").symlink_to(outside)
    write_set(folder, {"x": (b"new", False)})
    assert outside.read_bytes() == b"outside"
    assert (folder / "x").read_bytes() == b"new" and not (folder / "x").is_symlink()
