"""A real rehearsal on the simulated NPU; skipped, with the reason, where it cannot be built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dsgen.ascend_sim import why_not
from dsgen.rehearse.stand_in import SAVED_AT, STEPS

from ..conftest import RECIPES, REPOSITORY


def rehearse(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    named = os.environ.get("TORCH_EXTENSIONS_DIR") or f"{tempfile.gettempdir()}/dsgen-test-extensions-{os.getuid()}"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("DSGEN_", "ASCEND_", "DS_"))}
    return subprocess.run(
        [sys.executable, "-m", "dsgen", "rehearse", *words],
        cwd=folder,
        # cpu_adam is built for NPU hosts with other flags, under the same name.
        env={**environ, "PYTHONPATH": str(REPOSITORY), "TORCH_EXTENSIONS_DIR": f"{named}/simulated-npu"},
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


def test_without_torch_npu(tmp_path: Path) -> None:
    """Refused with the line that installs it; nothing is left behind."""
    if why_not() is None:
        pytest.skip("torch_npu and g++ are here")
    done = rehearse(tmp_path, str(RECIPES / "tiny-npu.yaml"))
    assert done.returncode == 2
    assert "pip install" in done.stderr or "apt-get install" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
