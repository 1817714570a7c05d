from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from dsgen.documents.errors import DocumentError
from dsgen.recipe.load import MAX_CHAIN, LoadedRecipe, is_path, load_recipe


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, so that positions are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(files: dict[str, str], *overrides: str) -> LoadedRecipe:
    """Write the files and load the first one."""
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    return load_recipe(Path(next(iter(files))), overrides)


def refused(files: dict[str, str], *overrides: str) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        load(files, *overrides)
    return caught.value


def test_mappings_are_merged_and_anything_else_replaced(folder: Path) -> None:
    loaded = load(
        {
            "r.yaml": "extends: base.yaml\nzero: {stage: 3}\ndata: {files: [c.txt]}\nname: mine\n",
            "base.yaml": "name: base\nzero: {stage: 2, overlap_comm: true}\ndata: {files: [a.txt, b.txt]}\nseed: 1\n",
        }
    )
    assert loaded.document.value == {
        "name": "mine",
        "zero": {"stage": 3, "overlap_comm": True},
        "data": {"files": ["c.txt"]},
        "seed": 1,
    }
    assert loaded.folder == Path()


def test_positions_are_those_of_the_file_that_says_it(folder: Path) -> None:
    document = load(
        {
            "r.yaml": "extends: base.yaml\nzero: {stage: 3}\ndata: {files: [c.txt]}\n",
            "base.yaml": "zero:\n  stage: 2\n  overlap_comm: true\ndata: {files: [a.txt, b.txt]}\n",
        }
    ).document
    assert str(document.at(("zero", "stage"))) == "r.yaml:2:15"
    assert str(document.at_key(("zero", "stage"))) == "r.yaml:2:8"
    assert str(document.at(("zero", "overlap_comm"))) == "base.yaml:3:17"
    assert str(document.at_key(("zero", "overlap_comm"))) == "base.yaml:3:3"
    assert str(document.at(("data", "files", 0))) == "r.yaml:3:16"
    assert str(document.at(("data", "files", 1))) == "r.yaml:3:15", "the second file of the base is gone"
    assert set(document.sources) == {"r.yaml", "base.yaml"}


def test_short_forms_can_be_added_to(folder: Path) -> None:
    document = load(
        {
            "r.yaml": "extends: base.yaml\nprecision: {accumulate: fp32}\nzero: {offload: {optimizer: {ratio: 0.5}}}\n",
            "base.yaml": "precision: bf16\nzero: {offload: {optimizer: cpu}}\n",
        }
    ).document
    assert document.value["precision"] == {"type": "bf16", "accumulate": "fp32"}
    assert document.value["zero"]["offload"]["optimizer"] == {"device": "cpu", "ratio": 0.5}
    assert str(document.at(("precision", "type"))) == "base.yaml:1:12"
    assert str(document.at(("precision", "accumulate"))) == "r.yaml:2:25"
    replaced = load({"s.yaml": "extends: long.yaml\nprecision: fp16\n", "long.yaml": "precision: {type: bf16}\n"})
    assert replaced.document.value == {"precision": "fp16"}


@pytest.mark.parametrize(
    ("said", "change", "value"),
    [
        ("entrypoint: a.py", "entrypoint.args=[x]", {"entrypoint": {"script": "a.py", "args": ["x"]}}),
        ("container: image:1", "container.engine=podman", {"container": {"image": "image:1", "engine": "podman"}}),
        ("precision: bf16", "precision.accumulate=fp32", {"precision": {"type": "bf16", "accumulate": "fp32"}}),
    ],
)
def test_a_set_beside_a_short_form_keeps_it(folder: Path, said: str, change: str, value: dict[str, Any]) -> None:
    (folder / "r.yaml").write_text(said + "\n")
    assert load_recipe(Path("r.yaml"), [change]).document.value == value


def test_inputs_are_the_whole_chain_by_content(folder: Path) -> None:
    files = {"r.yaml": "extends: sub/b.yaml\n", "sub/b.yaml": "extends: ../c.yaml\n", "c.yaml": "seed: 1\n"}
    loaded = load(files)
    assert [(each.name, each.sha256) for each in loaded.inputs] == [
        (name, hashlib.sha256(text.encode()).hexdigest()) for name, text in files.items()
    ]


def test_relative_paths_count_from_the_file_that_says_them(folder: Path) -> None:
    document = load(
        {
            "jobs/r.yaml": "extends: ../bases/b.yaml\nweights: ./own\n",
            "bases/b.yaml": "model: ./m/config.json\nweights: ./theirs\ntokenizer: ./t\nentrypoint: ../e.py\n"
            "data: {files: [x/*.txt, ../y.txt, /abs.txt, ~/home.txt, '']}\n",
        }
    ).document
    assert document.value == {
        "model": "./../bases/m/config.json",
        "weights": "./own",
        "tokenizer": "./../bases/t",
        "entrypoint": "../e.py",
        "data": {"files": ["../bases/x/*.txt", "../y.txt", "/abs.txt", "~/home.txt", ""]},
    }


def test_names_are_no_paths(folder: Path) -> None:
    base = "model: llama-2-7b\nweights: meta/llama\ntokenizer: bytes\ndata: {files: d.txt}\n"
    document = load({"r.yaml": "extends: sub/b.yaml\n", "sub/b.yaml": base}).document
    assert document.value == {
        "model": "llama-2-7b",
        "weights": "meta/llama",
        "tokenizer": "bytes",
        "data": {"files": "sub/d.txt"},
    }
    written_out = load({"s.yaml": "extends: sub/c.yaml\n", "sub/c.yaml": "model: {vocab_size: 3}\ndata: 3\n"}).document
    assert written_out.value == {"model": {"vocab_size": 3}, "data": 3}


@pytest.mark.parametrize(
    ("text", "path"),
    [("./x", True), ("../x", True), ("/x", True), ("~/x", True), ("x.json", True), ("a/b", False), ("7b", False)],
)
def test_what_a_path_looks_like(text: str, path: bool) -> None:
    assert is_path(text) is path


@pytest.mark.parametrize(
    ("files", "place", "message"),
    [
        ({"r.yaml": "extends: r.yaml\n"}, "r.yaml:1:10", "extends a recipe that extends it in turn: r.yaml -> r.yaml"),
        (
            {"r.yaml": "seed: 1\nextends: b.yaml\n", "b.yaml": "extends: c.yaml\n", "c.yaml": "extends: b.yaml\n"},
            "c.yaml:1:10",
            "extends a recipe that extends it in turn: b.yaml -> c.yaml -> b.yaml",
        ),
        (
            {"r.yaml": "extends: none.yaml\n"},
            "r.yaml:1:10",
            "extends 'none.yaml', which cannot be read: No such file or directory",
        ),
        ({"r.yaml": "extends: .\n"}, "r.yaml:1:10", "extends '.', which is a folder, not a file"),
        ({"r.yaml": f"extends: {'x' * 5000}\n"}, "r.yaml:1:10", "which cannot be read: File name too long"),
        ({"r.yaml": "extends:\n"}, "r.yaml:1:9", "extends must be the path of one recipe"),
        ({"r.yaml": "extends: [a, b]\n"}, "r.yaml:1:10", "extends must be the path of one recipe"),
        ({"r.yaml": "extends: ''\n"}, "r.yaml:1:10", "extends must be the path of one recipe"),
        ({"r.yaml": "extends: b.yaml\n", "b.yaml": "- x\n"}, "b.yaml:1:1", "holds no mapping at its top"),
        ({"r.yaml": "extends: b.yaml\n", "b.yaml": "a: [\n"}, "b.yaml:2:1", "is not YAML"),
        ({"r.yaml": ""}, "r.yaml:1:1", "is empty: a recipe is a mapping of fields"),
        ({"r.yaml": "text\n"}, "r.yaml:1:1", "holds no mapping at its top"),
    ],
)
def test_what_cannot_be_followed(folder: Path, files: dict[str, str], place: str, message: str) -> None:
    error = refused(files)
    assert str(error.position) == place
    assert message in error.message


def test_chains_end(folder: Path) -> None:
    files = {f"{i}.yaml": f"extends: {i + 1}.yaml\n" for i in range(MAX_CHAIN - 1)}
    last = f"{MAX_CHAIN - 1}.yaml"
    assert len(load({**files, last: "seed: 1\n"}).inputs) == MAX_CHAIN
    error = refused({**files, last: "extends: more.yaml\n", "more.yaml": "seed: 1\n"})
    assert (str(error.position), error.message) == (f"{last}:1:10", "extends more than 15 recipes in a row")


def test_links(folder: Path) -> None:
    Path("loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(DocumentError, match=r"loop\.yaml:1:1: cannot be read: .*symbolic link"):
        load_recipe(Path("loop.yaml"))
    Path("link.yaml").symlink_to("r.yaml")
    error = refused({"r.yaml": "extends: link.yaml\n"})
    assert "extends it in turn" in error.message


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("zero.stage=3", ("zero", "stage"), 3),
        ("zero.offload.parameters=cpu", ("zero", "offload", "parameters"), "cpu"),
        ("new.section.key=1e-5", ("new", "section", "key"), 1e-5),
        ("data.files[1]=c.txt", ("data", "files", 1), "c.txt"),
        ("data.files=[z.txt]", ("data", "files"), ["z.txt"]),
        ("batch={micro: 2}", ("batch",), {"micro": 2}),
        ("batch.micro=", ("batch", "micro"), None),
        ("schedule=null", ("schedule",), None),
        ("name='a: b'", ("name",), "a: b"),
        ("environment.A=x=y", ("environment", "A"), "x=y"),
        ("zero.stage=true", ("zero", "stage"), True),
        ("precision.accumulate=fp32", ("precision",), {"type": "bf16", "accumulate": "fp32"}),
        (
            "zero.offload.optimizer.ratio=0.5",
            ("zero", "offload", "optimizer"),
            {"device": "cpu", "ratio": 0.5},
        ),
        ("loss.chunk_tokens=512", ("loss",), {"chunk_tokens": 512}),
    ],
)
def test_overrides(folder: Path, override: str, path: tuple[str | int, ...], value: object) -> None:
    recipe = (
        "precision: bf16\nzero: {stage: 2, offload: {optimizer: cpu}}\ndata: {files: [a.txt, b.txt]}\n"
        "batch: {micro: 1, global: 8}\nloss: plain\n"
    )
    loaded = load({"r.yaml": recipe}, override)
    found = loaded.document.value
    for part in path:
        found = found[part]
    assert found == value
    assert loaded.overrides == (override,)
    assert loaded.document.at(("data", "files", 0)).file == (
        "--set data.files=[z.txt]" if "[z" in override else "r.yaml"
    )


def test_overridden_values_stand_in_the_override(folder: Path) -> None:
    document = load(
        {"r.yaml": "zero: {stage: 2, overlap_comm: true}\n"}, "zero.offload={optimizer: {device: cpu}}"
    ).document
    place = "--set zero.offload={optimizer: {device: cpu}}:1:1"
    assert str(document.at(("zero", "offload"))) == place
    assert str(document.at_key(("zero", "offload", "optimizer", "device"))) == place
    assert str(document.at(("zero", "stage"))) == "r.yaml:1:15"
    replaced = load({"s.yaml": "zero: {stage: 2, overlap_comm: true}\n"}, "zero={stage: 3}", "seed=1").document
    assert replaced.value == {"zero": {"stage": 3}, "seed": 1}
    assert not replaced.has(("zero", "overlap_comm"))
    assert str(replaced.at_key(("zero", "overlap_comm"))) == "--set zero={stage: 3}:1:1"


def test_later_overrides_win(folder: Path) -> None:
    assert load({"r.yaml": "seed: 1\n"}, "seed=2", "seed=3").document.value == {"seed": 3}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("zero.stage", "is not PATH=VALUE"),
        ("=3", "is not PATH=VALUE"),
        (".stage=3", "is not PATH=VALUE"),
        ("zero..stage=3", "is not PATH=VALUE"),
        ("zero.0=3", "is not PATH=VALUE"),
        ("zero[x]=3", "is not PATH=VALUE"),
        ("zero.stage =3", "is not PATH=VALUE"),
        ("", "is not PATH=VALUE"),
        ("data.files[2]=c.txt", "there is no item data.files[2] to replace"),
        ("zero[0]=1", "there is no item zero[0] to replace"),
        ("name=[", "is not YAML: while parsing a flow node did not find expected node content"),
        ("name=!!python/none x", "tag 'tag:yaml.org,2002:python/none' is not allowed: values are plain YAML"),
        ("extends=b.yaml", "extends is followed before --set is read"),
        ("name=" + "9" * 500, "a number of 500 characters is beyond anything that a recipe can mean"),
    ],
)
def test_bad_overrides(folder: Path, override: str, message: str) -> None:
    error = refused({"r.yaml": "zero: {stage: 2}\ndata: {files: [a.txt, b.txt]}\n"}, override)
    assert error.message == message
    assert error.position.file.startswith("--set ") and len(error.position.file) <= 86
    assert error.position.line == 1
