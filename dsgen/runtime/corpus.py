"""The text as tokens on disk: made once per node, before any collective, then shared by its ranks.

A slow tokeniser on one rank is what collective time-outs are made of, so this needs no process group:
the first rank to take a file lock does the work, the others find it done.
"""

from __future__ import annotations

import array
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsgen.resources import CACHE_VARIABLE, cache_folder
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Settings
from dsgen.runtime.text import BadRows, Row, describe, read_rows
from dsgen.runtime.tokens import Tokenizer

_FORMAT = 1
_ROWS_AT_ONCE = 512
_UNUSED_SECONDS = 30 * 86400
"""Tokens that no run has opened for so long are removed when new ones are made."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Documents as token ids.

    Document i is `tokens[starts[i]:starts[i + 1]]`; where there are answers, its answer begins `answers[i]` tokens
    after its start.
    """

    tokens: Any
    starts: Any
    answers: Any | None
    end: tuple[int, ...]
    bad_rows: int
    bad_lines: tuple[str, ...]
    fingerprint: str
    """SHA-256 over all tokens and bounds: equal corpora give equal batches."""


def prepare_corpus(settings: Settings, tokenizer: Tokenizer, base_dir: Path, run_dir: Path) -> Corpus:
    """Tokenise the text of the settings, or open what an earlier call left.

    Raises RuntimeProblem when a file is missing or unreadable, or when there is no usable text at all.
    """
    data = settings.data
    if (data.builtin is None) == (not data.files):
        raise RuntimeProblem("the data set must be named by `files` or by `builtin`, one of the two")
    identity = [
        _FORMAT,
        data.mode,
        [data.prompt_field, data.answer_field] if data.mode == "instruction" else [data.text_field],
        tokenizer.fingerprint,
        describe(data, base_dir),
    ]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    folder = _cache_folder(run_dir) / key
    with _locked(folder.with_name(f"{key}.lock")):
        if not (folder / "corpus.json").exists():
            _remove_unused(folder.parent)
            _write_corpus(folder, settings, tokenizer, base_dir)
        # A cache of somebody else's is read all the same.
        with suppress(OSError):
            (folder / "corpus.json").touch()
    return _open_corpus(folder)


def _remove_unused(cache: Path) -> None:
    """Remove corpora that were last opened long ago; a run that still has one open keeps its bytes."""
    for about in cache.glob("*/corpus.json"):
        # Another process may be at the same, or be opening this very corpus, and then holds its lock.
        with suppress(OSError):
            if time.time() - about.stat().st_mtime > _UNUSED_SECONDS:
                with _locked(about.parent.with_name(f"{about.parent.name}.lock"), wait=False):
                    about.unlink()
                    shutil.rmtree(about.parent)


def _cache_folder(run_dir: Path) -> Path:
    try:
        folder = cache_folder("tokens")
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        if os.environ.get(CACHE_VARIABLE):
            raise
    folder = run_dir / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock file; with `wait=False` raises BlockingIOError when another process holds it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _write_corpus(folder: Path, settings: Settings, tokenizer: Tokenizer, base_dir: Path) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    bad = BadRows()
    starts = array.array("q", [0])
    answers = array.array("q")
    dtype = np.uint16 if tokenizer.size <= 1 << 16 else np.uint32
    digest = hashlib.sha256()
    length = 0
    with (partial / "tokens.bin").open("wb") as file:
        opened = False
        for rows in _in_groups(read_rows(settings.data, base_dir, bad)):
            prompts = tokenizer.encode([row.text for row in rows])
            endings = tokenizer.encode([row.answer or "" for row in rows])
            ids: list[int] = []
            for row, prompt, ending in zip(rows, prompts, endings, strict=True):
                if not opened:
                    ids.extend(tokenizer.prefix)
                    opened = True
                ids.extend(prompt)
                if row.answer is not None:
                    answers.append(len(ids) + length - starts[-1])
                    ids.extend(ending)
                if row.ends_document:
                    ids.extend(tokenizer.end)
                    starts.append(len(ids) + length)
                    opened = False
            content = np.array(ids, dtype=dtype).tobytes()
            digest.update(content)
            file.write(content)
            length += len(ids)
    if len(starts) == 1:
        shutil.rmtree(partial)
        raise _no_text(settings, base_dir, bad)
    np.save(partial / "starts.npy", np.frombuffer(starts, dtype=np.int64))
    digest.update(starts.tobytes())
    if answers:
        np.save(partial / "answers.npy", np.frombuffer(answers, dtype=np.int64))
        digest.update(answers.tobytes())
    about = {
        "dtype": np.dtype(dtype).name,
        "end": list(tokenizer.end),
        "bad_rows": bad.count,
        "bad_lines": bad.lines,
        "fingerprint": digest.hexdigest(),
    }
    (partial / "corpus.json").write_text(json.dumps(about), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _in_groups(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Groups small enough to hold in memory: 512 rows, or fewer long ones."""
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row.text) + len(row.answer or "")
        if len(group) == _ROWS_AT_ONCE or size > 1 << 22:
            yield group
            group, size = [], 0
    if group:
        yield group


def _no_text(settings: Settings, base_dir: Path, bad: BadRows) -> RuntimeProblem:
    where = settings.data.builtin or ", ".join(str(base_dir / pattern) for pattern in settings.data.files)
    if bad.count:
        return RuntimeProblem(
            f"the data set holds no usable text: all {bad.count} rows of {where} are bad, the first is {bad.lines[0]}",
            "name the right fields in the recipe: data.field, or data.prompt_field and data.answer_field",
        )
    return RuntimeProblem(f"the data set holds no text: {where} is empty")


def _open_corpus(folder: Path) -> Corpus:
    about = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    answers = folder / "answers.npy"
    return Corpus(
        tokens=np.memmap(folder / "tokens.bin", dtype=about["dtype"], mode="r"),
        starts=np.load(folder / "starts.npy"),
        answers=np.load(answers) if answers.exists() else None,
        end=tuple(about["end"]),
        bad_rows=about["bad_rows"],
        bad_lines=tuple(about["bad_lines"]),
        fingerprint=about["fingerprint"],
    )
