from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import jsonschema
import pytest
import yaml

import dsgen
from dsgen.cli import main as program
from dsgen.cli.main import COMMANDS, main_code

from ..conftest import RECIPES, REPOSITORY


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)
    for name in COMMANDS:
        assert main_code([name, "--help"]) == 0


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"dsgen, version {dsgen.__version__}"


def test_devices_and_models_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["devices", "--format", "json"]) == 0
    devices = {each["id"]: each for each in json.loads(capsys.readouterr().out)}
    assert devices["ascend-910a-32g"]["bf16"] is False
    assert devices["ascend-910b3-64g"]["usable_bytes"] == 65452113920
    assert main_code(["models", "--format", "json"]) == 0
    models = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert models["llama-2-13b"]["parameters"] == 13_015_864_320
    assert models["llama-2-13b"]["sizes"] == ["13b"]


def test_schema_takes_the_shipped_recipes_and_is_the_one_in_docs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["schema", "recipe"]) == 0
    text = capsys.readouterr().out
    assert (REPOSITORY / "docs" / "recipe.schema.json").read_text() == text
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for path in RECIPES.glob("*.yaml"):
        assert [error.message for error in validator.iter_errors(yaml.safe_load(path.read_text()))] == []
        first = path.read_text().splitlines()[0]
        assert first == "# yaml-language-server: $schema=../docs/recipe.schema.json"
    bad = {"schema": 1, "zero": {"stage": 4}, "nonsense": 1}
    assert {error.json_path for error in validator.iter_errors(bad)} == {"$", "$.zero.stage"}


def test_a_fault_of_dsgen_is_one_line_and_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(program.main, "main", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main_code(["devices"]) == 3
    said = capsys.readouterr().err
    assert "a fault of dsgen itself: ZeroDivisionError: inside" in said and "Traceback" not in said
    (log,) = tmp_path.iterdir()
    assert "Traceback" in log.read_text()


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise click.Abort

    monkeypatch.setattr(program.main, "main", interrupt)
    assert main_code(["devices"]) == 130


def test_a_reader_that_goes_away_is_no_fault() -> None:
    command = f"{sys.executable} -m dsgen models | true"
    out = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, cwd=REPOSITORY)
    assert (out.returncode, out.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "pipe", "code"),
    [
        (f"estimate {RECIPES / '13b-zero2.yaml'} --set activation_checkpointing=none", "| true", 1),
        (f"estimate {RECIPES / '13b-zero2.yaml'}", "| true", 0),
        ("estimate nowhere.yaml", "2>&1 | true", 2),
        ("estimate nowhere.yaml --format json", "| true", 2),
    ],
)
def test_a_reader_that_goes_away_leaves_the_exit_code(words: str, pipe: str, code: int) -> None:
    # The command starts when the reader is gone already.
    line = f"(sleep 0.2; exec {sys.executable} -m dsgen {words}) {pipe}; exit ${{PIPESTATUS[0]}}"
    out = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=REPOSITORY)
    assert (out.returncode, out.stdout, out.stderr) == (code, "", "")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["estimate", "model.yaml", "--set", "model=./模型/config.json"], "'model=./\\udce6"),
        (["render", "model.yaml", "--set", "model=./模型/config.json"], "is no text in this locale"),
        (
            ["estimate", "model.yaml", "--set", "model=./模型/config.json", "--format", "json"],
            "no text in the encoding",
        ),
        (["estimate", "model.yaml"], "'./模型/config.json' cannot be read"),
    ],
)
def test_a_locale_without_these_characters_is_no_fault_of_dsgen(
    tmp_path: Path, command: list[str], message: str
) -> None:
    recipe = yaml.safe_load((RECIPES / "13b-zero2.yaml").read_text()) | {"model": "./模型/config.json"}
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(recipe, allow_unicode=True), encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(REPOSITORY)}
    line = [sys.executable, "-m", "dsgen", *command]
    out = subprocess.run(line, capture_output=True, cwd=tmp_path, env=os.environ | plain)
    said = (out.stdout + out.stderr).decode().encode("ascii", "backslashreplace").decode()
    wanted = message.encode("ascii", "backslashreplace").decode()
    assert out.returncode in (1, 2) and wanted in said and "a fault of dsgen" not in said


def test_output_that_cannot_be_written_is_no_fault_of_dsgen() -> None:
    out = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m dsgen devices > /dev/full"], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert (out.returncode, out.stderr) == (2, "error: No space left on device\n")
    closed = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m dsgen devices >&-"], capture_output=True, cwd=REPOSITORY
    )
    assert closed.returncode == 0
