"""Reading growing files, and what of them is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsgen.doctor.builds import extensions_root, operators_in_build
from dsgen.launch.console import Lines
from dsgen.launch.progress import Follower, Progress


def test_only_whole_new_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path)
    assert follower.rows() == []
    path.write_text('{"step": 1}\n{"st')
    assert follower.rows() == [{"step": 1}]
    with path.open("a") as stream:
        stream.write('ep": 2}\nnot json\n[1]\n{"step": 3}\n')
    assert follower.rows() == [{"step": 2}, {"step": 3}]
    assert follower.rows() == []


def test_a_file_that_was_cut_is_read_from_its_new_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    follower = Follower.from_end(path)
    path.write_text('{"step": 1}\n')
    assert follower.rows() == []
    with path.open("a") as stream:
        stream.write('{"step": 2}\n')
    assert follower.rows() == [{"step": 2}]


def _progress(step: int, steps: int | None = 100) -> Progress:
    progress = Progress()
    progress.take_event({"event": "phase", "phase": "train"})
    progress.take_event({"event": "something new"})
    if steps:
        progress.take_event({"event": "plan", "steps": steps, "parameters": 5})
    if step:
        progress.take_metrics({"step": step, "loss": 2.5, "lr": 1e-3, "tokens_per_second": 1234.5})
    return progress


def test_steps_in_words() -> None:
    assert _progress(7).describe_step() == "loss 2.5000  lr 1.00e-03  1,234 tokens/s"
    progress = Progress()
    progress.take_metrics(json.loads('{"step": 1, "loss": null}'))
    assert progress.describe_step() == "loss not finite"


def test_plain_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines() as lines:
        for step in range(101):
            lines.update(_progress(step), ["cpu_adam"] if step == 0 else [])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "building DeepSpeed's cpu_adam (once on this machine, about a minute each)"
    assert printed[1] == "training"
    assert printed[2] == "step 1/100  loss 2.5000  lr 1.00e-03  1,234 tokens/s"
    assert printed[-1].startswith("step 100/100")
    assert len(printed) == 2 + 1 + 20
    assert "\x1b" not in "".join(printed)


def test_operators_in_build(tmp_path: Path) -> None:
    assert operators_in_build(tmp_path / "none") == []
    for name in ("fused_adam", "py311_cpu/cpu_adam", "done"):
        (tmp_path / name).mkdir(parents=True)
        if name != "done":
            (tmp_path / name / "lock").touch()
    assert operators_in_build(tmp_path) == ["cpu_adam", "fused_adam"]


def test_where_torch_builds() -> None:
    assert extensions_root({"TORCH_EXTENSIONS_DIR": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert extensions_root({"XDG_CACHE_HOME": "/b", "HOME": "/c"}) == Path("/b/torch_extensions")
    assert extensions_root({"HOME": "/c"}) == Path("/c/.cache/torch_extensions")
