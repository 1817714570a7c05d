"""The real DeepSpeed, to be asked what it makes of a config."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import conftest as training

environment = training.environment
"""The environment of training processes, as a fixture of these tests too."""

Report = dict[str, Any]


class Engine:
    """Trains two steps on two ranks with any config; each config once."""

    SERVER = Path(__file__).with_name("engine_server.py")
    TIMEOUT_S = 60

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._folder = folder
        self._reports: dict[tuple[str, str | None], Report] = {}
        with (folder / "server.txt").open("w") as said:
            self._process = subprocess.Popen(
                [sys.executable, str(self.SERVER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env=environment,
            )
        # The first time on a machine this waits for a build of minutes.
        self._answer()

    def _answer(self) -> Report:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            pytest.fail(f"the server ended:\n{(self._folder / 'server.txt').read_text()[-3000:]}")
        answer: Report = json.loads(line)
        return answer

    def run(self, text: str, client_optimizer: str | None = None) -> Report:
        """The report on the config of that text; see engine_server.py."""
        asked = (text, client_optimizer)
        if asked not in self._reports:
            folder = self._folder / str(len(self._reports))
            folder.mkdir()
            config = folder / "ds_config.json"
            config.write_text(text, encoding="utf-8")
            job = {
                "config": str(config),
                "folder": str(folder),
                "client_optimizer": client_optimizer,
                "timeout": self.TIMEOUT_S,
            }
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            self._reports[asked] = self._answer()
        return self._reports[asked]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


@pytest.fixture(scope="session")
def engine(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("the real DeepSpeed is asked; install the extra `train`")
    server = Engine(environment, tmp_path_factory.mktemp("truth"))
    yield server
    server.close()
