"""Quick checks of the machine: everything at once, each with a remedy, and nothing heavy imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import pytest

from dsgen.doctor import shared_memory
from dsgen.documents.document import Document
from dsgen.findings import Finding, Severity
from dsgen.launch import checks
from dsgen.launch.checks import Machine, check_machine
from dsgen.launch.source import Inputs, Job
from tests.launch.conftest import REPOSITORY

DOCUMENT = Document(file="recipe.yaml", value={})


def _job(tmp_path: Path, **changes: Any) -> Job:
    fields: dict[str, Any] = {"name": "a", "kind": "npu", "nodes": 1, "per_node": 2, "base_dir": tmp_path}
    return Job(**(fields | changes))


def _check(job: Job, tmp_path: Path, *, packages: bool = False, **environ: str) -> list[Finding]:
    machine = Machine(environ={"HOME": str(tmp_path / "home")} | environ, root=tmp_path / "root")
    return list(check_machine(job, DOCUMENT, tmp_path / "runs", machine, packages=packages))


def _codes(findings: list[Finding]) -> list[str]:
    assert all(finding.help and finding.message for finding in findings)
    return [finding.code for finding in findings]


@pytest.fixture
def ascend(tmp_path: Path) -> dict[str, str]:
    """A machine with two NPUs and a sourced CANN."""
    (tmp_path / "root" / "dev").mkdir(parents=True)
    for index in range(2):
        (tmp_path / "root" / "dev" / f"davinci{index}").touch()
    (tmp_path / "root" / "dev" / "davinci_manager").touch()
    (tmp_path / "cann" / "opp").mkdir(parents=True)
    return {"ASCEND_HOME_PATH": str(tmp_path / "cann"), "ASCEND_OPP_PATH": str(tmp_path / "cann" / "opp")}


def test_a_good_ascend_machine_has_no_findings(tmp_path: Path, ascend: dict[str, str]) -> None:
    assert _check(_job(tmp_path), tmp_path, **ascend) == []


def test_no_cann_and_no_devices_are_both_said(tmp_path: Path) -> None:
    findings = _check(_job(tmp_path), tmp_path)
    assert _codes(findings) == ["LCH101", "LCH103"]
    assert all(finding.severity is Severity.ERROR for finding in findings)


@pytest.mark.parametrize(
    "place", ["root/usr/local/Ascend/ascend-toolkit", "root/usr/local/Ascend/cann-9.0.0", "home/Ascend/ascend-toolkit"]
)
def test_cann_that_can_be_sourced_is_enough(tmp_path: Path, ascend: dict[str, str], place: str) -> None:
    script = tmp_path / place / "set_env.sh"
    script.parent.mkdir(parents=True)
    script.touch()
    assert _check(_job(tmp_path), tmp_path) == []


def test_folders_that_are_gone(tmp_path: Path, ascend: dict[str, str]) -> None:
    assert _codes(_check(_job(tmp_path), tmp_path, **(ascend | {"ASCEND_OPP_PATH": "/gone"}))) == ["LCH102"]
    assert _codes(_check(_job(tmp_path), tmp_path, ASCEND_HOME_PATH="/gone")) == ["LCH102", "LCH102"]


@pytest.mark.parametrize(
    ("mask", "code"),
    [
        ("0,1", ""),
        ("", "LCH106"),
        ("0-1", "LCH106"),
        ("1,0", "LCH106"),
        ("0,0", "LCH106"),
        ("0", "LCH107"),
        ("0,7", "LCH108"),
    ],
)
def test_masks(tmp_path: Path, ascend: dict[str, str], mask: str, code: str) -> None:
    found = _check(_job(tmp_path), tmp_path, **ascend, ASCEND_RT_VISIBLE_DEVICES=mask)
    assert _codes(found) == ([code] if code else [])


def test_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = _job(tmp_path, kind="cuda")
    assert _codes(_check(job, tmp_path)) == ["LCH111"]
    (tmp_path / "root" / "dev").mkdir(parents=True)
    (tmp_path / "root" / "dev" / "nvidia0").touch()
    assert _codes(_check(job, tmp_path)) == []
    assert _codes(_check(job, tmp_path, CUDA_VISIBLE_DEVICES="GPU-5f,GPU-6f")) == []
    assert _codes(_check(job, tmp_path, CUDA_VISIBLE_DEVICES="")) == ["LCH106"]
    monkeypatch.setattr(checks, "_torch_build", lambda: "cpu")
    assert "LCH112" in _codes(_check(job, tmp_path, packages=True))


def test_a_cuda_torch_beside_torch_npu(tmp_path: Path, ascend: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_torch_build", lambda: "CUDA 13.0")
    codes = _codes(_check(_job(tmp_path), tmp_path, packages=True, **ascend))
    assert {"LCH104", "LCH105"} <= set(codes)


def test_how_torch_was_built_is_read_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    importlib.invalidate_caches()
    for text, build in (
        ("cuda: Optional[str] = None\n", "cpu"),
        ("cuda: str | None = '13.0'\n", "CUDA 13.0"),
        ("nothing = 1\n", None),
    ):
        (package / "version.py").write_text(text)
        assert checks._torch_build() == build


def test_inputs_that_are_not_there_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    inputs = Inputs(
        data_files=("a.jsonl", "b.jsonl", "*.jsonl", "none/**/*.txt", str(tmp_path / "a.jsonl")),
        weights="./weights",
        tokenizer="./tokenizer",
    )
    found = _check(_job(tmp_path, kind="cpu", inputs=inputs, nodes=2), tmp_path)
    assert [(finding.code, finding.path) for finding in found] == [
        ("LCH131", "data.files[1]"),
        ("LCH131", "data.files[3]"),
        ("LCH132", "weights"),
        ("LCH132", "tokenizer"),
    ]


def test_names_on_a_hub_are_not_paths(tmp_path: Path) -> None:
    inputs = Inputs(weights="org/model", tokenizer="org/model")
    assert _check(_job(tmp_path, kind="cpu", inputs=inputs, nodes=2), tmp_path) == []


def test_tools_for_building_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = _job(tmp_path, kind="cpu", nodes=2)
    monkeypatch.setattr(checks.shutil, "which", lambda name: None)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    (found,) = _check(job, tmp_path)
    assert found.code == "LCH121"
    assert "g++" in found.help
    assert "Python.h" in found.help
    assert "ninja" not in found.help
    assert _check(_job(tmp_path, kind="cuda", nodes=2), tmp_path) == []


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = _job(tmp_path, kind="cpu", nodes=2, parameters=10**9, trainable_parameters=10**9)
    usage = type(checks.shutil.disk_usage(tmp_path))
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: usage(10**12, 10**12, 2**29))
    assert _codes(_check(job, tmp_path)) == ["LCH141"]
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: usage(10**12, 10**12, 13 * 10**9))
    assert _codes(_check(job, tmp_path)) == ["LCH142"]
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: usage(10**12, 10**12, 15 * 10**9))
    assert _codes(_check(job, tmp_path)) == []


def test_buffers_of_killed_runs(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for pid, mapped in (("1", "a_0"), ("2", "")):
        (proc / pid).mkdir(parents=True)
        (proc / pid / "maps").write_text(f"7f00-7f01 rw-s 0 00:1a 5 /dev/shm/deepspeed_allreduce_buffer_{mapped}\n")
    for name in ("a_0", "b_0", "b_1"):
        (tmp_path / f"deepspeed_allreduce_buffer_{name}").write_bytes(b"x")
    leaked = shared_memory.leaked_buffers(tmp_path, proc)
    assert [path.name for path in leaked] == ["deepspeed_allreduce_buffer_b_0", "deepspeed_allreduce_buffer_b_1"]
    assert shared_memory.leaked_buffers(tmp_path / "none", proc) == []


def test_leaks_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = tmp_path / "deepspeed_allreduce_buffer_0_127.0.0.1_1_0"
    buffer.write_bytes(b"x")
    monkeypatch.setattr(shared_memory, "leaked_buffers", lambda: [buffer])
    found = _check(_job(tmp_path, kind="cpu"), tmp_path)
    assert [(finding.code, finding.severity) for finding in found] == [("LCH151", Severity.WARNING)]


def test_an_ascend_recipe_is_refused_here_in_seconds_and_without_torch(tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("ASCEND")}
    code = (
        "import sys\n"
        "from dsgen.cli.main import run\n"
        "try:\n"
        f"    run(['launch', {str(REPOSITORY / 'recipes' / 'tiny-npu.yaml')!r}])\n"
        "finally:\n"
        "    heavy = {'torch', 'deepspeed', 'transformers', 'torch_npu', 'numpy'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environ | {"PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert time.monotonic() - begun < 10
    assert done.returncode == 1
    assert "there is no CANN here" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_torch_npu_without_cann_is_told_to_jobs_for_other_devices(
    tmp_path: Path, ascend: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _job(tmp_path, kind="cpu")
    (tmp_path / "site" / "torch_npu").mkdir(parents=True)
    for name in ("__init__.py", "_C.cpython-311-x86_64-linux-gnu.so"):
        (tmp_path / "site" / "torch_npu" / name).touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert "LCH123" in _codes(_check(job, tmp_path, packages=True))
    assert "LCH123" not in _codes(_check(job, tmp_path, packages=True, **ascend))
