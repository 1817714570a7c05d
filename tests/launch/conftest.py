"""Rendered folders whose launcher and ranks are stand-ins that start in milliseconds."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsgen.recipe.plan import EnvironmentVariable
from dsgen.render.templates import environment, render_template
from dsgen.resources import shipped

FAKES = Path(__file__).parent / "fakes"
REPOSITORY = Path(__file__).parents[2]
KINDS = ("npu", "cuda", "cpu")


def make_plan(**changes: Any) -> SimpleNamespace:
    """The part of a Plan that launch.sh is made from."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "kind": "cpu",
        "launcher": "deepspeed",
        "nodes": 1,
        "per_node": 2,
        "hosts": (),
        "environment": (),
        "entrypoint": None,
    }
    fields |= changes
    if fields["nodes"] > 1 and not fields["hosts"]:
        fields["hosts"] = tuple(f"node{index}" for index in range(fields["nodes"]))
    return SimpleNamespace(**fields)


def variable(name: str, value: str, reason: str = "because", *, per_node: bool = False) -> EnvironmentVariable:
    return EnvironmentVariable(name=name, value=value, reason=reason, per_node=per_node)


def render_launch(plan: SimpleNamespace) -> str:
    source = (shipped("templates") / "launch.sh.j2").read_text(encoding="utf-8")
    return render_template(environment({"launch.sh.j2": source}), "launch.sh.j2", plan=plan)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


@dataclass
class Experiment:
    """A rendered folder, and the processes that were started from it."""

    folder: Path
    run_dir: Path
    environ: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        """Start launch.sh; its output is text."""
        process = subprocess.Popen(
            ["bash", str(self.folder / "launch.sh"), *arguments],
            env=self.environ | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            cwd=self.folder.parent,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, **environ: str) -> tuple[int, str, str]:
        """Start launch.sh and wait; exit code, output, errors."""
        process = self.start(*arguments, **environ)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def up(self, ranks: int = 2) -> list[int]:
        """Wait until the ranks are up; their process ids."""
        files = [self.run_dir / f"up-{rank}" for rank in range(ranks)]
        wait_for(lambda: all(file.exists() and file.read_text() for file in files))
        return [int(file.read_text()) for file in files]


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[Callable[..., Experiment]]:
    """Makes rendered folders; whatever a test leaves running is ended."""
    made: list[Experiment] = []

    def make(plan: SimpleNamespace | None = None, *, name: str = "experiment") -> Experiment:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "launch.sh").write_text(render_launch(plan or make_plan()), encoding="utf-8")
        (folder / "ds_config.json").write_text("{}\n")
        shutil.copy(FAKES / "rank.py", folder / "train.py")
        run_dir = tmp_path / f"{name}-run"
        kept = {key: value for key, value in os.environ.items() if key in ("LANG", "LC_ALL", "TMPDIR")}
        home = tmp_path / f"{name}-home"
        home.mkdir()
        environ = kept | {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PYTHON": sys.executable,
            "PYTHONPATH": f"{FAKES}{os.pathsep}{REPOSITORY}",
            "DSGEN_RUN_DIR": str(run_dir),
            "TORCH_EXTENSIONS_DIR": str(tmp_path / f"{name}-extensions"),
        }
        made.append(Experiment(folder=folder, run_dir=run_dir, environ=environ))
        return made[-1]

    yield make
    for each in made:
        for process in each.started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        for note in each.run_dir.glob("up-*"):
            pid = int(note.read_text() or 0)
            if pid and alive(pid):
                os.kill(pid, signal.SIGKILL)
