"""What the person who launches sees: a progress bar on a terminal, one plain line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from dsgen.launch.progress import Progress

LINES_PER_RUN = 20
"""About so many lines of progress are printed where there is no terminal."""


class Display(Protocol):
    """Shows one run while it goes on; a context manager."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def note(self, text: str) -> None:
        """One line that stays."""

    def update(self, progress: Progress, building: Sequence[str]) -> None:
        """Show where the run is; `building` are operators that are being built."""


def choose_display() -> Display:
    """A bar when standard output is a terminal that can draw one, plain lines otherwise."""
    from rich.console import Console

    console = Console(highlight=False)
    return _Bar() if console.is_terminal and not console.is_dumb_terminal else Lines()


def building_text(operators: Sequence[str]) -> str:
    """Why nothing seems to happen during the first minutes."""
    return f"building DeepSpeed's {', '.join(operators)} (once on this machine, about a minute each)"


class Lines:
    """Plain text: phases, and about LINES_PER_RUN lines of steps."""

    def __init__(self) -> None:
        self._phase = ""
        self._shown = 0
        self._building: set[str] = set()

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def note(self, text: str) -> None:
        """Print one line at once; a reader that went away ends nothing."""
        # The run goes on; its files tell the rest.
        with suppress(OSError):
            print(text, flush=True)

    def update(self, progress: Progress, building: Sequence[str]) -> None:
        """Print what changed."""
        new = [name for name in building if name not in self._building]
        if new:
            self._building |= set(new)
            self.note(building_text(new))
        if progress.phase not in (self._phase, "checkpoint", "done"):
            self._phase = progress.phase
            self.note(progress.describe_phase())
        every = max(1, (progress.steps or 1) // LINES_PER_RUN)
        step = progress.step
        if step > self._shown and (step // every > self._shown // every or step == progress.steps or not self._shown):
            self._shown = step
            self.note(f"step {step}/{progress.steps or '?'}  {progress.describe_step()}")


class _Bar:
    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("starting the ranks", total=None, numbers="")

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def note(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, progress: Progress, building: Sequence[str]) -> None:
        self._bar.update(
            self._task,
            description=building_text(building) if building else progress.describe_phase(),
            total=progress.steps,
            completed=progress.step,
            numbers=progress.describe_step(),
        )
