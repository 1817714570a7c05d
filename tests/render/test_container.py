"""container.sh: what it hands to the engine, and that launch.sh really starts behind it."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsgen.render.files import render_recipe

IMAGE = "cann:9.1.0"
Start = Callable[..., list[str]]

ENGINE = """\
#!{python}
# An engine that keeps its words and, of a run, starts the command that follows the image on this very machine.
import os, sys
open(os.environ["WORDS"], "w").write("\\0".join(sys.argv[1:]))
place = sys.argv.index({image!r})
os.environ.update(word.split("=", 1) for flag, word in zip(sys.argv, sys.argv[1:]) if flag == "--env")
os.environ["DSGEN_DRY_RUN"] = "1"
os.execvp(sys.argv[place + 1], sys.argv[place + 1:])
"""


@pytest.fixture
def start(write_recipe: Callable[..., Path], tmp_path: Path) -> Start:
    """Renders a recipe with a container and starts its container.sh; the words that the engine was given."""

    def run(*words: str, environ: dict[str, str] | None = None, **changes: Any) -> list[str]:
        files = render_recipe(write_recipe(**{"container": IMAGE, **changes})).files
        folder = tmp_path / "out"
        folder.mkdir(exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        engine = tmp_path / "bin" / "docker"
        engine.parent.mkdir(exist_ok=True)
        engine.write_text(ENGINE.format(python=sys.executable, image=IMAGE))
        engine.chmod(0o755)
        kept = tmp_path / "words"
        path = f"{engine.parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", str(folder / "container.sh"), *words],
            cwd=tmp_path,
            env={"PATH": path, "WORDS": str(kept), "PYTHON": sys.executable, **(environ or {})},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "train.py" in done.stdout
        return kept.read_text().split("\0")

    return run


def values(words: list[str], flag: str) -> list[str]:
    return [after for before, after in itertools.pairwise(words) if before == flag]


CPU = {"hardware": {"device": "cpu", "per_node": 2}, "precision": "fp32"}


def test_cpu(start: Start, tmp_path: Path) -> None:
    words = start("--resume", "auto", **CPU)
    image = words.index(IMAGE)
    assert words[image:] == [IMAGE, "bash", f"{tmp_path}/out/launch.sh", "--resume", "auto"]
    assert values(words, "--mount") == [f"type=bind,source={tmp_path},target={tmp_path}"]
    assert values(words, "--device") == [] and "--gpus" not in words
    assert values(words, "--ipc") == ["host"] and values(words, "--network") == ["host"]
    assert values(words, "--stop-timeout") == ["150"]


def test_what_is_mounted(start: Start, tmp_path: Path) -> None:
    texts = tmp_path.parent / "texts"
    texts.mkdir(exist_ok=True)
    words = start(
        environ={"DSGEN_BASE_DIR": str(texts), "DSGEN_RUN_DIR": "r"},
        data={"files": [f"{texts}/*/a.jsonl", f"{texts}/b.txt"]},
        container={"image": IMAGE, "mounts": [f"{texts}:/texts:ro"], "shm_size": "1GiB", "network": "bridge"},
        **CPU,
    )
    assert values(words, "--mount") == [
        f"type=bind,source={tmp_path},target={tmp_path}",
        f"type=bind,source={texts},target={texts}",
        f"type=bind,source={texts},target=/texts,readonly",
    ]
    assert values(words, "--shm-size") == [str(2**30)] and "--ipc" not in words
    assert values(words, "--network") == ["bridge"]
    assert f"DSGEN_RUN_DIR={tmp_path}/r" in values(words, "--env")


def dry(tmp_path: Path, **environ: str) -> list[str]:
    """The command that container.sh prints."""
    done = subprocess.run(
        ["bash", str(tmp_path / "out" / "container.sh")],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "DSGEN_DRY_RUN": "1", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return shlex.split(done.stdout)


def render(recipe: Path, folder: Path) -> str:
    folder.mkdir()
    text = render_recipe(recipe).files["container.sh"].decode()
    (folder / "container.sh").write_text(text)
    return text


def refused(tmp_path: Path, *, cwd: Path | str | None = None, **environ: str) -> str:
    """What container.sh says as it refuses to start."""
    engine = tmp_path / "bin" / "docker"
    engine.parent.mkdir(exist_ok=True)
    engine.write_text("#!/bin/sh\nexit 3\n")
    engine.chmod(0o755)
    done = subprocess.run(
        ["bash", str(tmp_path / "out" / "container.sh")],
        cwd=cwd or tmp_path,
        env={"PATH": f"{engine.parent}{os.pathsep}{os.environ['PATH']}", **environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    return done.stderr


def test_a_mount_at_a_place_that_is_taken(write_recipe: Callable[..., Path], tmp_path: Path) -> None:
    """The same folder once more is passed over; another one at the place of one that is mounted anyway is refused."""
    mounts = ["/usr/local/Ascend/driver", f"{tmp_path}/"]
    render(write_recipe(container={"image": IMAGE, "mounts": mounts}), tmp_path / "out")
    assert values(dry(tmp_path), "--mount") == [
        f"type=bind,source={tmp_path},target={tmp_path}",
        "type=bind,source=/usr/local/Ascend/driver,target=/usr/local/Ascend/driver",
    ]
    shutil.rmtree(tmp_path / "out")
    render(write_recipe(container={"image": IMAGE, "mounts": [f"/opt:{tmp_path}"]}, **CPU), tmp_path / "out")
    said = refused(tmp_path)
    assert f"{tmp_path} would be both {tmp_path} and /opt: change mounts in the recipe" in said


@pytest.mark.skipif(Path("/dev/davinci0").exists(), reason="there are NPUs here")
@pytest.mark.parametrize("devices", ["nodes", "runtime"])
def test_npus_that_are_not_here(write_recipe: Callable[..., Path], tmp_path: Path, devices: str) -> None:
    container = {"image": IMAGE, "devices": devices}
    render(write_recipe(container=container), tmp_path / "out")
    assert "this host has no NPU 0 (/dev/davinci0), and the recipe needs 8" in refused(tmp_path)
    few = refused(tmp_path, DSGEN_DRY_RUN="1", ASCEND_RT_VISIBLE_DEVICES="2,5")
    assert "ASCEND_RT_VISIBLE_DEVICES=2,5 names 2 devices, the recipe needs 8" in few


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there are GPUs here")
def test_gpus_that_are_not_here(write_recipe: Callable[..., Path], tmp_path: Path) -> None:
    render(write_recipe(container=IMAGE, hardware={"device": "cuda-a100-80g", "per_node": 2}), tmp_path / "out")
    assert "this host shows no CUDA device" in refused(tmp_path)
    few = refused(tmp_path, CUDA_VISIBLE_DEVICES="GPU-5f")
    assert "CUDA_VISIBLE_DEVICES=GPU-5f names 1 devices, the recipe needs 2" in few


def test_npus(write_recipe: Callable[..., Path], tmp_path: Path) -> None:
    render(write_recipe(container=IMAGE), tmp_path / "out")
    common = ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    assert values(dry(tmp_path), "--device") == [*(f"/dev/davinci{n}" for n in range(8)), *common]
    some = dry(tmp_path, ASCEND_RT_VISIBLE_DEVICES="2,5,6,7,8,9,10,11")
    assert values(some, "--device") == [*(f"/dev/davinci{n}" for n in (2, 5, *range(6, 12))), *common]
    assert "type=bind,source=/usr/local/Ascend/driver,target=/usr/local/Ascend/driver,readonly" in some


def test_ascend_runtime_and_gpus(write_recipe: Callable[..., Path], tmp_path: Path) -> None:
    render(write_recipe(container={"image": IMAGE, "devices": "runtime"}), tmp_path / "out")
    words = dry(tmp_path)
    assert values(words, "--device") == [] and "ASCEND_VISIBLE_DEVICES=0,1,2,3,4,5,6,7" in values(words, "--env")
    shutil.rmtree(tmp_path / "out")
    cuda = {"device": "cuda-a100-80g", "per_node": 2}
    render(write_recipe(container=IMAGE, hardware=cuda), tmp_path / "out")
    assert values(dry(tmp_path), "--gpus") == ['"device=0,1"']
    shutil.rmtree(tmp_path / "out")
    render(write_recipe(container={"image": IMAGE, "engine": "podman"}, hardware=cuda), tmp_path / "out")
    assert values(dry(tmp_path, CUDA_VISIBLE_DEVICES="3,1"), "--device") == [
        "nvidia.com/gpu=3",
        "nvidia.com/gpu=1",
    ]


@pytest.mark.parametrize("device", ["ascend-910b3-64g", "cuda-a100-80g", "cpu"])
@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_is_clean_for_shellcheck(write_recipe: Callable[..., Path], tmp_path: Path, device: str, engine: str) -> None:
    checker = shutil.which("shellcheck") or str(Path(sys.executable).parent / "shellcheck")
    for devices in ("nodes", "runtime"):
        container = {"image": IMAGE, "engine": engine, "devices": devices, "mounts": ["/it's:/a b:ro"]}
        changes = {"hardware": {"device": device, "per_node": 2}, "precision": "fp32", "container": container}
        text = render(write_recipe(**changes), tmp_path / devices)
        assert "\n\n\n" not in text
    scripts = [tmp_path / name / "container.sh" for name in ("nodes", "runtime")]
    done = subprocess.run([checker, *scripts], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_the_whole_host_is_not_mounted(write_recipe: Callable[..., Path], tmp_path: Path) -> None:
    render(write_recipe(container=IMAGE, **CPU), tmp_path / "out")
    assert "start this from another folder" in refused(tmp_path, cwd="/", DSGEN_DRY_RUN="1")
