"""Building the stubs: once, by one process, completely or not at all, and with a remedy where something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsgen.ascend_sim import build, simulated_environment
from dsgen.findings import DsgenError
from tests.ascend_sim.conftest import plain_environment
from tests.conftest import REPOSITORY

BUILD = [sys.executable, "-m", "dsgen.ascend_sim", "build"]

COMPILER = """\
#!/bin/bash
# Stands for g++: notes the call and makes the file after -o.
echo >>{log}
sleep 0.05
while [ "$1" != -o ]; do shift; done
: >"$2"
"""


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """A quick program in the place of g++, which writes a line to `calls` in its folder each time."""
    path = tmp_path / "compiler"
    path.write_text(COMPILER.format(log=tmp_path / "calls"))
    path.chmod(0o755)
    return path


def test_library_folder(toolkit: Path) -> None:
    libraries = {path.name for path in (toolkit / "lib64").glob("*.so")}
    assert {"libascendcl.so", "libhccl.so", "libdsgen_host_ops.so", "libge_runner.so"} <= libraries
    # Built once: what is there is taken as it is, at once.
    begun = time.monotonic()
    assert build() == toolkit
    assert time.monotonic() - begun < 2


def test_set_env(toolkit: Path) -> None:
    """Sourcing the file is all that torch_npu needs."""
    show = "import torch, torch_npu; print(torch.npu.device_count(), torch.npu.get_device_name(0))"
    done = subprocess.run(
        [
            "bash",
            "-euc",
            f'source "{toolkit}/set_env.sh" && "{sys.executable}" -c "{show}" && echo "$DSGEN_SIMULATED_NPU"',
        ],
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["8", "Ascend910B3", "1"]


def test_several_processes_build_once(toolkit: Path, compiler: Path, tmp_path: Path) -> None:
    environment = {**plain_environment(), "CXX": str(compiler), "DSGEN_CACHE_DIR": str(tmp_path / "cache")}
    processes = [subprocess.Popen(BUILD, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    folders = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert len(set(folders)) == 1
    assert (Path(folders[0]) / "lib64" / "libhccl.so").exists()
    sources = len(list((REPOSITORY / "dsgen" / "ascend_sim" / "csrc").rglob("*.cpp")))
    # Every source once, and seven libraries.
    assert len((tmp_path / "calls").read_text().splitlines()) == sources + 7
    assert [path.name for path in Path(folders[0]).parent.iterdir() if path.is_dir()] == [Path(folders[0]).name]


def test_failed_build_leaves_nothing(toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("DSGEN_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(DsgenError, match="no such header"):
        build()
    assert [path for path in (tmp_path / "cache" / "ascend-sim").iterdir() if path.is_dir()] == []


def test_no_compiler(toolkit: Path) -> None:
    done = subprocess.run(
        BUILD, env={**plain_environment(), "CXX": "no-such-compiler"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "there is no no-such-compiler" in done.stderr
    assert "apt-get install g++" in done.stderr


def test_no_torch() -> None:
    """In a Python without packages; nothing of torch is needed to say so."""
    done = subprocess.run(
        [sys.executable, "-S", *BUILD[1:]],
        env={**plain_environment(), "PYTHONPATH": str(REPOSITORY), "CXX": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "needs torch, which is not installed" in done.stderr
    assert "pip install 'dsgen[train,npu]'" in done.stderr


def test_environment() -> None:
    added = simulated_environment(
        Path("/stubs"), devices=4, soc="Ascend910A", hbm_bytes=7, faults=["a", "b"], environ={"LD_LIBRARY_PATH": "/lib"}
    )
    assert added["LD_LIBRARY_PATH"] == f"/stubs/lib64{os.pathsep}/lib"
    assert added["DSGEN_SIMULATED_NPU"] == "1"
    assert added["DSGEN_SIMULATED_NPU_DEVICES"] == "4"
    assert added["DSGEN_SIMULATED_NPU_SOC"] == "Ascend910A"
    assert added["DSGEN_SIMULATED_NPU_HBM_BYTES"] == "7"
    assert added["DSGEN_SIMULATED_NPU_FAULTS"] == "a;b"
    assert simulated_environment(Path("/stubs"), environ={})["LD_LIBRARY_PATH"] == "/stubs/lib64"
