"""The files that tell how a run goes: metrics, events, errors, report. All of them strict JSON."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any, TextIO

METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"
REPORT = "report.json"


def strict(row: dict[str, Any]) -> dict[str, Any]:
    """`row` with numbers that JSON does not know (NaN, infinities) as null, and then `nonfinite: true`."""
    broken = {key for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
    if not broken:
        return row
    return {**row, **dict.fromkeys(broken), "nonfinite": True}


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` so that no reader, at no moment and after no crash, sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names that were just created or moved in `folder` survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def now() -> float:
    """Seconds since 1970, to the millisecond."""
    return round(time.time(), 3)


def holds_a_run(run_dir: Path) -> bool:
    """Whether a run has trained in this folder."""
    metrics = run_dir / METRICS
    return metrics.exists() and metrics.stat().st_size > 0


class Journal:
    """Metrics, events and report of one run; only rank 0 writes them, on the other ranks every call does nothing."""

    def __init__(self, run_dir: Path, *, active: bool) -> None:
        self.run_dir = run_dir
        self._active = active
        self._events: TextIO | None = None
        self._metrics: TextIO | None = None
        self.first_loss: float | None = None
        self.last_loss: float | None = None
        if active:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._events = (run_dir / EVENTS).open("a", buffering=1, encoding="utf-8")

    def event(self, event: str, **fields: Any) -> None:
        """Append one line to events.jsonl: `event`, the fields, the time."""
        if self._events is not None:
            self._events.write(json.dumps(strict({"event": event, **fields, "time": now()})) + "\n")

    def phase(self, phase: str) -> None:
        """Tell what the run does from now on: data, model, initialize, train, checkpoint or done."""
        self.event("phase", phase=phase)

    def open_metrics(self, keep_steps: int) -> None:
        """Make metrics.jsonl ready for the step after `keep_steps`: later rows and a torn last line are dropped."""
        if not self._active:
            return
        path = self.run_dir / METRICS
        rows = [row for row in read_rows(path) if row["step"] <= keep_steps]
        if rows:
            self.first_loss, self.last_loss = rows[0].get("loss"), rows[-1].get("loss")
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text)
        self._metrics = path.open("a", buffering=1, encoding="utf-8")

    def metrics(self, row: dict[str, Any]) -> None:
        """Append one optimizer step to metrics.jsonl."""
        if self._metrics is not None:
            if self.first_loss is None:
                self.first_loss = row["loss"]
            self.last_loss = row["loss"]
            self._metrics.write(json.dumps(strict({**row, "time": now()})) + "\n")

    def report(self, report: dict[str, Any]) -> None:
        """Write report.json."""
        if self._active:
            write_atomically(self.run_dir / REPORT, json.dumps(strict(report), indent=2) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics.jsonl; a line that a killed process left half-written ends the reading."""
    rows: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                break
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                break
            rows.append(row)
    return rows


def write_error(run_dir: Path, rank: int, error: BaseException, traceback: str) -> None:
    """Leave `errors/rank-N.json` behind for whoever looks why the run ended."""
    write_atomically(
        run_dir / "errors" / f"rank-{rank}.json",
        json.dumps(
            {
                "rank": rank,
                "time": now(),
                "type": type(error).__name__,
                "message": getattr(error, "message", None) or str(error),
                "help": getattr(error, "help", ""),
                "traceback": traceback,
            },
            indent=2,
        )
        + "\n",
    )
