"""A real rehearsal on the simulated NPU; skipped, with the reason, where it cannot be built."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsgen.ascend_sim import why_not
from dsgen.cli.main import main_code
from dsgen.rehearse import rehearsal
from dsgen.rehearse.stand_in import SAVED_AT, STEPS

from ..conftest import RECIPES, REPOSITORY


def rehearse(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    operators = f"{os.environ['TORCH_EXTENSIONS_DIR']}/simulated-npu"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("DSGEN_", "ASCEND_", "DS_"))}
    return subprocess.run(
        [sys.executable, "-m", "dsgen", "rehearse", *words],
        cwd=folder,
        # cpu_adam is built for NPU hosts with other flags, under the same name.
        env={
            **environ,
            "PYTHONPATH": str(REPOSITORY),
            "TORCH_EXTENSIONS_DIR": operators,
        },
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.train
def test_the_largest_job_in_small(tmp_path: Path) -> None:
    """Four nodes, ZeRO-3, full offload: trained, saved, and continued with the very losses of the unbroken run."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    done = rehearse(tmp_path, str(RECIPES / "70b-zero3-offload.yaml"), "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert (verdict["well"], verdict["simulated"], verdict["backend"], verdict["zero_stage"]) == (True, True, "hccl", 3)
    assert len(verdict["losses"]) == STEPS
    assert verdict["losses_from_checkpoint"] == verdict["losses"][SAVED_AT:]
    assert verdict["device_peak_bytes"] > 0
    assert "simulated NPU" in done.stderr
    # Paths that are shown count from the user's folder.
    shown = re.search(r"^run folder: (\S+)$", done.stderr, re.MULTILINE)
    assert shown is not None
    assert (tmp_path / shown[1] / "metrics.jsonl").is_file()
    assert shown[1] == "rehearsals/70b-zero3-offload/001/run"


def test_without_torch_npu(tmp_path: Path) -> None:
    """Refused with the line that installs it; nothing is left behind."""
    if why_not() is None:
        pytest.skip("torch_npu and g++ are here")
    done = rehearse(tmp_path, str(RECIPES / "tiny-npu.yaml"))
    assert done.returncode == 2
    assert "pip install" in done.stderr or "apt-get install" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == "", "no plan of what is not done"
    in_json = rehearse(tmp_path, str(RECIPES / "tiny-npu.yaml"), "--format", "json")
    assert in_json.returncode == 2
    assert "the simulated NPU needs" in json.loads(in_json.stdout)["error"]
    assert list(tmp_path.iterdir()) == []


def test_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before the plan is shown, and as JSON where that was asked for."""
    monkeypatch.setattr(rehearsal, "why_not", lambda: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rehearsals").write_text("a file")
    recipe = str(RECIPES / "tiny-npu.yaml")
    assert main_code(["rehearse", recipe]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "help: start from a folder that you can write to\n" in said.err
    for words in ([recipe], [str(RECIPES / "tiny-cpu.yaml")]):
        assert main_code(["rehearse", *words, "--format", "json"]) == 2
        assert set(json.loads(capsys.readouterr().out)) == {"error", "help"}
    assert main_code(["rehearse", "none.yaml", "--format", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "DOC001"
