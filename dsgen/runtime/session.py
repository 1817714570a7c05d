"""One rank of one run, from the command line to the exit code."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import random
import signal
import sys
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from dsgen.runtime.accelerator import choose_accelerator
from dsgen.runtime.arguments import (
    FOLDER_VARIABLE,
    Arguments,
    Ranks,
    environment_arguments,
    hand_run_name,
    parse_arguments,
    read_ranks,
)
from dsgen.runtime.console import Console
from dsgen.runtime.corpus import Corpus, prepare_corpus
from dsgen.runtime.distributed import check_world_size, connect, disconnect
from dsgen.runtime.holders import Activations, find_holders, parts_of
from dsgen.runtime.journal import Journal, holds_a_run, write_atomically, write_error
from dsgen.runtime.memory import MemoryProbe
from dsgen.runtime.problems import RuntimeProblem, as_problem
from dsgen.runtime.settings import Settings, read_settings
from dsgen.runtime.tokens import load_tokenizer

STOP_FILE = "stop"

_MADE_BY_START = frozenset(
    {"arguments", "ranks", "journal", "config", "accelerator", "device", "memory", "corpus", "run_dir", "zero_stage"}
)
"""What a session has only inside its `with` block."""


class Session:
    """A rank's view of the run; `start` makes one.

    Inside the `with` block the process group is up. Leaving it in good order takes the group down; leaving it by an
    exception writes `errors/rank-N.json` and ends the process at once, since other ranks may wait in a collective
    that this one will never join. An exception after the block leaves the same file.
    """

    settings: Settings
    folder: Path
    """Where `train.py` and `ds_config.json` stand."""
    arguments: Arguments
    ranks: Ranks
    console: Console
    journal: Journal
    accelerator: Any
    """DeepSpeed's accelerator object."""
    device: Any
    """torch.device of this rank."""
    memory: MemoryProbe
    corpus: Corpus | None
    """None where the recipe of the user's own script names no text."""
    ds_config: Path
    """The DeepSpeed configuration that `deepspeed.initialize` is to read."""
    config: dict[str, Any]
    """The same, as a dictionary."""
    stop_requested: bool

    def __init__(self, settings: Settings, folder: Path, *, own_script: bool) -> None:
        self.settings = settings
        self._own_script = own_script
        self.folder = folder
        self.ds_config = folder / "ds_config.json"
        self.console = Console()
        self.stop_requested = False
        self.started = time.time()

    @property
    def run_dir(self) -> Path:
        """Folder that the run writes to."""
        return self.arguments.run_dir

    @property
    def zero_stage(self) -> int:
        """ZeRO stage of the DeepSpeed configuration."""
        stage = self.config.get("zero_optimization", {}).get("stage", 0)
        return int(stage)

    def __enter__(self) -> Session:
        try:
            self._start()
        except BaseException as error:
            self._end_badly(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._end_badly(error)
            return
        disconnect()
        sys.excepthook = self._failed_afterwards

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            """Called for what is not there, as most things are not before the `with` block."""
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _MADE_BY_START:
                message = (
                    f"run.{name} is not there yet: the run begins with `with runtime.start() as run:`, and is used in "
                    "that block only"
                )
            raise AttributeError(message)

    def _start(self) -> None:
        if self._own_script:
            self.arguments = environment_arguments(self.folder, os.environ)
        else:
            self.arguments = parse_arguments(self.folder, sys.argv[1:], os.environ)
        rank = hand_run_name(os.environ)
        if self.arguments.redirect and rank is not None:
            self.console.redirect(self.run_dir / "logs" / f"rank-{rank}.log")
        faulthandler.enable()
        # DeepSpeed calls functions that torch has renamed, several times a step.
        warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
        self.ranks = read_ranks(os.environ)
        check_world_size(self.settings, self.ranks)
        if self.arguments.resume is None and holds_a_run(self.run_dir):
            raise RuntimeProblem(
                f"{self.run_dir} already holds a run", "go on with --resume auto, or name another folder with --run-dir"
            )
        (self.run_dir / "errors" / f"rank-{self.ranks.rank}.json").unlink(missing_ok=True)
        if self.ranks.rank == 0:
            (self.run_dir / STOP_FILE).unlink(missing_ok=True)
        self.journal = Journal(self.run_dir, active=self.ranks.rank == 0)
        self.config = _read_config(self.ds_config)
        self.accelerator = choose_accelerator(self.settings, self.ranks)
        import torch

        self.memory = MemoryProbe(self.accelerator, getattr(torch, self.settings.accelerator, None))
        self.device = torch.device(self.accelerator.current_device_name())
        self.journal.phase("data")
        data = self.settings.data
        self.corpus = None if self._own_script and not data.files and data.builtin is None else self._prepare_data()
        connect(self.settings, self.ranks)
        seed_everything(self.settings.seed, self.accelerator)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def measure_memory(
        self, phase: str, step: int = 0, *, engine: Any = None, activations: Activations | None = None
    ) -> None:
        """Write what the phase that ends here held on rank 0's device to events.jsonl; nothing on CPU.

        With `engine` also by part. What the parts leave of `device_bytes` is the allocator's rounding and what Python
        cannot reach; what `device_peak_bytes` has more than `device_bytes` was freed before the phase ended.
        """
        measured = self.memory.end_phase(phase)
        if measured is None or self.ranks.rank != 0:
            return
        parts = {}
        if engine is not None:
            parts = {"parts": parts_of(find_holders(engine, activations), self.settings.accelerator)}
        self.journal.event("memory", phase=phase, step=step, **measured, **parts)

    def wants_to_stop(self) -> bool:
        """Whether somebody asked this run to stop, as far as this rank knows: by a signal, or by the file `stop`."""
        return self.stop_requested or (self.ranks.rank == 0 and (self.run_dir / STOP_FILE).exists())

    def _prepare_data(self) -> Corpus:
        from dsgen.runtime.models import read_model_config

        model = read_model_config(self.settings, self.arguments.base_dir)
        text = model.get_text_config()
        end = text.eos_token_id
        tokenizer = load_tokenizer(
            self.settings,
            self.arguments.base_dir,
            vocabulary=int(text.vocab_size),
            end_of_text=end if isinstance(end, int) and end < text.vocab_size else None,
        )
        corpus = prepare_corpus(self.settings, tokenizer, self.arguments.base_dir, self.run_dir)
        if self.ranks.rank == 0 and corpus.bad_rows:
            listed = self.run_dir / "logs" / "bad-rows.txt"
            write_atomically(listed, "\n".join(corpus.bad_lines) + "\n")
            self.journal.event("bad_rows", count=corpus.bad_rows, path=str(listed))
            self.console.line(f"{corpus.bad_rows} rows of the data could not be used: {listed}")
        return corpus

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.stop_requested:
            raise KeyboardInterrupt
        self.stop_requested = True

    def _end_badly(self, error: BaseException) -> None:
        """Tell why, leave nothing behind, and end the process; returns only for errors of the command line."""
        arguments = getattr(self, "arguments", None)
        if isinstance(error, SystemExit) or arguments is None:
            return
        rank = self.ranks.rank if hasattr(self, "ranks") else hand_run_name(os.environ) or 0
        # A second signal must not break into this.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        error = as_problem(error, arguments.run_dir)
        known = isinstance(error, RuntimeProblem)
        code = error.exit_code if isinstance(error, RuntimeProblem) else 1
        if isinstance(error, KeyboardInterrupt):
            code = 130
        try:
            # Each by itself, since any of them fails on a full disk.
            with suppress(OSError):
                self._tell(rank, error, known, text)
            with suppress(OSError):
                write_error(arguments.run_dir, rank, error, text)
            if hasattr(self, "journal"):
                with suppress(OSError):
                    self.journal.event("end", status="failed", message=getattr(error, "message", None) or str(error))
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):
                    stream.flush()
            # No interpreter shutdown: it would wait for collectives whose partners do not know of the error.
            os._exit(code)

    def _failed_afterwards(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """For `sys.excepthook`: what ends the process after the `with` block is told where what ends it inside is."""
        text = "".join(traceback.format_exception(kind, error, trace))
        error = as_problem(error, self.run_dir)
        with suppress(OSError):
            self._tell(self.ranks.rank, error, isinstance(error, RuntimeProblem), text)
        with suppress(OSError):
            write_error(self.run_dir, self.ranks.rank, error, text)

    def _tell(self, rank: int, error: BaseException, known: bool, text: str) -> None:
        if isinstance(error, RuntimeProblem):
            lines = f"error: {error.message}" + (f"\n  help: {error.help}" if error.help else "")
        elif isinstance(error, KeyboardInterrupt):
            lines = "interrupted"
        else:
            last = traceback.format_exception_only(type(error), error)[-1].strip()
            lines = f"error: rank {rank}: {last}"
        if self.console.redirected:
            with suppress(OSError):
                print(text, file=sys.stderr)
        elif not known:
            lines = f"{text}\n{lines}"
        if known and self._said_already(rank, str(error)):
            return
        self.console.error(lines)

    def _said_already(self, rank: int, message: str) -> bool:
        """Whether another rank of this attempt met the same problem: one message on the console is enough."""
        for path in sorted((self.run_dir / "errors").glob("rank-*.json")):
            try:
                other = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if other["rank"] != rank and other["message"] == message and other["time"] >= self.started - 60:
                return True
        return False


def start(settings: Settings | None = None, folder: Path | None = None) -> Session:
    """The session of this rank, to be used as a context manager. `folder` holds `ds_config.json`.

    Entering reads the command line (`--run-dir`, `--base-dir`, `--resume`), checks the ranks and the accelerator
    against the settings, tokenises the data, joins the process group and seeds all generators. A problem found on
    the way ends the process with a message and exit code 2.

    Without arguments it is the session of the user's own script (the recipe's `entrypoint`): settings come from
    settings.json, folders from the environment that launch.sh sets, and the command line is left alone.
    """
    if settings is not None and folder is not None:
        return Session(settings, folder, own_script=False)
    named = os.environ.get(FOLDER_VARIABLE)
    try:
        if not named:
            raise RuntimeProblem(
                f"{FOLDER_VARIABLE} is not set: nobody says where ds_config.json and settings.json stand",
                "name this script as the recipe's entrypoint and start it with dsgen launch, or with the rendered "
                "launch.sh",
            )
        return Session(read_settings(Path(named)), Path(named), own_script=True)
    except RuntimeProblem as problem:
        print(f"error: {problem.message}\n  help: {problem.help}", file=sys.stderr)
        raise SystemExit(problem.exit_code) from None


def seed_everything(seed: int, accelerator: Any) -> None:
    """Seed Python, numpy, torch and the accelerator."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)
    accelerator.manual_seed_all(seed)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RuntimeProblem(f"{path} cannot be read: {error.strerror}", "render the recipe again") from error
    try:
        config = json.loads(text)
    except ValueError:
        hjson = importlib.import_module("hjson")
        # DeepSpeed reads its configuration with hjson: comments and the like are fine for it.
        try:
            config = hjson.loads(text)
        except ValueError as error:
            raise RuntimeProblem(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise RuntimeProblem(f"{path} holds no JSON object")
    return dict(config)
