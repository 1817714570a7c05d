from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsgen.catalog.models import load_preset
from dsgen.documents.document import Document
from dsgen.documents.yaml_reader import MAX_BYTES, read_yaml_text
from dsgen.recipe.model_source import ModelProblem, read_model

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 300,
}
NOWHERE = Document(file="r.yaml", value={})


def problem(model: str | dict[str, Any], folder: Path, document: Document = NOWHERE) -> tuple[str, str, str]:
    """(code, message, help) of the finding."""
    with pytest.raises(ModelProblem) as caught:
        read_model(model, folder, document)
    finding = caught.value.finding
    assert finding.path.startswith("model")
    return finding.code, finding.message, finding.help


@pytest.mark.parametrize(
    ("said", "preset"), [("llama-2-7b", "llama-2-7b"), ("7B", "llama-2-7b"), ("13b", "llama-2-13b")]
)
def test_presets_and_sizes(said: str, preset: str, tmp_path: Path) -> None:
    assert read_model(said, tmp_path, NOWHERE) == (load_preset(preset), ())


@pytest.mark.parametrize("said", ["./m", "./m/", "./m/config.json", "m/config.json"])
def test_a_folder_or_file_counts_from_the_recipes_folder(said: str, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    data = json.dumps(CONFIG).encode()
    (tmp_path / "m" / "config.json").write_bytes(data)
    architecture, (file,) = read_model(said, tmp_path, NOWHERE)
    assert (architecture.hidden_size, architecture.name) == (64, "m")
    assert file.sha256 == hashlib.sha256(data).hexdigest()
    assert file.name == said if said.endswith(".json") else f"{said.rstrip('/')}/config.json"


def test_home_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x.json").write_text("\ufeff" + json.dumps(CONFIG), encoding="utf-8")
    assert read_model("~/x.json", Path("/nowhere"), NOWHERE)[0].layers == 2


def test_a_model_that_is_written_out(tmp_path: Path) -> None:
    architecture, files = read_model(CONFIG, tmp_path, NOWHERE)
    assert (architecture.name, architecture.vocabulary_size, files) == ("custom", 300, ())


@pytest.mark.parametrize(
    ("said", "help"),
    [
        ("llama2-7b", "did you mean llama-2-7b or "),
        ("12b", "did you mean "),
        ("gpt-4", "give a preset, a size such as 7b, a path that starts with ./, or the fields of a config.json"),
        ("models/llama", "give a preset, "),
    ],
)
def test_unknown_names(said: str, help: str, tmp_path: Path) -> None:
    code, message, told = problem(said, tmp_path)
    assert (code, message) == ("REC004", f"unknown model {said!r}")
    assert told.startswith(help)


def too_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "'./m.json' cannot be read: No such file or directory"),
        (Path.mkdir, "'./m.json/config.json' cannot be read: No such file or directory"),
        (os.mkfifo, "'./m.json' is not a regular file"),
        (lambda path: path.symlink_to("m.json"), "'./m.json' cannot be read: Too many levels of symbolic links"),
        (lambda path: path.write_text("[1]"), "'./m.json' is not a model's config.json: it holds no JSON object"),
        (lambda path: path.write_bytes(b"\xff"), "'./m.json' is not a model's config.json: it is not UTF-8"),
        (lambda path: path.write_text("[" * 10**5), "'./m.json' is not a model's config.json: it is nested too deeply"),
        (too_large, "'./m.json' is not a model's config.json: it is larger than 4 MiB"),
        (lambda path: path.write_text("{"), "'./m.json' is not a model's config.json: Expecting property name"),
        (lambda path: path.write_text("{}"), "'./m.json': model_type is missing"),
        (
            lambda path: path.write_text(json.dumps({**CONFIG, "hidden_size": "64"})),
            "'./m.json': hidden_size is '64'",
        ),
        (
            lambda path: path.write_text(json.dumps({**CONFIG, "rope_scaling": {"factor": float("inf")}})),
            "'./m.json': rope_scaling holds inf or nan",
        ),
        (
            lambda path: path.write_text(json.dumps({**CONFIG, "a": json.loads("[" * 900 + "]" * 900)})),
            "'./m.json': a is nested too deeply",
        ),
    ],
)
def test_files_that_are_no_config(make: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    make(tmp_path / "m.json")
    code, told, _ = problem("./m.json", tmp_path)
    assert told.startswith(message)
    assert code == ("REC005" if "': " in message else "REC004")


def test_a_wrong_field_has_its_own_place(tmp_path: Path) -> None:
    document = read_yaml_text("seed: 1\nmodel:\n  model_type: llama\n  hidden_size: 64.0\n", "r.yaml")
    with pytest.raises(ModelProblem) as caught:
        read_model(document.value["model"], tmp_path, document)
    finding = caught.value.finding
    assert (finding.code, finding.path, str(finding.position)) == ("REC005", "model.hidden_size", "r.yaml:4:16")
    assert finding.message == "hidden_size is 64.0"
    assert finding.help == "expected a whole number from 1 to 1000000"


def test_a_missing_field_is_told_at_the_model(tmp_path: Path) -> None:
    document = read_yaml_text("seed: 1\nmodel:\n  model_type: llama\n", "r.yaml")
    with pytest.raises(ModelProblem) as caught:
        read_model(document.value["model"], tmp_path, document)
    assert (caught.value.finding.path, str(caught.value.finding.position)) == ("model", "r.yaml:3:3")
    assert caught.value.finding.message == "hidden_size is missing"


@pytest.mark.parametrize("value", [float("nan"), [1, float("inf")], {"a": {"b": [float("-inf")]}}])
def test_numbers_are_finite(value: object, tmp_path: Path) -> None:
    code, message, help = problem({**CONFIG, "rope_theta": value}, tmp_path)
    assert (code, message) == ("REC005", "rope_theta holds inf or nan")
    assert help.startswith("expected finite numbers")
