"""`dsgen doctor` as a program: verdicts, exit codes, and what it loads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsgen.cli.main import main_code

from ..conftest import RECIPES

SAMPLES = Path(__file__).parents[1] / "doctor" / "captured"
Doctor = Callable[..., tuple[int, dict[str, dict[str, Any]]]]


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Exit code and checks of `dsgen doctor RECIPE --captured` with a folder of these samples."""

    def run(recipe: str, *arguments: str, **files: str) -> tuple[int, dict[str, dict[str, Any]]]:
        folder = tmp_path / "captured"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in ("hccn_tool.txt", "hccn.conf", "ascend_toolkit_install.info", "driver-version.info"):
            shutil.copy(SAMPLES / name, folder / name)
        (folder / "environment.txt").write_text("ASCEND_HOME_PATH=/a\nASCEND_OPP_PATH=/a/opp\n")
        packages = "torch==2.9.0\ntorch_npu==2.9.0\ndeepspeed==0.19.8\ntransformers==5.24.0\n"
        (folder / "packages.txt").write_text(packages)
        for name, sample in files.items():
            shutil.copy(SAMPLES / sample, folder / f"npu-smi-{name.replace('_', '-')}.txt")
        words = ["doctor", str(RECIPES / f"{recipe}.yaml"), "--captured", str(folder), "--format", "json", *arguments]
        code = main_code(words)
        said = json.loads(capsys.readouterr().out)
        assert said["fine"] is (code == 0)
        assert said["captured"] is True
        return code, {check["name"]: check for check in said["checks"]}

    return run


@pytest.mark.parametrize(
    ("recipe", "sample", "code", "wrong"),
    [
        ("13b-zero2", "npu-smi-info-a2-910b3-idle.txt", 0, {}),
        ("13b-zero2", "npu-smi-info-a2-910b3-training.txt", 1, {"devices.memory": "error"}),
        ("13b-zero2", "npu-smi-info-a2-910b4-1-64g.txt", 0, {"devices.kind": "warning"}),
        ("13b-zero2", "npu-smi-info-a2-910b4-32g.txt", 1, {"devices.kind": "error"}),
        ("13b-zero2", "npu-smi-info-910prob-23.0.txt", 1, {"devices.kind": "error", "devices.memory": "error"}),
        (
            "13b-zero2",
            "npu-smi-info-a3-16dies.txt",
            1,
            # The captured hccn.conf is that of a server with eight devices.
            {"devices.kind": "warning", "devices.memory": "error", "links.addresses": "warning"},
        ),
        (
            "llama-3.2-1b-910a-fp16",
            "npu-smi-info-910prob-23.0.txt",
            1,
            {"devices.kind": "warning", "devices.memory": "error"},
        ),
        ("tiny-npu", "npu-smi-info-910prob-23.0.txt", 1, {"devices.kind": "error"}),
        ("13b-zero2", "npu-smi-errors.txt", 1, {"devices.tool": "error"}),
        ("13b-zero2", "npu-smi-info-m.txt", 0, {"devices.tool": "not understood"}),
        ("13b-zero2", "oom-backward-2.13.txt", 0, {"devices.tool": "not understood"}),
        ("13b-zero2", "hccl-ei0002-notify-timeout.txt", 0, {"devices.tool": "not understood"}),
    ],
)
def test_verdicts_on_captured_outputs(
    doctor: Doctor, recipe: str, sample: str, code: int, wrong: dict[str, str]
) -> None:
    given, checks = doctor(recipe, info=sample)
    bad = {name: check["state"] for name, check in checks.items() if check["state"] not in ("ok", "skipped")}
    assert bad == {"packages.torch": "warning"} | wrong
    assert given == code
    assert all(checks[name]["remedy"] for name in bad)
    assert checks["cann.torch_npu"]["state"] == "ok"


def test_a_value_of_the_recipe_can_be_changed(doctor: Doctor) -> None:
    sample = "npu-smi-info-910prob-23.0.txt"
    changes = ("--set", "hardware.device=910prob", "--set", "hardware.per_node=2")
    code, checks = doctor("llama-3.2-1b-910a-fp16", *changes, info=sample)
    assert (code, checks["devices.memory"]["state"]) == (0, "ok")


def test_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["doctor", "--captured", str(tmp_path / "none")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main_code(["doctor", "--captured", str(tmp_path / "file")]) == 2
    assert "is a file, not a folder" in capsys.readouterr().err
    assert main_code(["doctor", "--captured", str(tmp_path)]) == 2
    assert "holds no file of a known name" in capsys.readouterr().err
    assert main_code(["doctor", "--set", "zero.stage=3"]) == 2
    assert main_code(["doctor", str(tmp_path / "none.yaml")]) == 2
    assert main_code(["doctor", "--format", "json", "--captured", str(tmp_path)]) == 2
    assert "holds no file" in json.loads(capsys.readouterr().out)["error"]
    bad = tmp_path / "bad.yaml"
    bad.write_text("schema: 1\nnonsense: 2\n")
    assert main_code(["doctor", str(bad)]) == 1


def test_files_in_another_form_are_not_told_as_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("environment.txt", "packages.txt", "hccn_tool.txt", "npu-smi-info.txt", "hccn.conf", "driver-version.info")
    for name in names:
        (tmp_path / name).write_text("Package    Version\n---------- -------\ntorch      2.13.0\n")
    words = ["doctor", str(RECIPES / "13b-zero2.yaml"), "--captured", str(tmp_path), "--format", "json"]
    assert main_code(words) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    strange = {name for name, check in checks.items() if check["state"] == "not understood"}
    assert strange == {
        *("packages", "cann.environment", "cann.driver", "accelerator", "devices.tool", "mask"),
        *("links.addresses", "links.ports"),
    }
    assert "`pip list --format freeze`" in checks["packages"]["remedy"]
    found = " ".join(checks[name]["found"] for name in strange)
    assert "not installed" not in found and "was captured" not in found


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(SAMPLES / "npu-smi-info-a2-910b3-training.txt", tmp_path / "npu-smi-info.txt")
    assert main_code(["doctor", str(RECIPES / "13b-zero2.yaml"), "--captured", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    place = next(i for i, line in enumerate(lines) if " devices.memory " in line)
    assert lines[place].startswith("error ")
    assert lines[place + 1].strip().startswith("help: when it is nobody's job, kill 48988")
    assert lines[-1].startswith("the captured machine for 13b-zero2: something is wrong (5 ok, 1 error, ")
    assert main_code(["doctor", "--captured", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("the captured machine as it is, for no recipe: nothing wrong was found (5 ok, 1 warning, ")


@pytest.mark.parametrize("arguments", [["--quick"], [str(RECIPES / "tiny-npu.yaml")]])
def test_it_is_quick_and_loads_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    program = (
        "import json, sys, time\n"
        "from dsgen.cli.main import main_code\n"
        f"code = main_code(['doctor', *{arguments!r}])\n"
        "heavy = {'torch', 'deepspeed', 'transformers', 'numpy', 'torch_npu'} & set(sys.modules)\n"
        "print(json.dumps([code, sorted(heavy), time.process_time()]))\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    code, heavy, seconds = json.loads(out.stdout.splitlines()[-1])
    assert heavy == []
    assert seconds < 1.5
    assert out.stderr == ""
    assert code == (0 if arguments == ["--quick"] else 1)
    assert "no NPU here" in out.stdout or "tiny-npu: something is wrong" in out.stdout
