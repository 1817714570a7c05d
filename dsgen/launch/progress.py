"""How far a run is, from the files that rank 0 writes. Nothing here prints."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Follower:
    """Reads the lines that were added to a growing file since the last time."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path = path
        self._offset = start
        self._rest = b""

    @classmethod
    def from_end(cls, path: Path) -> Follower:
        """A follower that passes over what stands in the file already."""
        return cls(path, path.stat().st_size if path.exists() else 0)

    def lines(self) -> list[str]:
        """Whole new lines; a file that was made shorter or replaced is read from where it ended before, at most."""
        try:
            with self.path.open("rb") as stream:
                size = stream.seek(0, 2)
                if size < self._offset:
                    self._offset, self._rest = size, b""
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def rows(self) -> list[dict[str, Any]]:
        """New lines that are JSON objects; others are passed over."""
        rows = []
        for line in self.lines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                rows.append(row)
        return rows


PHASES = {
    "start": "starting the ranks",
    "data": "reading the data",
    "model": "building the model",
    "initialize": "initializing DeepSpeed",
    "train": "training",
    "checkpoint": "saving a checkpoint",
    "done": "done",
}


@dataclass
class Progress:
    """What is known of a run by now."""

    phase: str = "start"
    steps: int | None = None
    """Steps of the whole run."""
    parameters: int | None = None
    row: dict[str, Any] = field(default_factory=dict)
    """The newest row of metrics."""
    checkpoint: str | None = None

    @property
    def step(self) -> int:
        """Steps done."""
        return int(self.row.get("step", 0))

    def take_event(self, event: dict[str, Any]) -> None:
        """Take in a line of events.jsonl; kinds that are not known are passed over."""
        kind = event.get("event")
        if kind == "phase":
            self.phase = str(event.get("phase", self.phase))
        elif kind == "plan":
            self.steps = event.get("steps")
            self.parameters = event.get("parameters")
        elif kind == "checkpoint":
            self.checkpoint = event.get("path")

    def take_metrics(self, row: dict[str, Any]) -> None:
        """Take in a line of metrics.jsonl."""
        self.row = row

    def describe_phase(self) -> str:
        """The phase in words."""
        return PHASES.get(self.phase, self.phase)

    def describe_step(self) -> str:
        """The newest step in words: loss, learning rate, speed."""
        parts = []
        for key, text in (("loss", "loss {:.4f}"), ("lr", "lr {:.2e}"), ("tokens_per_second", "{:,.0f} tokens/s")):
            value = self.row.get(key)
            if isinstance(value, (int, float)):
                parts.append(text.format(value))
            elif key == "loss" and key in self.row:
                parts.append("loss not finite")
        return "  ".join(parts)
