"""One run from a recipe or a rendered folder to its end."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from dsgen.doctor.builds import extensions_root, operators_in_build
from dsgen.findings import DsgenError, ExitCode
from dsgen.launch import outcome, summary
from dsgen.launch.console import Display
from dsgen.launch.process import Launcher, launch_environment
from dsgen.launch.progress import Follower, Progress
from dsgen.launch.run_folder import (
    new_run_folder,
    newest_run_of_script,
    newest_saved_run,
    next_run_folder,
    was_started,
)
from dsgen.launch.source import Source
from dsgen.launch.summary import printable

POLL_SECONDS = 0.25
_OWN_LINE = "launch.sh: "


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run happens, and what train.py is told about an earlier one."""

    folder: Path
    arguments: tuple[str, ...] = ()
    exists: bool = False
    """Whether the folder holds the run already, with its files."""
    earlier: Path | None = None
    """The run to go on from, where one was asked for and is there; the same folder when it goes on in place."""


def choose_place(source: Source, given: Path, run_root: Path, run_dir: Path | None, *, resume: bool) -> Place:
    """The folder of a run; nothing is made yet.

    `given` is what the user named, `run_dir` the folder that they want, if any. With `resume`, a run folder that was
    named goes on in place; a recipe gets a new folder that starts from the newest run of its name that has saved (of
    the user's own script: that can have saved).
    Raises DsgenError when a folder holds what must not be overwritten.
    """
    if run_dir is None and resume and given.is_dir() and was_started(given):
        run_dir = given
    if run_dir is not None:
        return _named_place(source, given, run_dir.absolute(), resume=resume)
    newest = newest_run_of_script if source.job.own_script else newest_saved_run
    earlier = newest(run_root, source.job.name) if resume else None
    folder = next_run_folder(run_root, source.job.name)
    return Place(folder=folder, arguments=("--resume", str(earlier)) if earlier else (), earlier=earlier)


def _named_place(source: Source, given: Path, folder: Path, *, resume: bool) -> Place:
    if folder.exists() and not folder.is_dir():
        raise DsgenError(f"{folder} is a file, not a folder")
    used = folder.is_dir() and any(folder.iterdir())
    if not resume:
        if used:
            raise DsgenError(
                f"{folder} is not empty, and runs overwrite nothing",
                help="go on with the run in it (--resume), or name another folder",
            )
        return Place(folder=folder)
    if used:
        other = source.differs_from(folder)
        if other:
            raise DsgenError(
                f"the run in {folder} was made from other files: {', '.join(other)} would differ",
                help="leave out --run-dir to start a new run from its last checkpoint, or go on with its own files: "
                f"dsgen launch {shlex.quote(str(folder))} --resume",
            )
    return Place(folder=folder, arguments=("--resume", "auto"), exists=used, earlier=folder if used else None)


def make_place(source: Source, place: Place, run_root: Path, *, named: bool) -> Place:
    """Make the run's folder and put the files there. `named`: the user chose it. Raises DsgenError."""
    if place.exists:
        return place
    if named:
        try:
            place.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DsgenError(f"{place.folder} cannot be made: {error.strerror}") from error
    else:
        help = "start from a folder that you can write to, or give --run-dir"
        place = replace(place, folder=new_run_folder(run_root, source.job.name, help=help))
    source.write(place.folder)
    return place


def dry_run(source: Source, place: Place) -> str:
    """The environment and the command of a run, as text; nothing is started or written.

    The rendered launch.sh says them itself. Raises DsgenError with its message when it refuses.
    """
    added = launch_environment(place.folder, source.job.base_dir)
    script = os.fsdecode(source.files["launch.sh"])
    done = subprocess.run(
        ["bash", "-c", script, str(place.folder / "launch.sh"), *place.arguments],
        env={**os.environ, **added, "DSGEN_DRY_RUN": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise DsgenError(lines[-1].removeprefix(_OWN_LINE) if lines else "launch.sh refuses")
    exports = [f"export {name}={shlex.quote(value)}" for name, value in added.items()]
    start = shlex.join(["bash", str(place.folder / "launch.sh"), *place.arguments])
    notes = [f"# {line.removeprefix(_OWN_LINE)}" for line in done.stderr.splitlines()]
    return "\n".join(["# dsgen would start", *exports, start, "# and launch.sh then", *notes, done.stdout.rstrip()])


def run(source: Source, place: Place, display: Display) -> int:
    """Start the job in `place`, show how it goes, and return dsgen's exit code.

    Ctrl-C and TERM let the ranks save and stop; a second one ends them at once.
    """
    oom_before = outcome.oom_kills()
    stop = _StopRequests()
    with stop.handled():
        # Before the display, whose thread must not run while this process forks.
        launcher = Launcher(place.folder, launch_environment(place.folder, source.job.base_dir), place.arguments)
        code, progress = _watch(place.folder, launcher, display, stop)
    report = outcome.read_report(place.folder)
    own_script = source.job.own_script
    if report is not None and (code == 0 or stop.signal is not None):
        _say(summary.ended_well(report, place.folder, own_script=own_script), sys.stdout)
    elif code == 0 and own_script:
        _say(summary.script_ended(place.folder, progress), sys.stdout)
    elif stop.signal is not None:
        _say(summary.stopped_hard(place.folder, own_script=own_script), sys.stderr)
    else:
        failure = outcome.find_failure(place.folder, code, log_start=launcher.log_start, oom_before=oom_before)
        _say(summary.failed(failure, place.folder), sys.stderr)
    if stop.signal is not None:
        return 128 + stop.signal
    return int(ExitCode.OK) if code == 0 else int(ExitCode.FINDINGS)


def _say(lines: Sequence[str], stream: TextIO) -> None:
    # A reader that went away changes nothing about the outcome.
    with suppress(OSError):
        print("\n".join(printable(line) for line in lines), file=stream, flush=True)


class _StopRequests:
    """Signals that ask this process to end, counted."""

    def __init__(self) -> None:
        self.signal: int | None = None
        """The first one."""
        self.count = 0

    @contextmanager
    def handled(self) -> Iterator[None]:
        before: dict[int, Any] = {}
        try:
            for number in map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, self._take)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number
        self.count += 1


def _watch(folder: Path, launcher: Launcher, display: Display, stop: _StopRequests) -> tuple[int, Progress]:
    """Show the run until it ends; the exit code of launch.sh, and how far the run got."""
    progress = Progress()
    events = Follower.from_end(folder / "events.jsonl")
    metrics = Follower.from_end(folder / "metrics.jsonl")
    log = Follower(launcher.log, launcher.log_start)
    extensions = extensions_root()
    forwarded = 0
    with display:
        while True:
            code = launcher.wait(POLL_SECONDS)
            for event in events.rows():
                progress.take_event(event)
            for row in metrics.rows():
                progress.take_metrics(row)
            for line in log.lines():
                if line.startswith(_OWN_LINE):
                    display.note(printable(line.removeprefix(_OWN_LINE)))
            building = operators_in_build(extensions) if progress.step == 0 else []
            display.update(progress, building)
            if code is not None:
                return code, progress
            if forwarded < stop.count:
                forwarded += 1
                launcher.ask_to_stop()
