"""Why a run failed, from its files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from dsgen.launch import outcome, summary
from dsgen.launch.outcome import find_failure, read_report


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "errors").mkdir()
    (tmp_path / ".started").touch()
    return tmp_path


def _error(run_dir: Path, rank: int, seconds: float, message: str, **more: str) -> None:
    fields = {"rank": rank, "time": time.time() + seconds, "type": "ValueError", "message": message, "traceback": "T"}
    (run_dir / "errors" / f"rank-{rank}.json").write_text(json.dumps(fields | more))
    (run_dir / "logs" / f"rank-{rank}.log").write_text(f"start\nrank {rank} says {message}\n")


def test_the_first_rank_that_failed_is_the_one_to_look_at(run_dir: Path) -> None:
    _error(run_dir, 0, 2.0, "peer closed the connection")
    _error(run_dir, 1, 1.0, "bad sample")
    _error(run_dir, 2, 3.0, "peer closed the connection")
    failure = find_failure(run_dir, 1)
    assert (failure.rank, failure.message) == (1, "ValueError: bad sample")
    assert failure.log == run_dir / "logs" / "rank-1.log"
    assert failure.last_lines == ("start", "rank 1 says bad sample")


def test_errors_of_an_earlier_attempt_do_not_count(run_dir: Path) -> None:
    _error(run_dir, 3, -3600, "long ago")
    _error(run_dir, 0, 1.0, "now")
    (run_dir / "errors" / "rank-1.json").write_text('{"rank": 1, "time"')
    (run_dir / "errors" / "rank-2.json").write_text('{"rank": "x", "time": 99999999999}')
    assert find_failure(run_dir, 1).rank == 0


def test_a_known_problem_needs_no_log_excerpt(run_dir: Path) -> None:
    _error(run_dir, 0, 1.0, "no such file", type="RuntimeProblem", help="write another")
    failure = find_failure(run_dir, 2)
    assert (failure.message, failure.help, failure.last_lines) == ("no such file", "write another", ())


@pytest.mark.parametrize(
    ("code", "log"),
    [
        (247, "anything\n"),
        (1, "[2026-01-01 00:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['p'] exits with return code = -9\n"),
        (1, "  exitcode  : -9 (pid: 12)\n"),
        (1, "  traceback : Signal 9 (SIGKILL) received by PID 12\n"),
    ],
)
def test_a_killed_rank_is_most_likely_a_lack_of_memory(run_dir: Path, code: int, log: str) -> None:
    (run_dir / "logs" / "launcher.log").write_text(log)
    (run_dir / "logs" / "rank-1.log").write_text("the last words\n")
    _error(run_dir, 0, 1.0, "peer closed the connection")
    failure = find_failure(run_dir, code)
    assert "killed (signal 9), most likely by the kernel" in failure.message
    assert "host memory" in failure.help
    assert (failure.rank, failure.last_lines) == (1, ("the last words",))


@pytest.mark.parametrize(
    "message",
    [
        "[/x/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242",
        "NCCL error: remote process exited or there was a network error",
        "[Errno 32] Broken pipe",
    ],
)
def test_a_lost_peer_is_the_one_that_said_nothing(run_dir: Path, message: str) -> None:
    (run_dir / "logs" / "launcher.log").write_text("exits with return code = 1\n")
    _error(run_dir, 0, 1.0, message)
    assert find_failure(run_dir, 1).message == f"ValueError: {message}"
    (run_dir / "logs" / "rank-1.log").write_text("the last words\n")
    failure = find_failure(run_dir, 1)
    assert failure.message.startswith(
        "rank 0 lost its connection to a rank that ended without a message (killed), most"
    )
    assert (failure.rank, failure.last_lines) == (1, ("the last words",))
    (run_dir / "logs" / "rank-2.log").write_text("ended by the launcher\n")
    assert find_failure(run_dir, 1).rank is None


def test_the_kernels_own_count_makes_it_certain(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run_dir / "logs" / "launcher.log").write_text("return code = -9\n")
    monkeypatch.setattr(outcome, "oom_kills", lambda: 5)
    assert "the kernel ended a process for lack" in find_failure(run_dir, 247, oom_before=4).message
    assert "most likely" in find_failure(run_dir, 247, oom_before=5).message


def test_what_launch_sh_says_last_is_the_reason(run_dir: Path) -> None:
    (run_dir / "logs" / "launcher.log").write_text("launch.sh: A=1 stays\nlaunch.sh: no CANN: install it\n")
    failure = find_failure(run_dir, 1)
    assert failure.message == "no CANN: install it"
    (run_dir / "logs" / "launcher.log").write_text("launch.sh: A=1 stays\nTraceback\nImportError: x\n")
    failure = find_failure(run_dir, 1)
    assert failure.message == "the launcher ended with exit code 1, and no rank left a message"
    assert failure.last_lines == ("launch.sh: A=1 stays", "Traceback", "ImportError: x")


def test_where_ranks_without_a_message_printed(run_dir: Path) -> None:
    (run_dir / "logs" / "launcher.log").write_text("exits with return code = 3\n")
    assert find_failure(run_dir, 3).help == ""
    (run_dir / "logs" / "rank-0.log").write_text("the last words\n")
    assert "logs/rank-*.log" in find_failure(run_dir, 3).help


def test_only_this_attempt_of_the_launchers_log_counts(run_dir: Path) -> None:
    log = run_dir / "logs" / "launcher.log"
    log.write_text("exits with return code = -9\n")
    start = log.stat().st_size
    with log.open("a") as stream:
        stream.write("something else\n")
    assert find_failure(run_dir, 1, log_start=start).last_lines == ("something else",)


def test_an_empty_run_folder_still_gives_an_answer(tmp_path: Path) -> None:
    failure = find_failure(tmp_path, 5)
    assert "exit code 5" in failure.message
    assert failure.last_lines == ()
    assert summary.failed(failure, tmp_path)


def test_a_report_counts_when_it_is_of_this_run(run_dir: Path) -> None:
    assert read_report(run_dir) is None
    report = run_dir / "report.json"
    report.write_text('{"status": "finished"}')
    assert read_report(run_dir) == {"status": "finished"}
    os.utime(report, (1, 1))
    assert read_report(run_dir) is None
    report.write_text("[]")
    assert read_report(run_dir) is None


def test_what_a_log_holds_cannot_move_the_cursor() -> None:
    assert summary.printable("\x1b[31mred\x1b[0m\ttab \x07\r bell 世界") == "red\ttab \\x07\\r bell 世界"


def test_summaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = {
        "status": "finished",
        "steps": 80,
        "planned_steps": 80,
        "first_loss": 5.5,
        "last_loss": 2.25,
        "tokens": 163840,
        "seconds": 41.2,
        "tokens_per_second": 3976.0,
        "device_peak_bytes": None,
        "host_peak_bytes": 2**30,
        "checkpoint": str(tmp_path / "runs/a/001/checkpoints/step-00000080"),
    }
    folder = tmp_path / "runs" / "a" / "001"
    assert summary.ended_well(report, folder) == [
        "finished: 80 steps, loss 5.5000 -> 2.2500, 163,840 tokens in 41 s (3,976 tokens/s)",
        "peak memory: 1.00 GiB on the host",
        "checkpoint: runs/a/001/checkpoints/step-00000080",
        "run folder: runs/a/001",
    ]
    stopped = summary.ended_well(report | {"status": "stopped", "steps": 7}, folder)
    assert stopped[0].startswith("stopped after step 7 of 80, loss")
    assert stopped[-1] == "go on with: dsgen launch runs/a/001 --resume"
    assert summary.ended_well({"status": "finished", "steps": 1}, folder) == [
        "finished: 1 steps",
        "run folder: runs/a/001",
    ]
    own = summary.ended_well({"status": "finished", "steps": 1}, folder, own_script=True)
    assert own[1] == "output of the script: runs/a/001/logs/launcher.log"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "rank-0.log").touch()
    own = summary.ended_well({"status": "finished", "steps": 1}, folder, own_script=True)
    assert own[1] == "output of the script: runs/a/001/logs/rank-0.log, and of the other ranks beside it"


def test_a_script_that_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "a" / "001"
    folder.mkdir(parents=True)
    (folder / ".started").touch()
    assert summary.stopped_hard(folder)[0].startswith("stopped before the ranks could save")
    assert summary.stopped_hard(folder, own_script=True)[0] == (
        "stopped; the script wrote no report.json, so what it saved is not known"
    )
    assert "go on with" not in "".join(summary.stopped_hard(folder, own_script=True))
    (folder / "best.pt").touch()
    assert summary.stopped_hard(folder, own_script=True)[-1] == "go on with: dsgen launch runs/a/001 --resume"


OOM = (
    "NPU out of memory. Tried to allocate 1.50 GiB (NPU 0; 2.00 GiB total capacity; 1.20 GiB already allocated; "
    "1.20 GiB current active; 0.50 GiB free; 1.50 GiB reserved in total by PyTorch).If reserved memory is >> allocated"
)
TIMEOUT = "HCCL function error: HcclAllReduce(...), error code is 9\n[ERROR] ERR02200 DIST call hccl api failed."


def test_a_known_failure_is_explained(run_dir: Path) -> None:
    _error(run_dir, 1, 1.0, OOM, type="OutOfMemoryError")
    failure = find_failure(run_dir, 1)
    assert failure.rank == 1
    assert failure.message.startswith("NPU 0 has no room for 1.50 GiB more: 1.20 GiB of 2.00 GiB are allocated")
    assert "activation_checkpointing: full" in failure.help
    assert failure.last_lines == ()


def test_an_operator_that_the_simulated_npu_lacks(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "aclnnForeachMulScalar or aclnnForeachMulScalarGetWorkspaceSize not in libopapi.so, or it was not found."
    _error(run_dir, 0, 1.0, message, type="RuntimeError")
    monkeypatch.setenv("DSGEN_SIMULATED_NPU", "1")
    failure = find_failure(run_dir, 1)
    assert failure.message.startswith(
        "the simulated NPU does not know the operator aclnnForeachMulScalar: that is a lack"
    )
    assert failure.help.startswith("set DSGEN_SIMULATED_NPU_OPS=all")
    monkeypatch.delenv("DSGEN_SIMULATED_NPU")
    assert find_failure(run_dir, 1).message.startswith("CANN has no operator aclnnForeachMulScalar here")


def test_the_cause_counts_not_the_rank_that_waited_for_it(run_dir: Path) -> None:
    _error(run_dir, 0, 1.0, TIMEOUT, type="RuntimeError")
    _error(run_dir, 1, 9.0, "bad sample")
    assert find_failure(run_dir, 1).rank == 1


def test_a_rank_that_waited_for_a_silent_one(run_dir: Path) -> None:
    """The other left no message: it may hang, and nothing says that it was killed."""
    _error(run_dir, 0, 1.0, TIMEOUT, type="RuntimeError")
    (run_dir / "logs" / "rank-1.log").write_text("step 3\n")
    failure = find_failure(run_dir, 1)
    assert failure.rank == 0
    assert failure.help.startswith("rank 1 left no message, so it hangs, is slow or was killed: see its log; ")
    _error(run_dir, 0, 1.0, "HCCL function error: HcclAllReduce(...), error code is 21", type="RuntimeError")
    assert find_failure(run_dir, 1).rank == 1


def test_only_waiting_ranks(run_dir: Path) -> None:
    for rank in (0, 1):
        _error(run_dir, rank, 1.0 + rank, TIMEOUT, type="RuntimeError")
    failure = find_failure(run_dir, 1)
    assert failure.rank == 0
    assert failure.message.startswith("HCCL gave up waiting for another rank (RuntimeError: HCCL function error")
    assert "HCCL_EXEC_TIMEOUT" in failure.help


def test_a_script_without_messages_is_explained_by_the_launchers_log(run_dir: Path) -> None:
    (run_dir / "logs" / "launcher.log").write_text(f"[rank0]: Traceback\n[rank0]: torch.OutOfMemoryError: {OOM}\n")
    failure = find_failure(run_dir, 1)
    assert failure.message.startswith("NPU 0 has no room")
    assert failure.last_lines
