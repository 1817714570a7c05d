from __future__ import annotations

from pathlib import Path

import pytest

from dsgen.cli import export
from dsgen.cli.main import main_code


def test_a_run_without_checkpoints(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (tmp_path / "run").mkdir()
    assert main_code(["export", str(tmp_path / "run")]) == 2
    err = capfd.readouterr().err
    assert err.startswith("error: ") and str(tmp_path / "run") in err and "Traceback" not in err
    assert not (tmp_path / "run" / "export").exists()


def test_without_the_training_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert main_code(["export", str(tmp_path)]) == 2
    assert "pip install 'dsgen[train]'" in capsys.readouterr().err
