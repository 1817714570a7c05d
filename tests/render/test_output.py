from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dsgen.documents.errors import DocumentError
from dsgen.findings import DsgenError
from dsgen.render.files import render_recipe
from dsgen.render.lock import read_lock
from dsgen.render.output import differences, write

from ..conftest import RECIPES

Write = Callable[..., Path]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_written_files_are_the_rendered_ones(tmp_path: Path) -> None:
    rendered = render_recipe(RECIPES / "70b-zero3-offload.yaml")
    written = write(rendered, tmp_path / "out")
    assert set(written.states) == {
        "ds_config.json",
        "train.py",
        "launch.sh",
        "hostfile",
        ".deepspeed_env",
        "dsgen.lock.yaml",
    }
    assert set(written.states.values()) == {"new"}
    assert snapshot(tmp_path / "out") == rendered.files
    assert (tmp_path / "out" / "launch.sh").stat().st_mode & 0o111
    assert set(write(rendered, tmp_path / "out").states.values()) == {"same"}


def test_same_bytes_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = render_recipe(RECIPES / "13b-zero2.yaml").files
    monkeypatch.chdir(RECIPES)
    two = render_recipe(Path("13b-zero2.yaml")).files
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(RECIPES)
    three = render_recipe(tmp_path / "link" / "13b-zero2.yaml").files
    assert one == two == three
    assert str(tmp_path).encode() not in b"".join(three.values())


def test_files_of_others_are_not_overwritten(tmp_path: Path) -> None:
    rendered = render_recipe(RECIPES / "13b-zero2.yaml")
    (tmp_path / "train.py").write_text("mine")
    with pytest.raises(DsgenError, match=r"holds train\.py, which dsgen did not render"):
        write(rendered, tmp_path)
    assert snapshot(tmp_path) == {"train.py": b"mine"}
    write(rendered, tmp_path, force=True)
    assert snapshot(tmp_path) == rendered.files


def test_hand_edits_are_kept_aside(tmp_path: Path) -> None:
    rendered = render_recipe(RECIPES / "13b-zero2.yaml")
    write(rendered, tmp_path)
    (tmp_path / "train.py").write_text("edited")
    (tmp_path / "notes.txt").write_text("notes")
    written = write(rendered, tmp_path)
    assert written.kept_edits == {"train.py": "train.py.orig"}
    assert (tmp_path / "train.py.orig").read_text() == "edited"
    assert (tmp_path / "train.py").read_bytes() == rendered.files["train.py"]
    assert (tmp_path / "notes.txt").read_text() == "notes"
    (tmp_path / "train.py").write_text("edited again")
    assert write(rendered, tmp_path).kept_edits == {"train.py": "train.py.orig.2"}
    assert (tmp_path / "train.py.orig").read_text() == "edited"
    assert (tmp_path / "train.py.orig.2").read_text() == "edited again"


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00", b"{{{", b"lock: 99\n"])
def test_a_damaged_lock_is_mended_with_force_alone(damage: bytes, tmp_path: Path) -> None:
    rendered = render_recipe(RECIPES / "13b-zero2.yaml")
    write(rendered, tmp_path)
    (tmp_path / "dsgen.lock.yaml").write_bytes(damage)
    with pytest.raises(DsgenError) as caught:
        write(rendered, tmp_path)
    assert "--force" in caught.value.help
    assert (tmp_path / "dsgen.lock.yaml").read_bytes() == damage
    write(rendered, tmp_path, force=True)
    assert snapshot(tmp_path) == rendered.files


def test_odd_folders(tmp_path: Path) -> None:
    rendered = render_recipe(RECIPES / "13b-zero2.yaml")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DsgenError, match="a link that leads nowhere"):
        write(rendered, tmp_path / "dangling")
    with pytest.raises(DsgenError, match="cannot be a folder: File name too long"):
        write(rendered, tmp_path / ("a" * 300))


def test_files_that_are_no_longer_rendered_go(tmp_path: Path) -> None:
    write(render_recipe(RECIPES / "70b-zero3-offload.yaml"), tmp_path)
    one_node = ("hardware.nodes=1", "hardware.hosts=null")
    written = write(render_recipe(RECIPES / "70b-zero3-offload.yaml", one_node), tmp_path)
    assert written.states["hostfile"] == written.states[".deepspeed_env"] == "removed"
    assert not (tmp_path / "hostfile").exists()


def test_failed_writing_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    write(render_recipe(RECIPES / "13b-zero2.yaml"), tmp_path)
    before = snapshot(tmp_path)
    (tmp_path / "hostfile").mkdir()
    with pytest.raises(DsgenError, match="is a folder"):
        write(render_recipe(RECIPES / "70b-zero3-offload.yaml"), tmp_path)
    (tmp_path / "hostfile").rmdir()
    assert snapshot(tmp_path) == before
    with pytest.raises(DsgenError, match=r"cannot be written|is a file"):
        write(render_recipe(RECIPES / "13b-zero2.yaml"), tmp_path / "train.py")


def test_differences_name_the_file_and_the_line(tmp_path: Path) -> None:
    rendered = render_recipe(RECIPES / "13b-zero2.yaml")
    write(rendered, tmp_path)
    assert differences(rendered, tmp_path) == []
    config = tmp_path / "ds_config.json"
    config.write_text(config.read_text().replace('"stage": 2', '"stage": 1'))
    (tmp_path / "launch.sh").unlink()
    found = {d.name: d for d in differences(rendered, tmp_path)}
    assert set(found) == {"ds_config.json", "launch.sh"}
    assert '-    "stage": 1,\n+    "stage": 2,' in found["ds_config.json"].diff
    assert found["launch.sh"].what == "is missing"
    write(rendered, tmp_path)
    (tmp_path / "launch.sh").chmod(0o644)
    assert [(d.name, d.what) for d in differences(rendered, tmp_path)] == [("launch.sh", "is not executable")]


def test_another_version_of_dsgen_alone_is_no_difference(tmp_path: Path) -> None:
    rendered = render_recipe(RECIPES / "13b-zero2.yaml")
    write(rendered, tmp_path)
    lock = tmp_path / "dsgen.lock.yaml"
    lock.write_text(lock.read_text().replace("\ndsgen: ", "\ndsgen: 99."))
    assert differences(rendered, tmp_path) == []


def test_lock_says_what_went_in_and_why(write_recipe: Write, tmp_path: Path) -> None:
    write_recipe("base.yaml")
    top = tmp_path / "top.yaml"
    top.write_text("extends: base.yaml\nname: top\n")
    overlay = tmp_path / "mine"
    overlay.mkdir()
    (overlay / "hostfile.j2").write_text("x\n")
    rendered = render_recipe(top, ("zero.stage=3",), overlay=overlay)
    lock = yaml.safe_load(rendered.files["dsgen.lock.yaml"])
    assert lock["inputs"]["recipe"]["name"] == "top.yaml"
    assert [each["name"] for each in lock["inputs"]["files"]] == ["base.yaml"]
    assert lock["inputs"]["overrides"] == ["zero.stage=3"]
    assert lock["inputs"]["templates"]["folder"] == "mine"
    assert set(lock["files"]) == {"ds_config.json", "train.py", "launch.sh"}
    reasons = {each["path"]: each for each in lock["resolved"]}
    assert reasons["zero_optimization.stage"] == {
        "path": "zero_optimization.stage",
        "value": 3,
        "reason": "the recipe says so",
    }
    assert reasons["optimizer.params.lr"]["value"] == 2e-5
    assert all(each["reason"] for each in lock["resolved"])
    base_changed = (tmp_path / "base.yaml").read_text() + "# a comment\n"
    (tmp_path / "base.yaml").write_text(base_changed)
    assert render_recipe(top, ("zero.stage=3",), overlay=overlay).files != rendered.files


def test_lock_is_read_back(tmp_path: Path) -> None:
    write(render_recipe(RECIPES / "13b-zero2.yaml", ("seed=7",)), tmp_path)
    lock = read_lock(tmp_path)
    assert lock is not None and lock.overrides == ("seed=7",) and lock.templates is None
    (tmp_path / "dsgen.lock.yaml").write_text("lock: 99\n")
    with pytest.raises(DocumentError, match="not a lock that this dsgen can read"):
        read_lock(tmp_path)


def test_user_templates_replace_single_files(tmp_path: Path) -> None:
    overlay = tmp_path / "mine"
    overlay.mkdir()
    (overlay / "train.py.j2").write_text("# {{ plan.name }} by hand\n")
    files = render_recipe(RECIPES / "13b-zero2.yaml", overlay=overlay).files
    assert files["train.py"] == b"# 13b-zero2 by hand\n"
    assert files["ds_config.json"] == render_recipe(RECIPES / "13b-zero2.yaml").files["ds_config.json"]
    (overlay / "train.py.j2").write_text("{{ plan.nothing }}")
    with pytest.raises(DsgenError, match=r"template train.py.j2:1: .*nothing"):
        render_recipe(RECIPES / "13b-zero2.yaml", overlay=overlay)
    (overlay / "train.py.j2").write_text("def (")
    with pytest.raises(DsgenError, match=r"renders a train\.py that cannot be read"):
        render_recipe(RECIPES / "13b-zero2.yaml", overlay=overlay)
    (overlay / "train.py.j2").write_text("pass")
    (overlay / "ds_config.json.j2").write_text('{"a": ')
    with pytest.raises(DsgenError, match=r"renders a ds_config\.json that cannot be read"):
        render_recipe(RECIPES / "13b-zero2.yaml", overlay=overlay)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DsgenError, match=r"holds no \*\.j2 file"):
        render_recipe(RECIPES / "13b-zero2.yaml", overlay=empty)
    (empty / "typo.py.j2").write_text("x")
    with pytest.raises(DsgenError, match="replaces no shipped template"):
        render_recipe(RECIPES / "13b-zero2.yaml", overlay=empty)
