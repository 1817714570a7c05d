from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsgen.cli.main import main_code

from ..conftest import RECIPES, REPOSITORY

Write = Callable[..., Path]
R13B = str(RECIPES / "13b-zero2.yaml")


def test_render_then_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main_code(["render", R13B, "-o", out]) == 0
    said = capsys.readouterr()
    assert "13,015,864,320 parameters" in said.out and "ZeRO-2" in said.out
    assert said.err == ""
    assert main_code(["render", R13B, "-o", out, "--check"]) == 0
    assert "is what the recipe renders to" in capsys.readouterr().out
    (tmp_path / "out" / "ds_config.json").write_text("{}")
    assert main_code(["render", R13B, "-o", out, "--check"]) == 1
    assert '+  "train_batch_size": 128,' in capsys.readouterr().out
    assert (tmp_path / "out" / "ds_config.json").read_text() == "{}"


def test_check_replays_the_overrides_of_the_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main_code(["render", R13B, "-o", out, "--set", "batch.global=256", "--set", "seed=1"]) == 0
    assert json.loads((tmp_path / "out" / "ds_config.json").read_text())["train_batch_size"] == 256
    capsys.readouterr()
    assert main_code(["render", R13B, "-o", out, "--check"]) == 0
    assert "with --set batch.global=256 --set seed=1, as its lock says" in capsys.readouterr().out
    assert main_code(["render", R13B, "-o", out, "--check", "--set", "seed=2"]) == 1


def test_check_replays_the_templates_of_the_lock(tmp_path: Path, write_recipe: Write) -> None:
    recipe = str(write_recipe())
    overlay = tmp_path / "mine"
    overlay.mkdir()
    (overlay / "train.py.j2").write_text("pass\n")
    out = str(tmp_path / "out")
    assert main_code(["render", recipe, "-o", out, "--templates", str(overlay)]) == 0
    assert main_code(["render", recipe, "-o", out, "--check"]) == 0
    (overlay / "train.py.j2").write_text("pass  # changed\n")
    assert main_code(["render", recipe, "-o", out, "--check"]) == 1


def test_check_without_a_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["render", R13B, "-o", str(tmp_path), "--check"]) == 2
    assert "holds no dsgen.lock.yaml" in capsys.readouterr().err


def test_json_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["render", R13B, "-o", str(tmp_path), "--format", "json", "--explain"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["name"] == "13b-zero2"
    assert {each["name"]: each["state"] for each in content["files"]}["train.py"] == "new"
    assert {"path": "train_batch_size", "value": 128, "reason": "the recipe says so"} in content["resolved"]
    assert main_code(["render", R13B, "-o", str(tmp_path), "--check", "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content == {"output": str(tmp_path), "same": True, "overrides_from_lock": [], "differences": []}


def test_errors_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_json = ["--format", "json", "-o", str(tmp_path / "out")]
    assert main_code(["render", R13B, *as_json, "--set", "zero.stage=9"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["code"], found["path"], found["severity"]) == ("REC002", "zero.stage", "error")
    assert main_code(["render", "nowhere.yaml", *as_json]) == 2
    assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "DOC001"
    assert main_code(["render", R13B, *as_json, "--check"]) == 2
    assert "holds no dsgen.lock.yaml" in json.loads(capsys.readouterr().out)["error"]


def test_explain_gives_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["render", R13B, "-o", str(tmp_path), "--explain"]) == 0
    out = capsys.readouterr().out
    assert "gradient_accumulation_steps = 16\n    global = micro x accumulation x 8 data-parallel ranks" in out


def test_errors_show_place_line_and_help(
    write_recipe: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(
        batch={"sequence_length": 2048, "micro": 2, "global": 256},
        hardware={"device": "ascend-910b3-64g", "per_node": 7},
        precison="bf16",
    )
    out = tmp_path / "out"
    assert main_code(["render", str(recipe), "-o", str(out)]) == 1
    said = capsys.readouterr().err
    line = recipe.read_text().splitlines().index("  global: 256") + 1
    assert f"--> {recipe}:{line}:11" in said
    assert "nearest: 252 (accumulation 18) or 266 (accumulation 19)" in said
    assert "unknown field precison" in said and "did you mean precision?" in said
    assert f"{line} |   global: 256\n" in said and "          ^^^\n" in said
    assert "2 errors" in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["render"], 2, "Missing argument"),
        (["render", "nowhere.yaml"], 2, "nowhere.yaml:1:1: cannot be read: No such file"),
        (["render", str(REPOSITORY)], 2, "is a folder"),
        (["render", R13B, "--set", "zero"], 2, "is not PATH=VALUE"),
        (["render", R13B, "--set", "zero.stage=["], 2, "the value is read as YAML"),
        (["render", R13B, "--set", "zero.stage=9"], 1, "zero.stage: expected 0, 1, 2 or 3"),
        (["nonsense"], 2, "No such command"),
        (["render", R13B, "--nonsense"], 2, "No such option"),
        (["render", R13B, "--templates", "nowhere"], 2, "--templates nowhere: is no folder"),
        (["render", R13B, "-o", "/proc/self/out"], 2, "cannot be written"),
        (["render", R13B, "-o", ""], 2, "the name of the folder is empty"),
        (["render", R13B, "-o", "a" * 300], 2, "File name too long"),
    ],
)
def test_wrong_use(
    arguments: list[str],
    code: int,
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main_code(arguments) == code
    said = capsys.readouterr()
    assert part in said.err
    assert "Traceback" not in said.err + said.out
    assert list(tmp_path.iterdir()) == []


TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 300,
}
HOSTILE = [
    "$(touch {mark})",
    "`touch {mark}`",
    "'; touch {mark}; '",
    '"; touch {mark}; "',
    "a\nb\ttouch {mark}\n",
    '"""\nimport os; os.system("touch {mark}")\n"""',
    "{{{{ 7 * 7 }}}}{{% raw %}}",
    "\\' + __import__('os').system('touch {mark}') + \\'",
    "é漢字 \u2028 end",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_comes_out_verbatim(text: str, write_recipe: Write, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    text = text.format(mark=mark)
    recipe = write_recipe(
        description=text,
        weights="./" + text,
        tokenizer="./" + text,
        data={"files": [text + ".txt", "b.jsonl"], "field": text},
        optimizer={"type": "AdamW", "lr": 1e-5},
        environment={"NOTE": text.replace("\n", " ")},
    )
    out = tmp_path / "out"
    assert main_code(["render", str(recipe), "-o", str(out)]) == 0
    train = (out / "train.py").read_text()
    tree = ast.parse(train)
    call = next(
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SETTINGS"
    )
    said = {
        keyword.arg: _value(keyword.value)
        for node in ast.walk(call)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
    }
    assert said["weights"] == said["tokenizer"] == "./" + text
    assert said["files"] == (text + ".txt", "b.jsonl")
    assert said["text_field"] == text
    subprocess.run([sys.executable, str(out / "train.py")], capture_output=True, cwd=tmp_path, timeout=120)
    dry = {"DSGEN_DRY_RUN": "1", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run(["bash", str(out / "launch.sh")], capture_output=True, cwd=tmp_path, env=dry, timeout=120)
    assert subprocess.run(["bash", "-n", str(out / "launch.sh")], capture_output=True).returncode == 0
    assert not mark.exists()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_comes_out_verbatim_elsewhere(text: str, write_recipe: Write, tmp_path: Path) -> None:
    text = text.format(mark=tmp_path / "executed")
    recipe = write_recipe(
        zero={"stage": 3, "offload": {"optimizer": {"device": "nvme", "path": f"/{text}"}, "parameters": "cpu"}},
        data={"files": ["a.jsonl"], "mode": "instruction", "prompt_field": text, "answer_field": text + "2"},
        model={**TINY, "note": text},
        launcher="torchrun",
    )
    out = tmp_path / "out"
    assert main_code(["render", str(recipe), "-o", str(out)]) == 0
    config = json.loads((out / "ds_config.json").read_text())
    assert config["zero_optimization"]["offload_optimizer"]["nvme_path"] == f"/{text}"
    tree = ast.parse((out / "train.py").read_text())
    said = {
        keyword.arg: _value(keyword.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
    }
    assert (said["prompt_field"], said["answer_field"]) == (text, text + "2")
    assert ast.literal_eval(ast.unparse(_keyword(tree, "config")))["note"] == text
    assert subprocess.run(["bash", "-n", str(out / "launch.sh")], capture_output=True).returncode == 0


def _keyword(tree: ast.Module, name: str) -> ast.expr:
    """The first keyword argument of that name."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return next(keyword.value for call in calls for keyword in call.keywords if keyword.arg == name)


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def test_environment_reaches_the_shell_verbatim(write_recipe: Write, tmp_path: Path) -> None:
    text = "a 'b' \"c\" $(d) `e` \\ !f *"
    recipe = write_recipe(environment={"NOTE": text}, hardware={"device": "cpu", "per_node": 2}, precision="bf16")
    assert main_code(["render", str(recipe), "-o", str(tmp_path / "out")]) == 0
    script = (tmp_path / "out" / "launch.sh").read_text()
    line = next(line for line in script.splitlines() if line.startswith("setting NOTE "))
    out = subprocess.run(["bash", "-c", f'setting() {{ printf %s "$2"; }}; {line}'], capture_output=True, check=True)
    assert out.stdout.decode() == text
