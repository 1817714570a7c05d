from __future__ import annotations

from pathlib import Path

import pytest

from dsgen.documents.errors import DocumentError
from dsgen.findings import DsgenError
from dsgen.lint.lint import Linted
from dsgen.lint.run import Request, lint_all

CONFIG = '{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "zero_optimisation": {}, "overlap_com": 1}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "ds_config.json").write_text(CONFIG)
    return tmp_path


def codes(linted: list[Linted]) -> list[list[str]]:
    return [[finding.code for finding in each.findings if finding.code.startswith("KEY")] for each in linted]


def lint(folder: Path, **request: object) -> list[list[str]]:
    return codes(lint_all([folder / "sub" / "ds_config.json"], Request(**request)))  # type: ignore[arg-type]


def test_without_settings(folder: Path) -> None:
    assert lint(folder) == [["KEY001", "KEY001"]]
    assert lint(folder, ignore=("KEY",)) == [[]]
    assert lint(folder, select=("ZRO",)) == [[]]


def test_the_nearest_file_holds(folder: Path) -> None:
    (folder / ".dsgen.yaml").write_text("ignore: [KEY001]\n")
    assert lint(folder) == [[]]


def test_pyproject(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.dsgen]\nper-file-ignores = {"sub/*.json" = ["KEY"]}\n')
    assert lint(folder) == [[]]


def test_pyproject_of_others_is_passed_over(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.other]\nignore = 1\n")
    (folder / "sub" / "pyproject.toml").write_text("[tool.other]\n")
    (folder / ".dsgen.yaml").write_text("ignore: KEY001\n")
    assert lint(folder) == [[]]


def test_the_command_line_comes_first(folder: Path) -> None:
    (folder / ".dsgen.yaml").write_text("select: [ZRO]\ndeepspeed: 0.19.8\n")
    assert lint(folder) == [[]]
    assert lint(folder, select=("KEY",)) == [["KEY001", "KEY001"]]


def test_files_of_folders_are_left_out(folder: Path) -> None:
    (folder / ".dsgen.yaml").write_text("exclude: [sub]\n")
    (folder / "other.json").write_text(CONFIG)
    assert [each.file for each in lint_all([folder], Request())] == [str(folder / "other.json")]
    assert lint(folder) == [["KEY001", "KEY001"]]  # it is named


def test_folders_hold_other_files_too(folder: Path) -> None:
    (folder / "package.json").write_text('{"name": "x"}')
    (folder / "broken.json").write_text("{")
    (folder / "notes.txt").write_text("hello")
    (folder / "cut.json").write_text('{"zero_optimization": {')
    found = lint_all([folder], Request())
    assert [Path(each.file).name for each in found] == ["cut.json", "ds_config.json"]
    assert found[0].document is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ignor: []\n", "unknown setting 'ignor'"),
        ("ignore: 5\n", "ignore: expected a list of texts"),
        ("world_size: two\n", "world_size: expected a whole number of at least 1"),
        ("framework: jax\n", "framework: expected native or transformers"),
        ("per-file-ignores: [a]\n", "per-file-ignores: expected a mapping"),
        ("- a\n", "expected a mapping of settings"),
        ("deepspeed: [1]\n", "deepspeed: expected text"),
    ],
)
def test_wrong_settings_are_told(folder: Path, text: str, said: str) -> None:
    (folder / ".dsgen.yaml").write_text(text)
    with pytest.raises(DocumentError, match=said.replace("[", r"\[")):
        lint(folder)


def test_broken_toml(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.dsgen]\nignore = [\n")
    with pytest.raises(DocumentError, match="is not TOML"):
        lint(folder)


def test_unknown_codes_are_told(folder: Path) -> None:
    with pytest.raises(DsgenError, match="no rule has a code that starts with 'XYZ'"):
        lint(folder, ignore=("XYZ",))
    (folder / ".dsgen.yaml").write_text("ignore: [ABC123]\n")
    with pytest.raises(DsgenError, match="'ABC123'"):
        lint(folder)


def test_named_files_are_filtered_on_request(folder: Path) -> None:
    (folder / ".dsgen.yaml").write_text("exclude: [sub]\n")
    (folder / "trainer_state.json").write_text('{"train_batch_size": 8, "log_history": []}')
    (folder / "c.json").write_text(CONFIG)
    named = [folder / "sub" / "ds_config.json", folder / "trainer_state.json", folder / "c.json"]
    assert [Path(each.file).name for each in lint_all(named, Request(filtered=True))] == ["c.json"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trainer_state.json", '{"train_batch_size": 8, "log_history": [], "global_step": 1}'),
        ("training_args.json", '{"gradient_accumulation_steps": 1, "fp16": false, "bf16": true, "seed": 1}'),
        (
            "sft.yaml",
            "stage: sft\ngradient_accumulation_steps: 8\nbf16: true\ndeepspeed: c.json\n",
        ),
        ("hydra.yaml", "model: {name: x}\noptimizer: {lr: 1}\n"),
        ("job.yaml", "name: a\nmodel: b\nschema: 2\n"),
        ("config.json", '{"model_type": "llama", "hidden_size": 4096}'),
        ("recipe.schema.json", '{"$schema": "x", "properties": {}}'),
    ],
)
def test_files_of_other_programs_are_passed_over_in_folders(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    assert [Path(each.file).name for each in lint_all([folder], Request())] == ["ds_config.json"]


@pytest.mark.parametrize("text", ['{"train_batch_size": 8,', '{"fp16": {"enabled": true}, "optimizer": {}'])
def test_broken_configs_in_folders_are_told(folder: Path, text: str) -> None:
    (folder / "broken.json").write_text(text)
    found = {Path(each.file).name: each.document is None for each in lint_all([folder], Request())}
    assert found == {"broken.json": True, "ds_config.json": False}


@pytest.mark.parametrize(
    "text", ['{"train_batch_size": 8}', '{"zero_optimisation": {"stage": 3}}', '{"train_batch_siz": 8, "fp61": {}}']
)
def test_misspelt_configs_in_folders_are_told(folder: Path, text: str) -> None:
    (folder / "a.json").write_text(text)
    assert [Path(each.file).name for each in lint_all([folder], Request())] == ["a.json", "ds_config.json"]


def test_text_in_quotes_is_no_comment(folder: Path) -> None:
    path = folder / "a.json"
    path.write_text('{"train_batch_size": 8,\n "qux": "4 # dsgen: ignore[KEY001]"}')
    assert codes(lint_all([path], Request())) == [["KEY001"]]
    path.write_text('{"train_batch_size": 8,\n "qux": 4 # dsgen: ignore[KEY001]\n}')
    assert codes(lint_all([path], Request())) == [[]]


def test_a_file_that_several_name_is_told_once(folder: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (folder / name).write_text(
            "distributed_type: DEEPSPEED\nnum_processes: 8\n"
            "deepspeed_config: {deepspeed_config_file: sub/ds_config.json}\n"
        )
    assert sorted(codes(lint_all([folder], Request()))) == [[], [], ["KEY001", "KEY001"]]
    assert sorted(codes(lint_all([folder / "a.yaml", folder / "b.yaml"], Request()))) == [[], ["KEY001", "KEY001"]]


def test_what_a_model_says_is_no_config(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text('{"model_type": "llama", "hidden_size": 4096}')
    (found,) = lint_all([path], Request())
    assert "is the config.json of a model" in found.findings[0].message and found.document is None
