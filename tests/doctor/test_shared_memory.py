"""Buffers of killed runs in /dev/shm."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsgen.doctor import shared_memory
from dsgen.doctor.check import State, Subject
from dsgen.doctor.probe import Machine


def test_buffers_that_nobody_has_mapped(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for pid, mapped in (("1", "a_0"), ("2", "")):
        (proc / pid).mkdir(parents=True)
        (proc / pid / "maps").write_text(f"7f00-7f01 rw-s 0 00:1a 5 /dev/shm/deepspeed_allreduce_buffer_{mapped}\n")
    for name in ("a_0", "b_0", "b_1"):
        (tmp_path / f"deepspeed_allreduce_buffer_{name}").write_bytes(b"x")
    leaked = shared_memory.leaked_buffers(tmp_path, proc)
    assert [path.name for path in leaked] == ["deepspeed_allreduce_buffer_b_0", "deepspeed_allreduce_buffer_b_1"]
    assert shared_memory.leaked_buffers(tmp_path / "none", proc) == []


def test_they_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = tmp_path / "deepspeed_allreduce_buffer_0_127.0.0.1_1_0"
    buffer.write_bytes(b"x" * 2**20)
    monkeypatch.setattr(shared_memory, "leaked_buffers", lambda: [buffer])
    (check,) = shared_memory.check_shared_memory(Subject(probe=Machine()))
    assert (check.state, "1 buffers of killed DeepSpeed runs hold 1 MiB" in check.found) == (State.WARNING, True)
