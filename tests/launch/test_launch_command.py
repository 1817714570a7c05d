"""`dsgen launch` as a program: folders, what is shown, exit codes, signals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsgen.recipe.plan import Entrypoint
from tests.launch.conftest import REPOSITORY, Experiment, alive, make_plan, wait_for

Make = Callable[..., Experiment]
TINY = REPOSITORY / "recipes" / "tiny-cpu.yaml"


@pytest.fixture
def job(experiment: Make, tmp_path: Path) -> Experiment:
    """A rendered folder; runs go to runs/tiny under the test's folder."""
    job = experiment()
    del job.environ["DSGEN_RUN_DIR"]
    job.run_dir = tmp_path / "runs" / "tiny" / "001"
    return job


def _start(job: Experiment, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "dsgen", "launch", *arguments],
        env=job.environ | environ,
        cwd=job.folder.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    job.started.append(process)
    return process


def _launch(job: Experiment, *arguments: str, **environ: str) -> tuple[int, str, str]:
    process = _start(job, *arguments, **environ)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in out + err
    return process.returncode, out, err


def test_a_folder_is_copied_and_run(job: Experiment) -> None:
    (job.folder / "helper.py").write_text("x = 1\n")
    (job.folder / "metrics.jsonl").write_text("of somebody else\n")
    code, out, err = _launch(job, "experiment")
    assert code == 0, err
    estimate, first = out.splitlines()[:2]
    assert estimate.startswith("memory estimate: none, because a rendered folder holds no recipe")
    assert first == f"tiny: 2 ranks, run folder {job.run_dir}"
    assert "training" in out
    assert "step 3/9  loss 2.0000" in out
    assert "finished: 3 steps, loss 5.0000 -> 2.0000" in out
    assert out.rstrip().endswith("run folder: runs/tiny/001")
    assert "rank 0 is up" in (job.run_dir / "logs" / "launcher.log").read_text()
    assert {"launch.sh", "train.py", "ds_config.json", "helper.py"} <= {path.name for path in job.run_dir.iterdir()}
    assert "of somebody else" not in (job.run_dir / "metrics.jsonl").read_text()
    assert os.access(job.run_dir / "launch.sh", os.X_OK)
    assert "\x1b" not in out + err


def test_every_run_gets_a_new_folder(job: Experiment) -> None:
    assert _launch(job, "experiment")[0] == 0
    assert _launch(job, "runs/tiny/001")[0] == 0
    assert (job.run_dir.parent / "002" / "report.json").exists()


def test_a_named_folder(job: Experiment) -> None:
    assert _launch(job, "experiment", "--run-dir", "elsewhere/x y")[0] == 0
    assert (job.folder.parent / "elsewhere" / "x y" / "report.json").exists()
    code, _, err = _launch(job, "experiment", "--run-dir", "elsewhere/x y")
    assert code == 2
    assert "is not empty" in err
    assert "--resume" in err


class TestResume:
    def test_a_run_folder_goes_on_in_place(self, job: Experiment) -> None:
        assert _launch(job, "experiment")[0] == 0
        record = job.folder / "record.json"
        assert _launch(job, "runs/tiny/001", "--resume", FAKE_RECORD=str(record))[0] == 0
        argv = json.loads(record.read_text())["argv"]
        assert argv[-2:] == ["--resume", "auto"]
        assert argv[argv.index("--run-dir") + 1] == str(job.run_dir)
        assert not (job.run_dir.parent / "002").exists()

    def test_it_keeps_the_folder_that_paths_count_from(self, job: Experiment) -> None:
        assert _launch(job, "experiment")[0] == 0
        record = job.folder / "record.json"
        for arguments in (("--resume",), ()):
            assert _launch(job, "runs/tiny/001", *arguments, FAKE_RECORD=str(record))[0] == 0
            argv = json.loads(record.read_text())["argv"]
            assert argv[argv.index("--base-dir") + 1] == str(job.folder)

    def test_rendered_files_start_anew_from_the_newest_run(self, job: Experiment) -> None:
        assert _launch(job, "experiment")[0] == 0
        (job.run_dir / "checkpoints" / "step-00000003").mkdir(parents=True)
        record = job.folder / "record.json"
        assert _launch(job, "experiment", "--resume", FAKE_RECORD=str(record))[0] == 0
        argv = json.loads(record.read_text())["argv"]
        assert argv[-2:] == ["--resume", str(job.run_dir)]
        assert argv[argv.index("--run-dir") + 1] == str(job.run_dir.parent / "002")

    def test_without_an_earlier_run_it_begins(self, job: Experiment) -> None:
        code, out, _ = _launch(job, "experiment", "--resume")
        assert code == 0
        assert "no earlier run has a checkpoint" in out

    def test_a_run_without_a_checkpoint_is_told(self, job: Experiment) -> None:
        assert _launch(job, "experiment")[0] == 0
        _, out, _ = _launch(job, "runs/tiny/001", "--resume")
        assert "no checkpoint stands in runs/tiny/001: starting from the beginning" in out

    def test_a_named_folder_can_be_started_and_gone_on_with_by_one_command(self, job: Experiment) -> None:
        for _ in range(2):
            assert _launch(job, "experiment", "--run-dir", "named", "--resume")[0] == 0

    def test_a_run_of_other_files_is_not_touched(self, job: Experiment) -> None:
        assert _launch(job, "experiment")[0] == 0
        (job.folder / "ds_config.json").write_text('{"other": 1}\n')
        code, _, err = _launch(job, "experiment", "--run-dir", "runs/tiny/001", "--resume")
        assert code == 2
        assert "was made from other files: ds_config.json" in err
        assert (job.run_dir / "ds_config.json").read_text() == "{}\n"


OWN = """\
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["DSGEN_RUN_DIR"])
(folder / f"saw-{os.environ['RANK']}").write_text(os.environ.get("DSGEN_RESUME", "nothing"))
print("the script is heard")
for line in os.environ.get("OWN_EVENTS", "").split():
    with (folder / "events.jsonl").open("a") as stream:
        stream.write(line + "\\n")
"""


class TestOwnScript:
    """A script that knows nothing of dsgen: what --resume finds of it, and what is said of it at its end."""

    @pytest.fixture
    def own(self, experiment: Make, tmp_path: Path) -> Experiment:
        script = tmp_path / "own.py"
        script.write_text(OWN)
        own = experiment(make_plan(entrypoint=Entrypoint(script=str(script), args=(), local_rank=False)))
        (own.folder / "train.py").unlink()
        (own.folder / "settings.json").write_text("{}\n")
        del own.environ["DSGEN_RUN_DIR"]
        own.run_dir = tmp_path / "runs" / "tiny" / "001"
        return own

    def test_its_last_run_is_gone_on_from(self, own: Experiment) -> None:
        code, out, _ = _launch(own, "experiment", "--resume")
        assert code == 0
        assert "no earlier run left anything to go on from: starting from the beginning" in out
        assert (own.run_dir / "saw-0").read_text() == "nothing"
        code, out, _ = _launch(own, "experiment", "--resume")
        assert code == 0
        assert "going on from runs/tiny/001, which holds saw-0, saw-1: dsgen knows no checkpoint there" in out
        assert (own.run_dir.parent / "002" / "saw-1").read_text() == str(own.run_dir)

    def test_it_goes_on_in_place(self, own: Experiment) -> None:
        assert _launch(own, "experiment")[0] == 0
        code, out, _ = _launch(own, "runs/tiny/001", "--resume")
        assert code == 0
        assert "(DSGEN_RESUME)" in out
        assert (own.run_dir / "saw-0").read_text() == "auto"

    def test_where_its_output_is(self, own: Experiment) -> None:
        _, out, _ = _launch(own, "experiment")
        assert "finished: the script ended without an error and wrote no report.json" in out
        assert "output of the script: runs/tiny/001/logs/launcher.log" in out
        assert "the script is heard" in (own.run_dir / "logs" / "launcher.log").read_text()

    def test_it_never_finished(self, own: Experiment) -> None:
        code, out, _ = _launch(own, "experiment", OWN_EVENTS='{"event":"plan","steps":9}')
        assert code == 0
        assert "but without runtime.finish: it told of 0 of 9 steps" in out
        assert "finished:" not in out

    def test_its_settings_are_gone(self, own: Experiment) -> None:
        (own.folder / "settings.json").unlink()
        code, _, err = _launch(own, "experiment")
        assert code == 2
        assert "is no rendered folder: it has no settings.json" in err


class TestFailure:
    def test_the_first_rank_and_its_message(self, job: Experiment) -> None:
        code, _, err = _launch(job, "experiment", FAKE_DO="wait,exit3")
        assert code == 1
        assert "failed: rank 1: ValueError: rank 1 is unhappy" in err
        assert "log: runs/tiny/001/logs/rank-1.log" in err

    def test_a_killed_rank(self, job: Experiment) -> None:
        code, _, err = _launch(job, "experiment", FAKE_DO="wait,die")
        assert code == 1
        assert "a rank was killed (signal 9)" in err
        assert "dmesg" in err

    def test_a_refusal_of_launch_sh(self, job: Experiment) -> None:
        code, _, err = _launch(job, "experiment", MASTER_PORT="x")
        assert code == 1
        assert "failed: no usable port for rank 0" in err

    def test_a_run_that_says_nothing(self, job: Experiment) -> None:
        code, _, err = _launch(job, "experiment", FAKE_DO="silent")
        assert code == 1
        assert "does not say that training ended" in err

    def test_what_launch_sh_remarks_is_shown(self, job: Experiment) -> None:
        code, out, _ = _launch(job, "experiment", DS_ACCELERATOR="npu")
        assert code == 0
        assert "DS_ACCELERATOR=npu of your shell is replaced by cpu" in out


class TestSignals:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
    def test_ranks_save_and_stop(self, job: Experiment, number: signal.Signals, code: int) -> None:
        process = _start(job, "experiment", FAKE_DO="wait", FAKE_SAVE_SECONDS="1")
        ranks = job.up()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == code
        assert "Traceback" not in err
        assert "the ranks save and stop" in out
        assert "stopped after step 3 of 9" in out
        assert "go on with: dsgen launch runs/tiny/001 --resume" in out
        assert not any(alive(pid) for pid in ranks)

    def test_a_second_one_ends_them_at_once(self, job: Experiment) -> None:
        process = _start(job, "experiment", FAKE_DO="wait", FAKE_SAVE_SECONDS="60")
        ranks = job.up()
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=15)
        assert process.returncode == 130
        assert "stopped before the ranks could save" in err
        assert not any(alive(pid) for pid in ranks)

    def test_when_dsgen_is_killed_the_ranks_save_and_stop(self, job: Experiment) -> None:
        process = _start(job, "experiment", FAKE_DO="wait")
        ranks = job.up()
        process.kill()
        process.communicate(timeout=15)
        wait_for(lambda: not any(alive(pid) for pid in ranks))
        assert (job.run_dir / "saved-0").exists()


class TestTerminal:
    def _watch(self, job: Experiment, **environ: str) -> str:
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(job.folder.parent)
            command = [sys.executable, "-m", "dsgen", "launch", "experiment"]
            os.execvpe(command[0], command, job.environ | {"TERM": "xterm", "COLUMNS": "100"} | environ)
        if environ.get("FAKE_DO") == "wait":
            job.up()
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
        os.waitpid(pid, 0)
        os.close(terminal)
        return output.decode()

    def test_a_bar_is_drawn(self, job: Experiment) -> None:
        shown = self._watch(job)
        assert "\x1b[" in shown
        assert "3/9" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
        assert "finished: 3 steps" in shown

    def test_no_color(self, job: Experiment) -> None:
        shown = self._watch(job, NO_COLOR="1")
        colours = [code for code in re.findall(r"\x1b\[([0-9;]*)m", shown) if re.search(r"(^|;)(3|4|9|10)\d", code)]
        assert colours == []

    def test_ctrl_c(self, job: Experiment) -> None:
        assert "stopped after step 3 of 9" in self._watch(job, FAKE_DO="wait")


class TestDryRun:
    def test_a_recipe(self, job: Experiment) -> None:
        before = sorted(job.folder.parent.rglob("*"))
        code, out, err = _launch(job, str(TINY), "--dry-run", "--set", "hardware.per_node=1")
        assert code == 0, err
        assert f"export DSGEN_RUN_DIR={job.folder.parent}/runs/tiny-cpu/001" in out
        assert f"export DSGEN_BASE_DIR={TINY.parent}" in out
        assert "export DS_ACCELERATOR=cpu" in out
        command = out.splitlines()[-1]
        assert "-m deepspeed.launcher.runner --no_local_rank" in command
        assert "--num_gpus 1" in command
        assert f"{job.folder.parent}/runs/tiny-cpu/001/train.py --run-dir" in command
        assert sorted(job.folder.parent.rglob("*")) == before

    def test_an_ascend_recipe_on_a_machine_without_npus(self, job: Experiment) -> None:
        """The command is shown, and the exit code says that it would be refused here."""
        code, out, err = _launch(job, str(TINY.with_name("tiny-npu.yaml")), "--dry-run")
        assert code == 1
        assert "export DS_ACCELERATOR=npu" in out
        assert "there is no CANN here" in err
        assert "so it would be refused on this machine" in err

    def test_a_refusal_of_launch_sh_too(self, job: Experiment) -> None:
        recipe = str(TINY.with_name("tiny-npu.yaml"))
        code, _, err = _launch(job, recipe, "--dry-run", ASCEND_RT_VISIBLE_DEVICES="1,0")
        assert code == 1
        assert "the numbers must ascend" in err

    def test_a_folder(self, job: Experiment) -> None:
        code, out, _ = _launch(job, "experiment", "--dry-run", "--run-dir", "a b")
        assert code == 0
        assert f"{job.folder.parent}/a\\ b/train.py" in out
        assert not (job.folder.parent / "a b").exists()


class TestMemory:
    """Two ranks on a host of 1 GiB: each rank's process alone takes that."""

    @pytest.fixture
    def too_large(self, job: Experiment) -> str:
        recipe = job.folder.parent / "large.yaml"
        recipe.write_text(f"extends: {TINY}\nname: large\nhardware: {{host_memory: 1GiB}}\n")
        return str(recipe)

    def test_a_job_that_does_not_fit_is_refused(self, job: Experiment, too_large: str) -> None:
        code, out, err = _launch(job, too_large)
        assert code == 1
        assert out == ""
        assert "error: the job does not fit: a node has 1.00 GiB and " in err
        assert "of host memory (largest part: processes)" in err
        assert "--force starts it anyway" in err
        assert not (job.folder.parent / "runs").exists()

    def test_a_dry_run_says_that_it_would_be(self, job: Experiment, too_large: str) -> None:
        code, out, err = _launch(job, too_large, "--dry-run")
        assert code == 1
        assert out.splitlines()[0] == "# memory estimate: does not fit"
        assert "-m deepspeed.launcher.runner" in out.splitlines()[-1]
        assert "error: the job does not fit" in err and err.rstrip().endswith("so it would be refused")

    def test_force_starts_it(self, job: Experiment, too_large: str) -> None:
        code, out, err = _launch(job, too_large, "--dry-run", "--force")
        assert code == 0, err
        assert out.splitlines()[0] == "# memory estimate: does not fit"
        assert "does not fit" not in err

    def test_an_estimate_goes_from_run_to_run(self, job: Experiment) -> None:
        """And is none of what the user's own script may have left there."""
        from dsgen.launch.expected import expect, keep
        from dsgen.launch.run_folder import left_by_script
        from dsgen.launch.source import read_source

        expected = expect(read_source(TINY, ()), TINY)
        assert expected is not None
        keep(expected, read_source(job.folder, ()), job.folder)
        code, out, _ = _launch(job, "experiment")
        assert code == 0
        assert out.startswith(f"memory estimate: {expected.said.verdict} (made when this run was first started)\n")
        kept = (job.folder / "estimate.json").read_text()
        assert (job.run_dir / "estimate.json").read_text() == kept
        assert "estimate.json" not in left_by_script(job.run_dir)
        assert _launch(job, "runs/tiny/001", "--resume")[0] == 0

    def test_a_profile_is_for_recipes(self, job: Experiment) -> None:
        code, _, err = _launch(job, "experiment", "--profile", "none")
        assert code == 2
        assert "--profile is for estimating a recipe" in err

    def test_options_reach_the_launch_after_a_bootstrap(self) -> None:
        from dsgen.launch.command import Request

        request = Request(path=Path("r.yaml"), profile="p.yaml", force=True, resume=True)
        assert request.arguments() == ["--resume", "--profile=p.yaml", "--force", "--", "r.yaml"]


class TestWrongUse:
    def test_nothing_there(self, job: Experiment) -> None:
        code, _, err = _launch(job, "no-such-recipe.yaml")
        assert code == 2
        assert "no-such-recipe.yaml" in err

    def test_a_folder_that_was_not_rendered(self, job: Experiment) -> None:
        (job.folder / "train.py").unlink()
        code, _, err = _launch(job, "experiment")
        assert code == 2
        assert "is no rendered folder: it has no train.py" in err

    def test_set_on_a_folder(self, job: Experiment) -> None:
        code, _, err = _launch(job, "experiment", "--set", "zero.stage=3")
        assert code == 2
        assert "--set changes a recipe" in err

    @pytest.mark.parametrize(
        "script", ["echo\n", "name=../../up\nkind=cpu\nper_node=2\n", "name='\nkind=cpu\nper_node=2\n"]
    )
    def test_a_script_that_says_nothing_of_the_job(self, job: Experiment, script: str) -> None:
        (job.folder / "launch.sh").write_text(script)
        code, _, err = _launch(job, "experiment")
        assert code == 2
        assert "does not say name, kind and per_node" in err

    def test_every_fault_of_a_machine_and_a_recipe_at_once(self, job: Experiment) -> None:
        recipe = job.folder.parent / "r.yaml"
        recipe.write_text(f"extends: {TINY.with_name('tiny-npu.yaml')}\nname: r\ntokenizer: ./nowhere\n")
        code, _, err = _launch(job, str(recipe))
        assert code == 1
        named = set(re.findall(r"^error\[([\w.]+)\]", err, re.MULTILINE))
        assert {"cann.environment", "container.devices", "inputs.tokenizer"} <= named
        assert not (job.folder.parent / "runs").exists()


def test_several_nodes_are_read_from_the_script(experiment: Make) -> None:
    from dsgen.launch.source import read_source

    job = experiment(make_plan(nodes=3, per_node=8, kind="npu"), name="big")
    read = read_source(job.folder, ()).job
    assert (read.name, read.kind, read.nodes, read.per_node) == ("tiny", "npu", 3, 8)


def test_launching_imports_nothing_heavy() -> None:
    code = (
        "import importlib, pkgutil, sys, dsgen.launch, dsgen.cli.launch\n"
        "for module in pkgutil.iter_modules(dsgen.launch.__path__):\n"
        "    importlib.import_module('dsgen.launch.' + module.name)\n"
        "assert not {'torch', 'deepspeed', 'transformers', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)})
