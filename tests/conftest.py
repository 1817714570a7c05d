"""What several test folders share."""

from __future__ import annotations

import signal
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
