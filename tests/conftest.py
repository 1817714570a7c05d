"""What several test folders share."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
RECIPES = REPOSITORY / "recipes"

BASE: dict[str, Any] = {
    "schema": 1,
    "name": "job",
    "model": "llama-2-7b",
    "precision": "bf16",
    "batch": {"sequence_length": 2048, "micro": 1, "global": 64},
    "length": {"steps": 100},
    "zero": {"stage": 2},
    "optimizer": {"type": "AdamW", "lr": 2e-5},
    "hardware": {"device": "ascend-910b3-64g", "per_node": 8},
    "data": {"files": "data/*.jsonl"},
    "tokenizer": "./tokenizer",
}


@pytest.fixture(scope="session", autouse=True)
def usual_signals() -> None:
    """A shell that runs the tests in the background has them, and every process they start, ignore these signals."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def operators() -> Iterator[Path]:
    """The folder of the operators that DeepSpeed compiles: each once for all tests, and kept."""
    folder = Path(
        os.environ.get("TORCH_EXTENSIONS_DIR") or f"{tempfile.gettempdir()}/dsgen-test-extensions-{os.getuid()}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    remove_dead_locks(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
        # The ninja beside this Python: another version of ninja would build every operator again.
        patch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
        yield folder


def remove_dead_locks(folder: Path) -> None:
    """Remove build locks that no living process holds: a build waits for them for ever, without a word."""
    held = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            held.update(str(link.readlink()) for link in (process / "fd").iterdir())
    for lock in folder.glob("*/lock"):
        if str(lock.resolve()) not in held:
            lock.unlink(missing_ok=True)


@pytest.fixture(scope="session", autouse=True)
def no_profiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Device profiles of whoever runs the tests would change estimates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session")
def shipped_recipes() -> list[Path]:
    """Every recipe of the repository."""
    return sorted(RECIPES.glob("*.yaml"))


@pytest.fixture
def write_recipe(tmp_path: Path) -> Callable[..., Path]:
    """Writes BASE with some fields replaced (None removes one) and returns the path."""

    def write(name: str = "job.yaml", **changes: Any) -> Path:
        content = {**BASE, **changes}
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump({k: v for k, v in content.items() if v is not None}, sort_keys=False))
        return path

    return write
