"""What came of a run: its report, or the first rank that failed and what it said. Nothing here prints."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsgen.ascend_sim.environment import is_simulated
from dsgen.catalog.failures import Failure as Known
from dsgen.catalog.failures import recognise
from dsgen.launch.process import LAUNCHER_LOG

LAST_LINES = 15
_RECENT = 200
"""Lines at the end of a log in which a known failure is looked for."""

_NOISE = re.compile(r"^\[\d{4}-\d\d-\d\d .*\[(INFO|WARNING)\]|^\s*$")
_KILLED = re.compile(r"return code = -9\b|exitcode\s*:\s*-9\b|Signal 9 \(SIGKILL\)")
_PEER_GONE = re.compile(
    r"connection (was )?(closed|reset)( by (remote )?peer)?|broken pipe|socket closed|remote process exited",
    re.IGNORECASE,
)
_OWN = "launch.sh: "
_LEAST_FREE = 1 << 16
"""Bytes. A rank that fails on a full disk needs less to say so."""
_CLOCKS = 60
"""Seconds that clocks of nodes may differ. Every rank removes its own old error when it starts."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a run failed, as far as its files tell."""

    message: str
    help: str = ""
    rank: int | None = None
    log: Path | None = None
    """The file that tells most."""
    last_lines: tuple[str, ...] = ()
    """The end of it."""


def read_report(run_dir: Path) -> dict[str, Any] | None:
    """The report of the run that ended in `run_dir`; None when none was written since it was started."""
    path = run_dir / "report.json"
    try:
        if path.stat().st_mtime_ns < (run_dir / ".started").stat().st_mtime_ns:
            return None
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def oom_kills() -> int | None:
    """How many processes the kernel has killed for lack of memory since it started; None where it does not count."""
    try:
        match = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) if match else None


def find_failure(run_dir: Path, code: int, *, log_start: int = 0, oom_before: int | None = None) -> Failure:
    """Why the run in `run_dir` failed, whose launch.sh ended with `code`.

    `log_start` is where this attempt begins in the launcher's log, `oom_before` what `oom_kills` said before it.
    """
    launcher_log = run_dir / LAUNCHER_LOG
    said = _tail(launcher_log, log_start)
    if code == 247 or any(_KILLED.search(line) for line in said):
        return _killed(run_dir, "a rank was killed (signal 9)", said, oom_before)
    error = _first_error(run_dir)
    if error is None and shutil.disk_usage(run_dir).free < _LEAST_FREE:
        return Failure(
            message=f"no room is left on the disk of {run_dir}, and no rank could write a message",
            help="the checkpoints of this run are whole: make room and go on with --resume",
            log=launcher_log,
        )
    if error is not None and _lost_a_peer(run_dir, error) and _silent_ranks(run_dir):
        # The launcher reports the first death that it notices, which may be that of a rank that only lost its peer.
        what = f"rank {error['rank']} lost its connection to a rank that ended without a message (killed)"
        return _killed(run_dir, what, said, oom_before)
    if error is not None:
        return _of_rank(run_dir, error)
    own = [line[len(_OWN) :] for line in said if line.startswith(_OWN)]
    if own and own[-1] == [line for line in said if line.strip()][-1][len(_OWN) :]:
        return Failure(message=own[-1], log=launcher_log)
    known = _recognise("\n".join(said[-_RECENT:]))
    logs = "what the ranks printed stands in logs/rank-*.log of the run folder" if _silent_ranks(run_dir) else ""
    return Failure(
        message=known.meaning if known else f"the launcher ended with exit code {code}, and no rank left a message",
        help=known.help if known else logs,
        log=launcher_log,
        last_lines=_last(said),
    )


def _of_rank(run_dir: Path, error: dict[str, Any]) -> Failure:
    rank = error["rank"]
    log = run_dir / "logs" / f"rank-{rank}.log"
    help = str(error.get("help") or "")
    message = _describe(error)
    known = None if help else _known(run_dir, error)
    if known is not None:
        # The text of the library, shortened, for those who search for it.
        first = message.strip().splitlines()[0]
        silent = _silent_ranks(run_dir)
        if known.consequence and silent:
            ranks = ", ".join(map(str, sorted(silent)[:8]))
            help = f"rank {ranks} left no message, so it hangs, is slow or was killed: see its log; "
        message, help = f"{known.meaning} ({first if len(first) <= 120 else f'{first[:117]}...'})", help + known.help
    return Failure(rank=rank, message=message, help=help, log=log, last_lines=() if help else _last(_tail(log)))


def _lost_a_peer(run_dir: Path, error: dict[str, Any]) -> bool:
    known = _known(run_dir, error)
    return bool(_PEER_GONE.search(str(error.get("message")))) or (known is not None and known.code == "hccl-remote")


def _known(run_dir: Path, error: dict[str, Any]) -> Known | None:
    """What is known of a rank's error: by its message and trace, else by the end of its log."""
    said = _recognise(f"{error.get('message')}\n{error.get('traceback')}")
    return said or _recognise("\n".join(_tail(run_dir / "logs" / f"rank-{error['rank']}.log")[-_RECENT:]))


def _recognise(text: str) -> Known | None:
    return recognise(text, simulated=is_simulated(os.environ))


def _killed(run_dir: Path, what: str, said: list[str], oom_before: int | None) -> Failure:
    silent = _silent_ranks(run_dir)
    rank = min(silent) if len(silent) == 1 else None
    now = oom_kills()
    proven = oom_before is not None and now is not None and now > oom_before
    log = run_dir / "logs" / f"rank-{rank}.log" if rank is not None else run_dir / LAUNCHER_LOG
    return Failure(
        rank=rank,
        message=f"{what}, "
        + (
            "and the kernel ended a process for lack of host memory meanwhile"
            if proven
            else "most likely by the kernel, because the host's memory was used up"
        ),
        help="look at `dmesg | grep -i oom` and at the memory limit of the container; need less host memory: no "
        "offload of parameters or optimizer, fewer ranks on a node, a smaller micro batch or sequence",
        log=log,
        last_lines=_last(_tail(log) if rank is not None else said),
    )


def _errors(run_dir: Path) -> list[dict[str, Any]]:
    started = run_dir / ".started"
    since = started.stat().st_mtime if started.exists() else 0.0
    errors = []
    for path in (run_dir / "errors").glob("rank-*.json"):
        try:
            error = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(error["rank"], int) and float(error["time"]) >= since - _CLOCKS:
                errors.append(error)
        except (OSError, ValueError, KeyError, TypeError):
            # Half-written, or not of the runtime's making.
            continue
    return sorted(errors, key=lambda error: (float(error["time"]), error["rank"]))


def _first_error(run_dir: Path) -> dict[str, Any] | None:
    """The first rank's error that is not only what the failure of another one did to it."""
    errors = _errors(run_dir)
    causes = [error for error in errors if not ((known := _known(run_dir, error)) and known.consequence)]
    return next(iter(causes or errors), None)


def _silent_ranks(run_dir: Path) -> set[int]:
    """Ranks that left a log and no error."""
    logs = [re.fullmatch(r"rank-(\d+)\.log", path.name) for path in (run_dir / "logs").glob("rank-*.log")]
    return {int(match[1]) for match in logs if match} - {error["rank"] for error in _errors(run_dir)}


def _describe(error: dict[str, Any]) -> str:
    message = str(error.get("message") or "").strip() or "no message"
    kind = error.get("type")
    return message if kind in (None, "RuntimeProblem") else f"{kind}: {message}"


def _tail(path: Path, start: int = 0, limit: int = 2**18) -> list[str]:
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(start, size - limit))
            return stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _last(lines: list[str]) -> tuple[str, ...]:
    telling = [line.rstrip() for line in lines if not _NOISE.match(line)]
    return tuple((telling or lines)[-LAST_LINES:])
