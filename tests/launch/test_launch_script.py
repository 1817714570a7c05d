"""The rendered launch.sh: what it starts, what it passes on, and that it leaves nothing behind."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsgen.recipe.plan import Entrypoint
from dsgen.render.templates import env_value
from tests.launch.conftest import KINDS, Experiment, alive, make_plan, render_launch, variable, wait_for

Make = Callable[..., Experiment]


def test_every_variant_is_clean_for_shellcheck(tmp_path: Path) -> None:
    checker = shutil.which("shellcheck") or str(Path(sys.executable).parent / "shellcheck")
    scripts = []
    environment = (variable("OMP_NUM_THREADS", "4"), variable("HCCL_IF_IP", "10.0.0.1", per_node=True))
    own = Entrypoint(script="mine.py", args=("--it's", "$x {run_dir}"), local_rank=False)
    for kind, launcher, nodes in itertools.product(KINDS, ("deepspeed", "torchrun"), (1, 3)):
        for variables, entrypoint in (((), None), (environment, None), (environment, own)):
            path = tmp_path / f"{kind}-{launcher}-{nodes}-{len(variables)}-{entrypoint is None}.sh"
            plan = make_plan(kind=kind, launcher=launcher, nodes=nodes, environment=variables, entrypoint=entrypoint)
            path.write_text(render_launch(plan))
            scripts.append(path)
    assert len(scripts) == 36
    done = subprocess.run([checker, *scripts], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.returncode == 0


def test_a_rendered_script_has_no_stray_blank_lines() -> None:
    own = Entrypoint(script="mine.py", args=(), local_rank=False)
    for kind, launcher, nodes, entrypoint in itertools.product(KINDS, ("deepspeed", "torchrun"), (1, 3), (None, own)):
        text = render_launch(make_plan(kind=kind, launcher=launcher, nodes=nodes, entrypoint=entrypoint))
        assert text.startswith("#!/usr/bin/env bash\n")
        assert "\n\n\n" not in text
        assert text.endswith("fi\n")


@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun"])
class TestEnd:
    def test_a_finished_run(self, experiment: Make, launcher: str) -> None:
        job = experiment(make_plan(launcher=launcher))
        code, out, err = job.run()
        assert code == 0, err
        assert "rank 0 is up" in out
        assert not any(alive(pid) for pid in job.up())

    def test_term_lets_the_ranks_save(self, experiment: Make, launcher: str) -> None:
        job = experiment(make_plan(launcher=launcher))
        termed = job.run_dir / "launcher-termed"
        process = job.start(FAKE_DO="wait", FAKE_SAVE_SECONDS="2", FAKE_LAUNCHER_TERM=str(termed))
        ranks = job.up()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 143
        assert "the ranks save and stop" in err
        assert {path.name for path in job.run_dir.glob("saved-*")} == {"saved-0", "saved-1"}
        assert not any(alive(pid) for pid in ranks)
        assert not termed.exists(), "DeepSpeed's launcher would have cut the saving short"

    def test_a_second_signal_ends_them_at_once(self, experiment: Make, launcher: str) -> None:
        job = experiment(make_plan(launcher=launcher))
        process = job.start(FAKE_DO="wait", FAKE_SAVE_SECONDS="60")
        ranks = job.up()
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert time.monotonic() - begun < 10
        assert process.returncode == 130
        assert not any(alive(pid) for pid in ranks)

    def test_ranks_that_do_not_stop_are_killed_in_time(self, experiment: Make, launcher: str) -> None:
        job = experiment(make_plan(launcher=launcher))
        process = job.start(FAKE_DO="ignore", DSGEN_STOP_SECONDS="1")
        ranks = job.up()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 143
        assert not any(alive(pid) for pid in ranks)

    def test_term_before_the_ranks_can_save(self, experiment: Make, launcher: str) -> None:
        job = experiment(make_plan(launcher=launcher))
        process = job.start(FAKE_DO="import")
        ranks = job.up()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 143
        assert not any(alive(pid) for pid in ranks)

    def test_helpers_of_a_rank_are_not_asked_but_ended(self, experiment: Make, launcher: str) -> None:
        job = experiment(make_plan(launcher=launcher, per_node=1))
        process = job.start(FAKE_DO="loader", DSGEN_STOP_SECONDS="3")
        (rank,) = job.up(1)
        wait_for(lambda: Path(f"/proc/{rank}/task/{rank}/children").read_text())
        (helper,) = Path(f"/proc/{rank}/task/{rank}/children").read_text().split()
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        saved, asked = job.run_dir / "saved-0", job.run_dir / "loader-termed"
        assert not asked.exists() or asked.stat().st_mtime_ns >= saved.stat().st_mtime_ns
        assert not alive(int(helper))

    def test_a_run_without_a_report_has_failed(self, experiment: Make, launcher: str) -> None:
        job = experiment(make_plan(launcher=launcher))
        code, _, err = job.run(FAKE_DO="silent")
        assert code == 1
        assert "does not say that training ended" in err

    def test_an_old_report_proves_nothing(self, experiment: Make, launcher: str) -> None:
        job = experiment(make_plan(launcher=launcher))
        assert job.run()[0] == 0
        assert job.run(FAKE_DO="silent")[0] == 1

    def test_no_environment_of_a_scheduler_reaches_the_launcher(self, experiment: Make, launcher: str) -> None:
        job = experiment(make_plan(launcher=launcher))
        record = job.folder / "record.json"
        # An outer LOCAL_RANK would also make every process look like a rank.
        assert job.run(FAKE_RECORD=str(record), RANK="7", LOCAL_RANK="0,1", WORLD_SIZE="64")[0] == 0
        environ = json.loads(record.read_text())["environ"]
        assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & set(environ)


def test_exit_code_of_a_rank(experiment: Make) -> None:
    job = experiment()
    assert job.run(FAKE_DO="wait,exit3")[0] == 3
    assert not any(alive(pid) for pid in job.up())


def test_a_killed_rank_gives_247(experiment: Make) -> None:
    assert experiment().run(FAKE_DO="wait,die")[0] == 247


@pytest.mark.parametrize("victim", ["launch", "runner"])
def test_a_killed_launcher_leaves_no_ranks_and_is_a_failure(experiment: Make, victim: str) -> None:
    job = experiment()
    process = job.start(FAKE_DO="wait")
    ranks = job.up()
    (launch,) = {_parent(pid) for pid in ranks}
    os.kill(launch if victim == "launch" else _parent(launch), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert "the launcher ended before its ranks" in err
    assert (job.run_dir / "saved-0").exists()
    assert not any(alive(pid) for pid in [*ranks, launch])


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_ctrl_c_on_a_terminal_reaches_the_script_alone(experiment: Make) -> None:
    job = experiment()
    termed = job.run_dir / "launcher-termed"
    environ = job.environ | {"FAKE_DO": "wait", "FAKE_LAUNCHER_TERM": str(termed)}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("bash", ["bash", str(job.folder / "launch.sh")], environ)
    ranks = job.up()
    os.write(terminal, b"\x03")
    output = b""
    while True:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:
            break
        if not chunk:
            break
        output += chunk
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130, output
    assert {path.name for path in job.run_dir.glob("saved-*")} == {"saved-0", "saved-1"}
    assert not any(alive(rank) for rank in ranks)
    assert not termed.exists()


def test_a_closed_terminal_lets_the_ranks_save(experiment: Make) -> None:
    job = experiment()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("bash", ["bash", str(job.folder / "launch.sh")], job.environ | {"FAKE_DO": "wait"})
    ranks = job.up()
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert (job.run_dir / "saved-0").exists()
    assert not any(alive(rank) for rank in ranks)


class TestBuildLocks:
    def test_a_stale_lock_is_removed(self, experiment: Make) -> None:
        job = experiment()
        lock = _lock(job, minutes=10)
        code, _, err = job.run()
        assert code == 0
        assert not lock.exists()
        assert "left by a build that was killed" in err

    def test_a_lock_in_use_stays(self, experiment: Make) -> None:
        job = experiment()
        lock = _lock(job, minutes=10)
        with lock.open():
            assert job.run()[0] == 0
        assert lock.exists()

    def test_a_young_lock_without_a_visible_owner_is_waited_for(self, experiment: Make) -> None:
        job = experiment()
        lock = _lock(job, minutes=0)
        process = job.start()
        time.sleep(2)
        assert process.poll() is None
        assert not (job.run_dir / "up-0").exists()
        lock.unlink()
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "another job may be building" in err

    def test_the_lock_of_a_build_that_is_killed_here_goes_with_it(self, experiment: Make) -> None:
        job = experiment(make_plan(per_node=1))
        process = job.start(FAKE_DO="build")
        job.up(1)
        lock = Path(job.environ["TORCH_EXTENSIONS_DIR"]) / "fused_adam" / "lock"
        assert lock.exists()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert not lock.exists()


def _lock(job: Experiment, minutes: int) -> Path:
    folder = Path(job.environ["TORCH_EXTENSIONS_DIR"]) / "py311_cpu" / "cpu_adam"
    folder.mkdir(parents=True)
    lock = folder / "lock"
    lock.touch()
    before = time.time() - 60 * minutes
    for path in (lock, folder):
        os.utime(path, (before, before))
    return lock


class TestEnvironment:
    def test_variables_reach_the_ranks_and_the_users_own_win(self, experiment: Make) -> None:
        job = experiment(make_plan(environment=(variable("A_B", "1", "why not"), variable("C_D", "2"))))
        record = job.folder / "record.json"
        code, _, err = job.run(FAKE_RECORD=str(record), C_D="mine", DS_ACCELERATOR="npu")
        assert code == 0
        environ = json.loads(record.read_text())["environ"]
        assert (environ["A_B"], environ["C_D"], environ["DS_ACCELERATOR"]) == ("1", "mine", "cpu")
        assert "C_D=mine is set in your shell and stays; the recipe has 2" in err
        assert "DS_ACCELERATOR=npu of your shell is replaced by cpu" in err

    def test_arguments_and_folders_reach_train_py(self, experiment: Make) -> None:
        job = experiment()
        record = job.folder / "record.json"
        assert job.run("--resume", "a b", FAKE_RECORD=str(record), DSGEN_BASE_DIR="/some where")[0] == 0
        argv = json.loads(record.read_text())["argv"]
        assert argv[argv.index(str(job.folder / "train.py")) :] == [
            str(job.folder / "train.py"),
            *("--run-dir", str(job.run_dir), "--base-dir", "/some where", "--resume", "a b"),
        ]

    def test_no_job_hostfile_is_picked_up(self, experiment: Make) -> None:
        job = experiment()
        record = job.folder / "record.json"
        job.run(FAKE_RECORD=str(record))
        argv = json.loads(record.read_text())["argv"]
        assert argv[argv.index("--hostfile") + 1] == "/dev/null"

    def test_a_port_can_be_given(self, experiment: Make) -> None:
        job = experiment()
        record = job.folder / "record.json"
        job.run(FAKE_RECORD=str(record), MASTER_PORT="15123")
        argv = json.loads(record.read_text())["argv"]
        assert argv[argv.index("--master_port") + 1] == "15123"
        for name in ("MASTER_PORT", "DSGEN_STOP_SECONDS"):
            code, _, err = job.run(**{name: "x[$(touch CANARY)]"})
            assert code == 1
            assert f"{name}=" in err
        _nothing_happened(job)

    @pytest.mark.parametrize("missing", ["train.py", "ds_config.json"])
    def test_a_missing_file_is_named(self, experiment: Make, missing: str) -> None:
        job = experiment()
        (job.folder / missing).unlink()
        code, _, err = job.run()
        assert code == 1
        assert f"{missing} is missing" in err
        assert not job.run_dir.exists()

    def test_a_python_without_deepspeed_is_named(self, experiment: Make) -> None:
        job = experiment()
        code, _, err = job.run(PYTHONPATH="", PYTHON="/usr/bin/env")
        assert code == 1
        assert "/usr/bin/env has no torch" in err


class TestFoldersOfRuns:
    def test_new_runs_are_numbered(self, experiment: Make) -> None:
        job = experiment()
        del job.environ["DSGEN_RUN_DIR"]
        runs = job.folder.parent / "runs" / "tiny"
        (runs / "007").mkdir(parents=True)
        (runs / "notes").mkdir()
        assert job.run()[0] == 0
        assert job.run()[0] == 0
        assert sorted(path.name for path in runs.iterdir()) == ["007", "008", "009", "notes"]
        assert (runs / "009" / "report.json").exists()

    def test_runs_that_start_together_get_different_folders(self, experiment: Make) -> None:
        job = experiment(make_plan(per_node=1))
        del job.environ["DSGEN_RUN_DIR"]
        processes = [job.start() for _ in range(6)]
        for process in processes:
            process.communicate(timeout=60)
        assert [process.returncode for process in processes] == [0] * 6
        runs = job.folder.parent / "runs" / "tiny"
        assert sorted(path.name for path in runs.iterdir()) == [f"{number:03d}" for number in range(1, 7)]

    @pytest.mark.parametrize(("named", "folder"), [(None, "/runs/tiny/001"), ("x", "/x")])
    def test_under_the_root(self, experiment: Make, named: str | None, folder: str) -> None:
        job = experiment()
        environ = {**job.environ, "DSGEN_DRY_RUN": "1", "DSGEN_RUN_DIR": named or ""}
        command = ["bash", str(job.folder / "launch.sh")]
        done = subprocess.run(command, cwd="/", env=environ, capture_output=True, text=True, check=True)
        assert f"--run-dir {folder} " in done.stdout

    def test_a_folder_that_cannot_be_made_is_said(self, experiment: Make) -> None:
        job = experiment()
        del job.environ["DSGEN_RUN_DIR"]
        (job.folder.parent / "runs").write_text("a file")
        code, _, err = job.run()
        assert code != 0
        assert "runs" in err


def test_dry_run_starts_and_writes_nothing(experiment: Make) -> None:
    job = experiment(make_plan(environment=(variable("A_B", "two words"),)))
    before = sorted(job.folder.parent.rglob("*"))
    code, out, _ = job.run("--resume", "auto", DSGEN_DRY_RUN="1")
    assert code == 0
    assert "export A_B=two\\ words" in out
    assert "-m deepspeed.launcher.runner --no_local_rank --master_port 1" in out
    assert out.rstrip().endswith("--resume auto")
    assert sorted(job.folder.parent.rglob("*")) == before


NASTY = [
    "plain",
    'it\'s "quoted"',
    "$(touch CANARY) `touch CANARY` ${HOME}",
    "; touch CANARY #",
    "a\nb\n\ntouch CANARY\n",
    'back\\slash \\" end\\',
    "héllo 世界 \u202e \x07",
    "-rf *",
    "{{ 7 * 7 }} {% raw %}",
    "!history & | < > ~ \t",
    "",
]


@pytest.mark.parametrize("text", NASTY)
class TestHostileStrings:
    def test_an_environment_value_and_its_reason(self, experiment: Make, text: str) -> None:
        job = experiment(make_plan(environment=(variable("A_B", text, text),)))
        record = job.folder / "record.json"
        code, _, err = job.run(FAKE_RECORD=str(record))
        assert code == 0, err
        assert json.loads(record.read_text())["environ"]["A_B"] == text
        _nothing_happened(job)
        assert job.run(A_B="mine")[0] == 0
        _nothing_happened(job)

    def test_the_name_of_a_variable(self, experiment: Make, text: str) -> None:
        job = experiment(make_plan(environment=(variable(f"X[{text}]", "1"),)))
        code, _, err = job.run()
        assert code == 1
        assert "not a name for an environment variable" in err
        _nothing_happened(job)

    def test_names_of_hosts_and_of_the_job(self, experiment: Make, text: str) -> None:
        plan = make_plan(name=text, nodes=2, hosts=(text, f"{text}2"), launcher="torchrun")
        job = experiment(plan)
        record = job.folder / "record.json"
        code, _, err = job.run(FAKE_RECORD=str(record))
        assert code == 0, err
        argv = json.loads(record.read_text())["argv"]
        assert argv[argv.index("--rdzv_endpoint") + 1] == f"{text}:29500"
        assert argv[argv.index("--rdzv_id") + 1] == text
        _nothing_happened(job)

    def test_folders_and_arguments(self, experiment: Make, text: str, tmp_path: Path) -> None:
        if "\n" in text:
            pytest.skip("bash drops line breaks at the end of a folder's name")
        name = text.replace("/", "_") or "empty"
        job = experiment(name=f"x{name}")
        record = tmp_path / "record.json"
        code, _, err = job.run("--resume", text or "auto", FAKE_RECORD=str(record), DSGEN_BASE_DIR=f"/{name}")
        assert code == 0, err
        argv = json.loads(record.read_text())["argv"]
        assert argv[-6:] == ["--run-dir", str(job.run_dir), "--base-dir", f"/{name}", "--resume", text or "auto"]
        _nothing_happened(job)


def _nothing_happened(job: Experiment) -> None:
    assert not list(job.folder.parent.rglob("CANARY"))


class TestDevices:
    @pytest.fixture
    def npu(self, experiment: Make, tmp_path: Path) -> Callable[..., Experiment]:
        def make(present: int = 8, **changes: object) -> Experiment:
            job = experiment(make_plan(kind="npu", per_node=2, **changes))
            devices = tmp_path / "devices"
            devices.mkdir()
            for index in range(present):
                (devices / f"davinci{index}").touch()
            (devices / "davinci_manager").touch()
            script = job.folder / "launch.sh"
            script.write_text(script.read_text().replace("/dev/davinci", f"{devices}/davinci"))
            job.environ["ASCEND_HOME_PATH"] = "/somewhere"
            return job

        return make

    def test_all_devices(self, npu: Callable[..., Experiment]) -> None:
        job = npu()
        record = job.folder / "record.json"
        assert job.run(FAKE_RECORD=str(record))[0] == 0
        recorded = json.loads(record.read_text())
        assert recorded["argv"][recorded["argv"].index("--num_gpus") + 1] == "2"
        assert "--include" not in recorded["argv"]
        assert recorded["environ"]["DS_ACCELERATOR"] == "npu"

    def test_a_mask_becomes_include(self, npu: Callable[..., Experiment]) -> None:
        job = npu()
        record = job.folder / "record.json"
        code, _, err = job.run(FAKE_RECORD=str(record), ASCEND_RT_VISIBLE_DEVICES="4,5,7")
        assert code == 0, err
        recorded = json.loads(record.read_text())
        assert recorded["argv"][recorded["argv"].index("--include") + 1] == "localhost:4,5"
        assert "--num_gpus" not in recorded["argv"]
        assert "ASCEND_RT_VISIBLE_DEVICES" not in recorded["environ"]
        assert "the first 2 are used" in err

    def test_torchrun_keeps_the_mask(self, npu: Callable[..., Experiment]) -> None:
        job = npu(launcher="torchrun")
        record = job.folder / "record.json"
        assert job.run(FAKE_RECORD=str(record), ASCEND_RT_VISIBLE_DEVICES="4,5")[0] == 0
        assert json.loads(record.read_text())["environ"]["ASCEND_RT_VISIBLE_DEVICES"] == "4,5"

    @pytest.mark.parametrize(
        ("mask", "complaint"),
        [
            ("", "write device numbers"),
            ("0-3", "write device numbers"),
            ("0, 1", "write device numbers"),
            ("x$(touch CANARY)", "write device numbers"),
            ("5,4", "must ascend"),
            ("4,4", "must ascend"),
            ("4", "names 1 devices, the recipe needs 2"),
            ("0,9", "names device 9, which this machine does not have"),
        ],
    )
    def test_a_mask_that_cannot_be_meant(self, npu: Callable[..., Experiment], mask: str, complaint: str) -> None:
        job = npu()
        code, _, err = job.run(ASCEND_RT_VISIBLE_DEVICES=mask)
        assert code == 1
        assert complaint in err
        _nothing_happened(job)

    def test_too_few_devices(self, npu: Callable[..., Experiment]) -> None:
        code, _, err = npu(present=1).run()
        assert code == 1
        assert "this machine shows 1 NPUs" in err

    def test_without_cann_it_refuses(self, npu: Callable[..., Experiment]) -> None:
        job = npu()
        del job.environ["ASCEND_HOME_PATH"]
        code, _, err = job.run()
        assert code == 1
        assert "no CANN" in err
        assert not job.run_dir.exists()

    def test_set_env_is_sourced_though_it_is_sloppy(self, npu: Callable[..., Experiment]) -> None:
        job = npu()
        del job.environ["ASCEND_HOME_PATH"]
        toolkit = Path(job.environ["HOME"]) / "Ascend" / "ascend-toolkit"
        toolkit.mkdir(parents=True)
        sloppy = 'false\nexport LD_LIBRARY_PATH="/x:$LD_LIBRARY_PATH_NOT_SET"\nexport ASCEND_HOME_PATH=/opt/cann\n'
        (toolkit / "set_env.sh").write_text(sloppy)
        atb = toolkit.parent / "nnal" / "atb"
        atb.mkdir(parents=True)
        (atb / "set_env.sh").write_text("export ATB_HOME_PATH=/opt/atb\n")
        record = job.folder / "record.json"
        code, _, err = job.run(FAKE_RECORD=str(record))
        assert code == 0, err
        environ = json.loads(record.read_text())["environ"]
        assert (environ["ASCEND_HOME_PATH"], environ["ATB_HOME_PATH"]) == ("/opt/cann", "/opt/atb")
        dry = job.run(DSGEN_DRY_RUN="1")
        assert f"source {toolkit}/set_env.sh" in dry[1]

    def test_cuda_without_a_device(self, experiment: Make, tmp_path: Path) -> None:
        job = experiment(make_plan(kind="cuda"))
        script = job.folder / "launch.sh"
        script.write_text(script.read_text().replace("/dev/nvidia", f"{tmp_path}/nvidia"))
        code, _, err = job.run()
        assert code == 1
        assert "no CUDA device" in err
        (tmp_path / "nvidia0").touch()
        record = job.folder / "record.json"
        assert job.run(CUDA_VISIBLE_DEVICES="3,1", FAKE_RECORD=str(record))[0] == 0
        argv = json.loads(record.read_text())["argv"]
        assert argv[argv.index("--include") + 1] == "localhost:3,1"


ODD = 'a "b" $(touch CANARY) `c` \\d 50%n %%'


class TestSeveralNodes:
    @pytest.fixture
    def job(self, experiment: Make, tmp_path: Path) -> Experiment:
        variables = (variable("A_B", "file"), variable("HCCL_IF_IP", "10.0.0.1", per_node=True))
        job = experiment(make_plan(nodes=2, environment=variables))
        (job.folder / "hostfile").write_text("node0 slots=2\nnode1 slots=2\n")
        (job.folder / ".deepspeed_env").write_text(f"A_B=file\nE_F={env_value(ODD)}\n")
        tools = tmp_path / "tools"
        tools.mkdir()
        # The nodes are this machine, as far as ssh goes.
        (tools / "ssh").write_text('#!/bin/bash\nwhile [[ $1 == -* ]]; do shift 2; done\nshift\nexec "$@"\n')
        (tools / "pdsh").write_text("#!/bin/bash\n")
        for tool in tools.iterdir():
            tool.chmod(0o755)
        job.environ["PATH"] = f"{tools}:{job.environ['PATH']}"
        # One process stands for the runner: it has nothing to do with ranks here.
        runner = tmp_path / "fakes" / "deepspeed" / "launcher"
        runner.mkdir(parents=True)
        (runner / "__init__.py").touch()
        (runner.parent / "__init__.py").touch()
        shutil.copytree(Path(__file__).parent / "fakes" / "torch", tmp_path / "fakes" / "torch")
        (runner / "runner.py").write_text(
            "import json, os, pathlib, sys, time\n"
            "run = pathlib.Path(sys.argv[sys.argv.index('--run-dir') + 1])\n"
            "(run / 'record.json').write_text(json.dumps({'argv': sys.argv[1:], 'environ': dict(os.environ)}))\n"
            "until = time.time() + float(os.environ.get('FAKE_SECONDS', 0))\n"
            "while time.time() < until and not (run / 'stop').exists(): time.sleep(0.05)\n"
            "(run / 'report.json').write_text('{\"status\": \"finished\"}')\n"
        )
        job.environ["PYTHONPATH"] = f"{tmp_path / 'fakes'}:{Path(__file__).parents[2]}"
        return job

    def test_the_command_and_what_the_nodes_are_told(self, job: Experiment) -> None:
        code, _, err = job.run(A_B='mine "x" $HOME', HCCL_IF_IP="10.0.0.9")
        assert code == 0, err
        recorded = json.loads((job.run_dir / "record.json").read_text())
        argv = recorded["argv"]
        assert argv[argv.index("--hostfile") + 1] == str(job.folder / "hostfile")
        assert argv[argv.index("--master_addr") + 1] == "node0"
        assert "HCCL_IF_IP" not in recorded["environ"]
        assert "HCCL_IF_IP is not sent to the nodes" in err
        sent = Path(recorded["environ"]["DS_ENV_FILE"])
        assert "" not in sent.read_text().splitlines()
        values = _as_deepspeed_exports(sent)
        assert values["A_B"] == 'mine "x" $HOME'
        assert values["E_F"] == ODD
        assert values["DS_ACCELERATOR"] == "cpu"
        _nothing_happened(job)

    @pytest.mark.parametrize("line", ["", "# comment", "no value", "A B=1", "=1"])
    def test_a_line_that_deepspeed_would_stumble_over(self, job: Experiment, line: str) -> None:
        (job.folder / ".deepspeed_env").write_text(f"A_B=1\n{line}\n")
        code, _, err = job.run()
        assert code == 1
        assert f"a line that is not NAME=VALUE: '{line}'" in err

    def test_a_stop_is_told_through_the_run_folder(self, job: Experiment) -> None:
        process = job.start(FAKE_SECONDS="60")
        wait_for(lambda: (job.run_dir / "record.json").exists())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 143
        assert (job.run_dir / "stop").exists()

    def test_a_mask_is_refused(self, experiment: Make) -> None:
        job = experiment(make_plan(kind="npu", nodes=2), name="masked")
        code, _, err = job.run(ASCEND_RT_VISIBLE_DEVICES="0,1", ASCEND_HOME_PATH="/x")
        assert code == 1
        assert "no effect on a job of several nodes" in err

    def test_a_hostfile_of_another_job(self, job: Experiment) -> None:
        (job.folder / "hostfile").write_text("node0 slots=2\n")
        code, _, err = job.run()
        assert code == 1
        assert "does not list 2 hosts" in err

    def test_paths_that_deepspeed_would_hand_to_a_shell(self, job: Experiment) -> None:
        code, _, err = job.run(DSGEN_BASE_DIR="/x;touch CANARY")
        assert code == 1
        assert "cannot carry '/x;touch CANARY'" in err
        _nothing_happened(job)

    def test_a_node_that_cannot_be_reached_is_named(self, job: Experiment, tmp_path: Path) -> None:
        (tmp_path / "tools" / "ssh").write_text("#!/bin/bash\n[[ $* != *node1* ]]\n")
        code, _, err = job.run()
        assert code == 1
        assert "node1: no ssh without a password" in err
        assert "node0:" not in err

    def test_torchrun_on_several_nodes_wants_one_folder(self, experiment: Make) -> None:
        job = experiment(make_plan(nodes=2, launcher="torchrun"), name="torchrun")
        del job.environ["DSGEN_RUN_DIR"]
        code, _, err = job.run()
        assert code == 1
        assert "set DSGEN_RUN_DIR" in err


def _as_deepspeed_exports(path: Path) -> dict[str, str]:
    """What a node's shell gets: DeepSpeed 0.19.8 puts special values between double quotes, pdsh makes % of %%."""
    lines = []
    names = []
    for line in path.read_text().splitlines(keepends=True):
        name, value = line.split("=", maxsplit=1)
        value = value.strip()
        lines.append(f"export {name}=" + (f'"{value}"' if re.search(r"[^\w@%+=:,./-]", value) else value))
        names.append(name)
    lines = [re.sub("%([nhu%])", lambda match: "%" if match[1] == "%" else "REPLACED", line) for line in lines]
    script = "; ".join([*lines, *(f"printf '%s\\0' \"${name}\"" for name in names)])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=path.parent)
    return dict(zip(names, done.stdout.split("\0"), strict=False))
