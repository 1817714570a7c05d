"""Finding or making a Python: the repository's launch.sh with stand-ins for python, and the installation in Python."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dsgen.findings import DsgenError
from dsgen.launch import bootstrap
from dsgen.launch.bootstrap import Step
from dsgen.launch.command import Request
from tests.launch.conftest import REPOSITORY

CORE = "click jinja2 pydantic rich yaml"
TRAIN = f"{CORE} torch deepspeed transformers"

# `-c CODE MODULE...` answers from a list of modules beside it; everything else is written to the log.
STUB = """#!/bin/bash
[[ $1 == -c ]] || echo "$(basename "$(dirname "$(dirname "$0")")")/$(basename "$0") $*" >>"$STUB_LOG"
modules=$(cat "$0.modules" 2>/dev/null)
case $1 in
-c)
  for module in "${@:3}"; do [[ " $modules " == *" $module "* ]] || exit 1; done
  ;;
-m)
  case $2 in
  venv)
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    echo pip >"$3/bin/python.modules"
    ;;
  pip)
    sleep "${STUB_PIP_SECONDS:-0}"
    [[ -z ${STUB_PIP_FAILS:-} ]] || { echo "no matching distribution" >&2; exit 1; }
    echo "pip click jinja2 pydantic rich yaml" >"$0.modules"
    ;;
  esac
  ;;
esac
"""


class Checkout:
    """A copy of launch.sh, in a world that has only the pythons that a test puts there."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "check out"
        self.folder.mkdir()
        shutil.copy(REPOSITORY / "launch.sh", self.folder)
        self.tools = root / "tools" / "bin"
        self.tools.mkdir(parents=True)
        for tool in ("bash", "dirname", "basename", "mkdir", "flock", "cat", "cp", "sleep"):
            (self.tools / tool).symlink_to(shutil.which(tool) or f"/missing/{tool}")
        self.log = root / "log"
        self.environ = {"PATH": str(self.tools), "STUB_LOG": str(self.log)}

    def add_python(self, path: Path, modules: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STUB)
        path.chmod(0o755)
        Path(f"{path}.modules").write_text(modules)
        return path

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.folder / "launch.sh"), *arguments],
            env=self.environ | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **environ: str) -> tuple[int, str]:
        process = self.start(*arguments, **environ)
        _, err = process.communicate(timeout=60)
        return process.returncode, err

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


class TestFindingPython:
    def test_a_python_that_has_everything_is_used(self, checkout: Checkout) -> None:
        checkout.add_python(checkout.tools / "python3.13", CORE)
        checkout.add_python(checkout.tools / "python3", TRAIN)
        assert checkout.run("recipe.yaml", "--set", "a=b c") == (0, "")
        assert checkout.calls() == ["tools/python3 -m dsgen launch recipe.yaml --set a=b c"]
        assert not (checkout.folder / ".venv").exists()

    def test_the_users_choice_and_the_active_environment_come_first(self, checkout: Checkout, tmp_path: Path) -> None:
        checkout.add_python(checkout.tools / "python3", TRAIN)
        active = checkout.add_python(tmp_path / "active" / "bin" / "python", TRAIN)
        chosen = checkout.add_python(tmp_path / "chosen" / "bin" / "python", TRAIN)
        environ = {"VIRTUAL_ENV": str(active.parent.parent)}
        checkout.run("r", **environ)
        checkout.run("r", **environ, PYTHON=str(chosen))
        assert checkout.calls() == ["active/python -m dsgen launch r", "chosen/python -m dsgen launch r"]

    def test_a_choice_that_cannot_serve_is_said(self, checkout: Checkout) -> None:
        checkout.add_python(checkout.tools / "python3", TRAIN)
        chosen = checkout.add_python(checkout.folder.parent / "chosen" / "bin" / "python", CORE)
        code, err = checkout.run("r", PYTHON=str(chosen))
        assert code == 0
        assert f"PYTHON={chosen} lacks DeepSpeed or packages of dsgen: using python3" in err

    def test_an_environment_beside_it_is_used_again(self, checkout: Checkout) -> None:
        checkout.add_python(checkout.tools / "python3", TRAIN)
        checkout.add_python(checkout.folder / ".venv" / "bin" / "python", TRAIN)
        checkout.run("r")
        assert checkout.calls() == [".venv/python -m dsgen launch r"]


class TestMakingAnEnvironment:
    def test_the_light_core_first_then_the_bootstrap(self, checkout: Checkout) -> None:
        checkout.add_python(checkout.tools / "python3.12", "venv ensurepip")
        code, err = checkout.run("recipe.yaml", "--dry-run")
        venv = checkout.folder / ".venv"
        assert code == 0
        assert f"no Python here has DeepSpeed: making {venv}" in err
        assert checkout.calls() == [
            f"tools/python3.12 -m venv {venv}",
            f".venv/python -m pip install --quiet -c {checkout.folder}/constraints.txt -e {checkout.folder}",
            ".venv/python -m dsgen launch --bootstrap recipe.yaml --dry-run",
        ]

    def test_it_can_be_forbidden(self, checkout: Checkout) -> None:
        checkout.add_python(checkout.tools / "python3", "venv ensurepip")
        code, err = checkout.run("r", DSGEN_NO_BOOTSTRAP="1")
        assert code == 1
        assert "DSGEN_NO_BOOTSTRAP=1 forbids" in err
        assert f"pip install -e '{checkout.folder}[train]'" in err
        assert checkout.calls() == []
        assert not (checkout.folder / ".venv").exists()

    def test_no_python_that_could_do_it(self, checkout: Checkout) -> None:
        checkout.add_python(checkout.tools / "python3", CORE)
        code, err = checkout.run("r")
        assert code == 1
        assert "apt-get install python3-venv" in err

    def test_pip_fails_and_the_next_start_goes_on(self, checkout: Checkout) -> None:
        checkout.add_python(checkout.tools / "python3", "venv ensurepip")
        code, err = checkout.run("r", STUB_PIP_FAILS="1")
        assert code == 1
        assert "pip could not install dsgen" in err
        assert "no matching distribution" in err
        assert checkout.run("r")[0] == 0
        assert checkout.calls()[-1] == ".venv/python -m dsgen launch --bootstrap r"

    def test_a_core_that_is_there_is_not_installed_again(self, checkout: Checkout) -> None:
        checkout.add_python(checkout.tools / "python3", "venv ensurepip")
        checkout.add_python(checkout.folder / ".venv" / "bin" / "python", f"pip {CORE}")
        assert checkout.run("r")[0] == 0
        assert checkout.calls() == [".venv/python -m dsgen launch --bootstrap r"]

    def test_two_at_the_same_time_install_once(self, checkout: Checkout) -> None:
        checkout.add_python(checkout.tools / "python3", "venv ensurepip")
        processes = [checkout.start("r", STUB_PIP_SECONDS="1") for _ in range(3)]
        errors = [process.communicate(timeout=60)[1] for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0]
        assert sum("-m pip install" in call for call in checkout.calls()) == 1
        assert sum("is at work in" in text for text in errors) == 2


def test_launch_sh_is_clean_for_shellcheck() -> None:
    checker = shutil.which("shellcheck") or str(Path(sys.executable).parent / "shellcheck")
    done = subprocess.run([checker, str(REPOSITORY / "launch.sh")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


class TestInstalling:
    @pytest.fixture
    def calls(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """Calls of pip, none of which does anything."""
        calls: list[list[str]] = []

        def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
            calls.append(command)
            return subprocess.CompletedProcess(command, 0, stdout="")

        monkeypatch.setattr(bootstrap.subprocess, "run", run)
        monkeypatch.setattr(bootstrap.sys, "prefix", str(tmp_path))
        monkeypatch.setattr(bootstrap, "repository", lambda: Path("/repo"))
        return calls

    def test_torch_first_then_the_rest(self, calls: list[list[str]]) -> None:
        said: list[str] = []
        bootstrap.bootstrap("npu", said.append)
        torch, check, rest = calls
        assert torch[1:4] == rest[1:4] == ["-m", "pip", "install"]
        assert "torch==2.13.0" in torch
        assert "torch.version.cuda" in check[-1]
        assert rest[-2:] == ["-e", "/repo[train,npu]"]
        assert all(call[call.index("-c") + 1] == "/repo/constraints.txt" for call in (torch, rest))
        assert said[0].startswith("[1/2] installing torch (torch==2.13.0)")

    def test_what_is_complete_is_left_alone(self, calls: list[list[str]]) -> None:
        bootstrap.bootstrap("cpu", lambda text: None)
        bootstrap.bootstrap("cpu", lambda text: None)
        assert len(calls) == 2
        bootstrap.bootstrap("npu", lambda text: None)
        assert len(calls) == 5

    def test_a_cuda_build_of_torch_is_refused_for_npus(
        self, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
            calls.append(command)
            return subprocess.CompletedProcess(command, 0, stdout="13.0\n")

        monkeypatch.setattr(bootstrap.subprocess, "run", run)
        with pytest.raises(DsgenError, match=r"build of torch for CUDA 13\.0, beside which torch_npu does not load"):
            bootstrap.bootstrap("npu", lambda text: None)
        assert len(calls) == 2

    def test_an_interrupted_one_is_done_again(self, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
        fake = bootstrap.subprocess.run

        def interrupted(command: list[str], **options: object) -> object:
            fake(command, **options)
            raise KeyboardInterrupt

        monkeypatch.setattr(bootstrap.subprocess, "run", interrupted)
        said: list[str] = []
        with pytest.raises(KeyboardInterrupt):
            bootstrap.bootstrap("cpu", said.append)
        assert "goes on where it was" in said[-1]
        monkeypatch.setattr(bootstrap.subprocess, "run", fake)
        bootstrap.bootstrap("cpu", lambda text: None)
        assert len(calls) == 3

    def test_pip_that_fails(self, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            bootstrap.subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, 1)
        )
        with pytest.raises(DsgenError, match="pip could not install torch") as caught:
            bootstrap.bootstrap("cpu", lambda text: None)
        assert "PIP_INDEX_URL" in caught.value.help

    def test_no_room(self, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        usage = type(shutil.disk_usage(tmp_path))
        monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda path: usage(10**12, 10**12, 2**30))
        with pytest.raises(DsgenError, match=r"take about 14 GiB, and .* has 1\.0 free"):
            bootstrap.bootstrap("cuda", lambda text: None)
        assert calls == []

    def test_a_second_one_waits(self, calls: list[list[str]], tmp_path: Path) -> None:
        said: list[str] = []
        with (tmp_path / bootstrap.LOCK).open("a") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            thread = threading.Thread(target=bootstrap.bootstrap, args=("cpu", said.append))
            thread.start()
            time.sleep(0.3)
            assert calls == []
        thread.join(10)
        assert len(calls) == 2
        assert "waiting for it" in said[0]


def test_extras_follow_the_device() -> None:
    torch, rest = bootstrap.steps("cpu", Path("/repo"))
    assert torch == Step("torch (torch==2.13.0)", ("torch==2.13.0",), ("-c", "/repo/constraints.txt"))
    assert rest.packages == ("-e", "/repo[train]")


def test_torch_is_the_one_of_the_matched_set() -> None:
    assert bootstrap.TORCH in (REPOSITORY / "constraints.txt").read_text().splitlines()


def test_the_request_survives_the_new_start() -> None:
    request = Request(path=Path("-odd.yaml"), overrides=("a=b c", "d=--x"), run_dir=Path("r d"), resume=True)
    assert request.arguments() == ["--set=a=b c", "--set=d=--x", "--run-dir=r d", "--resume", "--", "-odd.yaml"]


def test_a_recipe_that_cannot_run_here_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("ASCEND")}
    (tmp_path / "pip.py").write_text("raise SystemExit('pip was called')\n")
    done = subprocess.run(
        [sys.executable, "-m", "dsgen", "launch", "--bootstrap", str(REPOSITORY / "recipes" / "tiny-npu.yaml")],
        env=environ | {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "there is no CANN here" in done.stderr
    assert "torch_npu" not in done.stderr
    assert "pip" not in done.stdout
