"""`dsgen estimate` as a program: exit codes, what it prints, and what it loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsgen.cli.main import main_code

from ..conftest import RECIPES

Write = Callable[..., Path]
CARD = {"device": "ascend-910b3-64g", "per_node": 8}
TOO_LARGE: dict[str, Any] = {"model": "llama-2-70b", "zero": {"stage": 2}}


def test_json_of_a_job_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["estimate", str(RECIPES / "7b-fp16-accum4.yaml"), "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] in ("fits", "tight")
    device = said["device"]
    assert device["allocated_peak_bytes"] < device["reserved_peak_bytes"] < device["total_peak_bytes"]
    assert device["total_peak_bytes"] < device["capacity_bytes"]
    by_name = {phase["name"]: phase for phase in device["phases"]}
    assert list(by_name)[:6] == ["load", "initialize", "forward", "loss", "backward", "step"]
    assert by_name[device["peak_phase"]]["allocated_bytes"] == device["allocated_peak_bytes"]
    for phase in device["phases"]:
        assert sum(phase["parts"].values()) == phase["allocated_bytes"]
    assert said["host"]["peak_bytes"] == sum(said["host"]["parts"].values())
    assert (said["advice"], said["closest"]) == ([], None)


def test_a_job_that_does_not_fit_ends_with_1(write_recipe: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["estimate", str(write_recipe(**TOO_LARGE))]) == 1
    said = capsys.readouterr().out
    assert "does not fit" in said.splitlines()[1]
    assert "!" in said


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize(
    "more", [(), ("--compare", "stage"), ("--set", "batch={sequence_length: 65536, micro: 64, accumulation: 1}")]
)
def test_text_fits_80_columns(path: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    main_code(["estimate", str(path), *more])
    for line in capsys.readouterr().out.splitlines()[2:]:
        assert len(line) <= 80, line
        assert line == line.rstrip()


def test_advice_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    recipe, too_much = str(RECIPES / "13b-zero2.yaml"), ("--set", "activation_checkpointing=none")
    assert main_code(["estimate", recipe, *too_much]) == 1
    text = capsys.readouterr().out
    assert "what makes it fit, cheapest first\n  1. --set activation_checkpointing=full\n     fits: device " in text
    assert main_code(["estimate", recipe, *too_much, "--format", "json"]) == 1
    first = json.loads(capsys.readouterr().out)["advice"][0]
    assert first["set"] == ["activation_checkpointing=full"]
    assert main_code(["estimate", recipe, *too_much, "--format", "json", "--set", first["set"][0]]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["device"]["total_peak_bytes"] == first["device_total_peak_bytes"]
    assert said["host"]["peak_bytes"] == first["host_peak_bytes"]


def test_where_nothing_fits_the_closest_is_shown(write_recipe: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["estimate", str(write_recipe(**TOO_LARGE, hardware={**CARD, "host_memory": "64GiB"}))]) == 1
    text = capsys.readouterr().out
    assert "it takes more devices or hosts, or a smaller model\nclosest:\n  --set " in text


def test_stages_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(RECIPES / "13b-zero2.yaml")
    assert main_code(["estimate", recipe, "--compare", "stage"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (same,) = [line for line in lines if "fits*" in line]
    assert same.startswith("2     none ")
    assert main_code(["estimate", recipe, "--compare", "stage", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["name"], said["stage"], said["headroom"]) == ("13b-zero2", 2, 0.1)
    assert said["device"] == {"capacity_bytes": 65452113920} and said["host"]["capacity_bytes"] == 1 << 40
    rows = said["rows"]
    assert len(rows) == 16
    for row in rows:
        assert row["verdict"] in ("fits", "tight", "does not fit")
    by_place = {(row["stage"], row["offload"], row["activation_checkpointing"]): row for row in rows}
    chosen = by_place[2, "none", "full"]
    assert [row for row in rows if row["same"]] == [chosen]
    assert f"{chosen['device_total_peak_bytes'] / 2**30:.1f} GiB" in same


def test_set_changes_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = []
    for micro in (1, 4):
        arguments = ["estimate", str(RECIPES / "13b-zero2.yaml"), "--format", "json", "--set", f"batch.micro={micro}"]
        main_code(arguments)
        phases = json.loads(capsys.readouterr().out)["device"]["phases"]
        sizes.append({phase["name"]: phase["parts"] for phase in phases}["loss"]["logits and loss"])
    assert sizes[1] == 4 * sizes[0]


def test_a_bad_recipe_is_told_like_everywhere(write_recipe: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["estimate", str(write_recipe(zero={"stage": 7}))]) == 1
    assert "zero.stage" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["text", "json", "html"])
@pytest.mark.parametrize("more", [(), ("--compare", "stage")])
def test_a_file_gets_what_would_be_printed(
    form: str, more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["estimate", str(RECIPES / "13b-zero2.yaml"), *more, "--format", form]
    assert main_code(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.startswith({"text": "13b-zero2: ", "json": "{\n", "html": "<!DOCTYPE html>\n"}[form])
    out = tmp_path / "out"
    assert main_code([*arguments, "--output", str(out)]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"written to {out}\n")
    assert out.read_text() == printed
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert main_code([*arguments, "--output", "-"]) == 0
    assert capsys.readouterr().out == printed


def test_an_existing_file_is_overwritten(write_recipe: Write, tmp_path: Path) -> None:
    out, link = tmp_path / "out.html", tmp_path / "link.html"
    out.write_text("before")
    out.chmod(0o640)
    link.symlink_to(out)
    assert main_code(["estimate", str(write_recipe(**TOO_LARGE)), "--format", "html", "--output", str(link)]) == 1
    assert "Does not fit" in out.read_text()
    assert out.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("none/out.html", "the folder none does not exist; nothing was written"),
        ("job.yaml/out.html", "the folder job.yaml is no folder; nothing was written"),
        ("pipe", "is no plain file; nothing was written"),
        ("lost", "is a link that leads nowhere; nothing was written"),
        ("job.yaml", "is the file that is estimated; nothing was written"),
        ("same", "is the file that is estimated; nothing was written"),
        ("folder", "is a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_an_output_that_cannot_be(
    output: str,
    reason: str,
    write_recipe: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = write_recipe()
    before = recipe.read_bytes()
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("lost").symlink_to("nowhere")
    Path("same").symlink_to("job.yaml")
    Path("folder").mkdir()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert main_code(["estimate", "job.yaml", "--format", "html", "--output", output]) == 2
    said = capsys.readouterr()
    assert reason in said.err
    assert said.out == ""
    assert recipe.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == names


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    assert main_code(["estimate", str(RECIPES / "13b-zero2.yaml"), "--output", str(tmp_path / "out")]) == 2
    assert "cannot be written: Permission denied" in capsys.readouterr().err


def test_a_bad_recipe_writes_nothing(write_recipe: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(write_recipe(zero={"stage": 7}))
    for form in ("text", "json", "html"):
        assert main_code(["estimate", recipe, "--format", form, "--output", str(tmp_path / "out")]) == 1
        said = capsys.readouterr()
        assert "zero.stage" in (said.out if form == "json" else said.err)
        assert not (tmp_path / "out").exists()


def test_the_page_of_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "ds_config.json"
    config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}))
    around = ["--model", "llama-2-13b", "--device", "ascend-910b3-64g", "--world-size", "8"]
    main_code(["estimate", "--ds-config", str(config), *around, "--format", "html"])
    page = capsys.readouterr().out
    assert "<h1>ds-config</h1>" in page or "<h1>ds_config</h1>" in page
    assert "<b>Assumed</b> activation_checkpointing: none: no config says it" in page
    assert str(tmp_path) not in page


def test_json_says_which_job_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    main_code(["estimate", str(RECIPES / "13b-zero2.yaml"), "--format", "json"])
    said = json.loads(capsys.readouterr().out)
    names = ["name", "model", "device_id", "world_size", "stage", "precision", "micro_batch", "sequence_length"]
    assert [said[name] for name in names] == [
        *("13b-zero2", "llama-2-13b", "ascend-910b3-64g", 8, 2, "bf16", 1, 2048),
    ]
    main_code(["estimate", str(RECIPES / "13b-zero2.yaml"), "--format", "json", "--set", "batch.micro=4"])
    assert json.loads(capsys.readouterr().out)["micro_batch"] == 4


def test_the_column_of_a_device_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    main_code(["estimate", str(RECIPES / "13b-zero2.yaml"), "--format", "json"])
    device = json.loads(capsys.readouterr().out)["device"]
    beside = device["parts"]["device context"] + device["parts"]["communicators"]
    assert device["allocated_peak_bytes"] == sum(device["parts"].values()) - beside
    assert device["total_peak_bytes"] == device["reserved_peak_bytes"] + beside
    main_code(["estimate", str(RECIPES / "13b-zero2.yaml")])
    lines = capsys.readouterr().out.split("one device at its peak")[1].split("\n\n")[0].splitlines()[1:]
    labels = [line[2:48].split(":")[0].strip() for line in lines]
    at = labels.index("allocated")
    tensors = set(device["parts"]) - {"device context", "communicators"}
    assert set(labels[:at]) == tensors
    assert labels[at : at + 5] == [
        *("allocated", "reserved", "device context", "communicators", "device total, from reserved on"),
    ]
    shares = [int(line.split()[-1].removesuffix("%")) for line in lines[:at]]
    assert abs(sum(shares) - 100) <= len(shares)


TINY: dict[str, Any] = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 4096},
}


def test_a_tiny_model_in_a_folder_of_two_lines(
    write_recipe: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "one\ntwo"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    recipe = str(write_recipe(model="./one\ntwo/config.json"))
    for more in ([], ["--compare", "stage"]):
        main_code(["estimate", recipe, *more])
        said = capsys.readouterr().out
        assert ": one\\ntwo, 8 x " in said.splitlines()[0]
        assert "torch reserves more" not in said


@pytest.mark.parametrize(("headroom", "shown"), [("0.999", "99.9%"), ("0.5", "50%")])
def test_the_headroom_is_shown_as_it_is(headroom: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    main_code(["estimate", str(RECIPES / "13b-zero2.yaml"), "--set", f"memory.headroom={headroom}"])
    assert capsys.readouterr().out.splitlines()[1].endswith(f"; {shown} should stay free")


@pytest.mark.parametrize("form", ["text", "json", "html"])
def test_torch_is_not_loaded(form: str) -> None:
    program = (
        "import sys; from dsgen.cli.main import main_code;"
        f"main_code(['estimate', {str(RECIPES / '13b-zero2.yaml')!r}, '--format', {form!r}]);"
        "sys.exit(bool({'torch', 'deepspeed', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_a_file_of_something_else_is_no_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0:root\ndaemon:x:1:1:daemon\n")
    assert main_code(["estimate", "--ds-config", str(path), "--model", "llama-2-7b", "--device", "cpu"]) == 2
    assert "holds no setting of DeepSpeed's" in capsys.readouterr().err
