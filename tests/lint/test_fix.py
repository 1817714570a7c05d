from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsgen.documents.json_reader import read_json_text
from dsgen.documents.yaml_reader import read_yaml_text
from dsgen.findings import DsgenError, Edit
from dsgen.lint.edits import changed, edited
from dsgen.lint.fix import mend
from dsgen.lint.run import Request, lint_all

BASE = """{
  "train_micro_batch_size_per_gpu":   1,
  "bf16": {"enabled": true},
\t"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
  "gradient_clipping": 1.0,
  "zero_optimization": {
    "stage": 2
  }
}
"""


def mended(tmp_path: Path, text: str, name: str = "ds_config.json") -> str:
    """The text of a file after --fix."""
    path = tmp_path / name
    path.write_bytes(text.encode())
    request = Request(job={"framework": "native"})
    mend(lint_all([path], request), request, write=True)
    return path.read_bytes().decode()


def test_names_are_corrected_and_all_else_stays(tmp_path: Path) -> None:
    text = BASE.replace("zero_optimization", "zero_optimisation")
    assert mended(tmp_path, text) == BASE


def test_a_repair_brings_the_next_to_light(tmp_path: Path) -> None:
    text = BASE.replace("zero_optimization", "zero_optimisation").replace('"stage": 2', '"stagee": 2')
    assert mended(tmp_path, text) == BASE


def test_comments_and_hjson_stay(tmp_path: Path) -> None:
    text = "{\n  // mine\n  train_micro_batch_size_per_gpu: 1\n  zero_optimisation: {stage: 1}  # why\n}\n"
    assert mended(tmp_path, text) == text.replace("optimisation", "optimization")


def test_numbers_in_quotes_become_numbers(tmp_path: Path) -> None:
    assert '"stage": 2\n' in mended(tmp_path, BASE.replace('"stage": 2', '"stage": "2"'))
    assert '"enabled": true' in mended(tmp_path, BASE.replace('"enabled": true', '"enabled": "true"'))


def test_a_key_moves_to_the_end_of_its_section(tmp_path: Path) -> None:
    text = BASE.replace('  "gradient_clipping": 1.0,\n', '  "overlap_comm": true,\n  "gradient_clipping": 1.0,\n')
    assert mended(tmp_path, text) == BASE.replace('"stage": 2\n', '"stage": 2,\n    "overlap_comm": true\n')


def test_a_key_moves_from_behind_its_section(tmp_path: Path) -> None:
    text = BASE.replace("  }\n}", '  },\n  "overlap_comm": true\n}')
    assert mended(tmp_path, text) == BASE.replace('"stage": 2\n', '"stage": 2,\n    "overlap_comm": true\n')


def test_a_section_is_made_where_there_is_none(tmp_path: Path) -> None:
    text = '{"train_batch_size": 8, "stage": 2}'
    assert mended(tmp_path, text) == '{"train_batch_size": 8, "zero_optimization": {"stage": 2}}'


def test_what_stands_there_already_is_left_to_people(tmp_path: Path) -> None:
    text = BASE.replace('"stage": 2', '"stage": 2,\n    "overlap_comm": false').replace(
        '"gradient_clipping"', '"overlap_comm": true, "gradient_clipping"'
    )
    assert mended(tmp_path, text) == text


@pytest.mark.parametrize(
    "text",
    [
        '{"train_batch_size": 8, "zero_optimisation": {"stage": 2}, "zero_optimzation": {"stage": 3}}',
        '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_com": true}, "overlap_comm": false}',
        '{"train_batch_size": 8, "zero_optimization": {"stage": 3, "max_live_parameters": 1}, '
        '"stage3_max_live_parameters": 2}',
        '{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1}, "weight_decay": 0.1}, '
        '"weight_decay": 0.2}',
    ],
)
def test_two_keys_never_become_one(tmp_path: Path, text: str) -> None:
    document = read_json_text(mended(tmp_path, text), "f")
    assert not any(note.kind == "duplicate-key" for note in document.notes)
    linted = lint_all([tmp_path / "ds_config.json"], Request())
    assert not {"KEY006", "REA001"} & {finding.code for finding in linted[0].findings}


@pytest.mark.parametrize(
    "text",
    [
        '{"train_batch_siz": 8, "train_batchsize": 16}',
        '{"train_batch_size": 8, "overlap_comm": true, "zero_optimization": {"stage": 2, "overlap_com": false}}',
    ],
)
def test_of_two_keys_that_mean_one_a_person_chooses(tmp_path: Path, text: str) -> None:
    assert mended(tmp_path, text) == text


def test_two_faults_of_one_key_are_both_repaired(tmp_path: Path) -> None:
    text = BASE.replace('"gradient_clipping": 1.0', '"gradient_cliping": 1.0').replace('"stage": 2', '"stge": "2"')
    assert mended(tmp_path, text) == BASE


def test_a_key_moves_into_an_empty_section(tmp_path: Path) -> None:
    text = '{"train_batch_size": 8, "lr": 1e-5, "optimizer": {"type": "AdamW", "params": {}}}'
    assert mended(tmp_path, text) == text.replace('"lr": 1e-5, ', "").replace("{}", '{"lr": 1e-5}')


def test_comments_stand_where_they_stood(tmp_path: Path) -> None:
    text = (
        '{\n  "train_batch_size": 8, // all ranks\n  "overlap_comm": true,\n  "zero_optimization": {"stage": 2},\n}\n'
    )
    assert mended(tmp_path, text) == (
        '{\n  "train_batch_size": 8, // all ranks\n  "zero_optimization": {"stage": 2, "overlap_comm": true},\n}\n'
    )
    text = text.replace("true,", "true, // why")
    assert mended(tmp_path, text) == text


def test_a_key_moves_out_of_a_section_into_a_new_one(tmp_path: Path) -> None:
    text = '{\n  "bf16": {"enabled": false, "loss_scale": 0},\n  "train_batch_size": 8\n}\n'
    assert mended(tmp_path, text) == (
        '{\n  "bf16": {"enabled": false},\n  "fp16": {"loss_scale": 0},\n  "train_batch_size": 8\n}\n'
    )


def test_line_ends_and_the_byte_order_mark_stay(tmp_path: Path) -> None:
    text = "\ufeff" + BASE.replace("zero_optimization", "zero_optimisation").replace("\n", "\r\n")
    assert mended(tmp_path, text) == "\ufeff" + BASE.replace("\n", "\r\n")


def test_a_recipe_keeps_its_comments(tmp_path: Path) -> None:
    text = "schema: 1  # first\nnamee: job\nmodel: llama-2-7b\nzero: {stage: 2, overlap_com: true}  # fast\n"
    assert mended(tmp_path, text, "r.yaml") == text.replace("namee", "name").replace("overlap_com:", "overlap_comm:")


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    real.write_text(BASE.replace("zero_optimization", "zero_optimisation"))
    real.chmod(0o640)
    link = tmp_path / "ds_config.json"
    link.symlink_to(real)
    request = Request()
    mend(lint_all([link], request), request, write=True)
    assert link.is_symlink() and real.read_text() == BASE and real.stat().st_mode & 0o777 == 0o640


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(BASE.replace("zero_optimization", "zero_optimisation"))
    linted = lint_all([path], Request())
    path.write_text("{}")
    with pytest.raises(DsgenError, match="changed while it was looked at"):
        mend(linted, Request(), write=True)
    assert path.read_text() == "{}"


def test_nothing_is_written_without_being_asked(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    text = BASE.replace("zero_optimization", "zero_optimisation")
    path.write_text(text)
    (only,) = mend(lint_all([path], Request()), Request(), write=False)
    assert path.read_text() == text
    assert '-  "zero_optimisation": {\n+  "zero_optimization": {\n' in only.diff()


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "b": 2, "c": {"d": 3}}',
        '{"b": 2, "a": 1, "c": {"d": 3}}',
        '{"c": {"d": 3}, "b": 2}',
        '{\n  "b": 2,\n  "c": {\n    "d": 3\n  }\n}',
        '{\n  "c": {\n    "d": 3\n  },\n  "b": 2\n}',
        '{"b":[1,{"x":"y, }"}],"c":{"d":3,"e":{"f":1}}}',
        '{"b": 2}',
    ],
)
@pytest.mark.parametrize(
    "edit",
    [
        Edit(action="remove", path=("b",)),
        Edit(action="move", path=("b",), to=("c", "b")),
        Edit(action="rename", path=("b",), to=("z",)),
        Edit(action="set", path=("b",), value=[1, "two"]),
    ],
)
def test_the_text_says_what_the_change_means(text: str, edit: Edit) -> None:
    document = read_json_text(text, "f")
    new = edited(document, text, edit, yaml=False)
    assert new is not None
    assert json.loads(new) == changed(document.value, edit)


def test_yaml_keys_and_values() -> None:
    text = "a: 'x'  # one\n\"b\": [1, 2]\nc: {d: 5}\n"
    document = read_yaml_text(text, "f")
    assert edited(document, text, Edit(action="set", path=("a",), value=3), yaml=True) == text.replace("'x'", "3")
    assert edited(document, text, Edit(action="rename", path=("b",), to=("z",)), yaml=True) == text.replace("b", "z")
    assert edited(document, text, Edit(action="set", path=("c", "d"), value=6), yaml=True) == text.replace("5", "6")
    assert edited(document, text, Edit(action="remove", path=("a",)), yaml=True) is None
