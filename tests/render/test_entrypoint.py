"""The files of a job that trains with the user's own script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from dsgen.render.files import render_recipe
from dsgen.runtime.settings import Adapter, read_settings

HOSTILE = [
    "it's",
    "$(touch /tmp/x)",
    "`id`",
    '"',
    "\\",
    "a b",
    "*",
    "-n",
    "",
    "{run_dir}/ü & {base_dir}",
    "{unknown}",
    "!",
]


def test_files(write_recipe: Callable[..., Path]) -> None:
    files = render_recipe(write_recipe(entrypoint="mine.py")).files
    assert set(files) == {"ds_config.json", "launch.sh", "settings.json", "dsgen.lock.yaml"}
    assert set(render_recipe(write_recipe()).files) == {"ds_config.json", "launch.sh", "train.py", "dsgen.lock.yaml"}


def test_settings_are_those_of_train_py(write_recipe: Callable[..., Path], tmp_path: Path) -> None:
    """The same recipe with and without an entrypoint gives the same settings, as JSON and as Python."""
    changes = {
        "adapter": {"rank": 4, "targets": ["q_proj", "v_proj"], "dropout": 0.1},
        "weights": "./w",
        "evaluation": {"every": 10, "steps": 2},
        "checkpoint": {"every": "30min", "keep": 3},
        "data": {"files": ["a.jsonl", "b.parquet"], "mode": "instruction"},
        "loss": "chunked",
        "logging": {"memory_snapshot": 7},
    }
    rendered = render_recipe(write_recipe(entrypoint="mine.py", **changes)).files
    (tmp_path / "settings.json").write_bytes(rendered["settings.json"])
    scope: dict[str, object] = {"__name__": "rendered", "__file__": str(tmp_path / "train.py")}
    exec(compile(render_recipe(write_recipe(**changes)).files["train.py"], "train.py", "exec"), scope)  # noqa: S102
    told = read_settings(tmp_path)
    assert told == scope["SETTINGS"]
    assert told.model.adapter == Adapter(rank=4, alpha=8.0, targets=("q_proj", "v_proj"), dropout=0.1)
    assert told.memory_snapshot_step == 7


def test_arguments_arrive_as_they_are(write_recipe: Callable[..., Path], tmp_path: Path) -> None:
    """Through bash into a process: nothing is expanded but the places of the run."""
    words = [*HOSTILE, 5, 0.5, True]
    rendered = render_recipe(write_recipe(entrypoint={"script": "s p.py", "args": words}))
    folder = tmp_path / "out $x"
    folder.mkdir()
    script = rendered.files["launch.sh"].decode()
    # Of the script, what builds the command: the command itself prints its words.
    begin = script.index('command+=("$script"')
    (folder / "launch.sh").write_text(
        script[: script.index("\n", begin)]
        + '\nprintf "%s\\0" "${command[@]:${#command[@]}-${#arguments[@]}-1}"\nexit\n'
    )
    environ = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "DSGEN_RUN_DIR": "/runs/a&b", "DSGEN_DRY_RUN": "1"}
    done = subprocess.run(
        ["bash", str(folder / "launch.sh")], env={**environ, "DSGEN_BASE_DIR": "/base"}, capture_output=True, check=True
    )
    given = done.stdout.decode().split("\0")[:-1]
    expected = [word.replace("{run_dir}", "/runs/a&b").replace("{base_dir}", "/base") for word in HOSTILE]
    assert given == ["/base/s p.py", *expected, "5", "0.5", "true"]


def test_the_base_recipe_decides_where_the_script_is(write_recipe: Callable[..., Path], tmp_path: Path) -> None:
    write_recipe("base/job.yaml", entrypoint={"script": "mine.py"})
    write_recipe("base/short.yaml", entrypoint="mine.py")
    for name in ("job", "short"):
        over = tmp_path / "over.yaml"
        over.write_text(f"extends: base/{name}.yaml\nname: over\n")
        plan = render_recipe(over).plan
        assert plan.entrypoint is not None and plan.entrypoint.script == "base/mine.py"


def test_local_rank_is_passed_only_when_asked_for(write_recipe: Callable[..., Path]) -> None:
    def script(entrypoint: object) -> bytes:
        return render_recipe(write_recipe(entrypoint=entrypoint)).files["launch.sh"]

    assert b"--no_local_rank" in script("a.py")
    assert b"--no_local_rank" not in script({"script": "a.py", "local_rank": True})


def test_json_is_strict(write_recipe: Callable[..., Path]) -> None:
    text = render_recipe(write_recipe(entrypoint="a.py", data=None)).files["settings.json"].decode()
    assert "files" not in json.loads(text)["data"]
