from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dsgen.cli.main import main_code

CONFIG = """{
  "train_micro_batch_size_per_gpu": 2,
  "gradient_clipping": 1.0,
  "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
  "zero_optimisation": {"stage": 2}
}
"""
GOOD = CONFIG.replace("optimisation", "optimization")


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_text(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at / "c.json").write_text(CONFIG)
    assert main_code(["lint", "c.json"]) == 1
    said = capsys.readouterr()
    assert said.err == ""
    assert (
        "error[KEY001]: DeepSpeed 0.19.8 knows no key 'zero_optimisation' at the top level: "
        "it is ignored without a word\n"
        "  --> c.json:6:3\n"
        "    |\n"
        '  6 |   "zero_optimisation": {"stage": 2}\n'
        "    |   ^^^^^^^^^^^^^^^^^^^\n"
        "  help: did you mean zero_optimization?\n"
    ) in said.out
    assert said.out.endswith("1 error in 1 file\n")


def test_clean(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at / "c.json").write_text(GOOD)
    assert main_code(["lint", "c.json"]) == 0
    assert capsys.readouterr().out == "nothing found in 1 file\n"


def test_json(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at / "c.json").write_text(CONFIG)
    (at / "d.json").write_text(GOOD)
    assert main_code(["lint", "c.json", "d.json", "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == 2
    (finding,) = found["findings"]
    assert finding == {
        "file": "c.json",
        "line": 6,
        "column": 3,
        "path": "zero_optimisation",
        "code": "KEY001",
        "severity": "error",
        "message": "DeepSpeed 0.19.8 knows no key 'zero_optimisation' at the top level: it is ignored without a word",
        "help": "did you mean zero_optimization?",
        "fix": [{"action": "rename", "path": "zero_optimisation", "to": "zero_optimization"}],
    }


def test_github(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at / "a,b.json").write_text(CONFIG)
    assert main_code(["lint", "a,b.json", "--format", "github"]) == 1
    assert capsys.readouterr().out.startswith(
        "::error file=a%2Cb.json,line=6,col=3,title=KEY001::DeepSpeed 0.19.8 knows"
    )


def part(**properties: Any) -> dict[str, Any]:
    """An object of SARIF that holds these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT = {"type": "string", "minLength": 1}
NUMBER = {"type": "integer", "minimum": 1}
# Those parts of SARIF 2.1.0 that are written, as its schema has them; the whole schema was checked by hand.
SARIF = part(
    **{"$schema": {"type": "string", "format": "uri"}, "version": {"enum": ["2.1.0"]}},
    runs={
        "type": "array",
        "items": part(
            tool=part(
                driver=part(
                    name=TEXT,
                    version=TEXT,
                    rules={"type": "array", "items": part(id=TEXT, shortDescription=part(text=TEXT))},
                )
            ),
            columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
            results={
                "type": "array",
                "items": part(
                    ruleId=TEXT,
                    ruleIndex={"type": "integer", "minimum": 0},
                    level={"enum": ["none", "note", "warning", "error"]},
                    message=part(text=TEXT),
                    locations={
                        "type": "array",
                        "items": part(
                            physicalLocation=part(
                                artifactLocation=part(uri={"type": "string", "format": "uri-reference"}),
                                region=part(startLine=NUMBER, startColumn=NUMBER),
                            )
                        ),
                    },
                ),
            },
        ),
    },
)


def test_sarif(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at / "a b.json").write_text(CONFIG)
    (at / "broken.json").write_text("{")
    assert main_code(["lint", "a b.json", "broken.json", "--format", "sarif"]) == 2
    log = json.loads(capsys.readouterr().out)
    jsonschema.Draft7Validator(SARIF, format_checker=jsonschema.FormatChecker()).validate(log)
    (run,) = log["runs"]
    by_rule = {result["ruleId"]: result for result in run["results"]}
    assert set(by_rule) == {"DOC001", "KEY001"}
    place = by_rule["KEY001"]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "a%20b.json"}, "region": {"startLine": 6, "startColumn": 3}}
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_unreadable_files_are_findings_among_others(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at / "c.json").write_text(CONFIG)
    (at / "broken.json").write_text('{"a": 1')
    assert main_code(["lint", "broken.json", "c.json", "missing.json"]) == 2
    said = capsys.readouterr().out
    assert "error[DOC001]" in said and "KEY001" in said and "missing.json" in said
    assert said.endswith("3 errors in 3 files\n")


def test_strict(at: Path) -> None:
    (at / "c.json").write_text(GOOD.replace('"enabled": true', '"enabled": "true"'))
    assert main_code(["lint", "c.json"]) == 0
    assert main_code(["lint", "c.json", "--strict"]) == 1
    assert main_code(["lint", "c.json", "--strict", "--ignore", "KEY003"]) == 0


def test_standard_input(at: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CONFIG.encode())))
    assert main_code(["lint", "-", "--stdin-name", "x.json"]) == 1
    assert "--> x.json:6:3" in capsys.readouterr().out


def test_fix_and_diff(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at / "c.json").write_text(CONFIG)
    assert main_code(["lint", "c.json", "--diff"]) == 1
    assert '+  "zero_optimization": {"stage": 2}' in capsys.readouterr().out
    assert (at / "c.json").read_text() == CONFIG
    assert main_code(["lint", "c.json", "--fix"]) == 0
    assert capsys.readouterr().out == "c.json: 1 repair\nnothing found in 1 file\n"
    assert (at / "c.json").read_text() == GOOD
    assert main_code(["lint", "c.json", "--diff"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--deepspeed", "0.3.0"], "nothing is known of DeepSpeed 0.3.0"),
        (["--device", "ascend-910b33"], "unknown device 'ascend-910b33'"),
        (["--model", "llama-2-7bb"], "unknown model 'llama-2-7bb'"),
        (["--model", "./nothing.json"], "model ./nothing.json: cannot be read"),
        (["--select", "KEY999"], "no rule has a code that starts with 'KEY999'"),
        (["--world-size", "0"], "--world-size"),
        (["--framework", "jax"], "--framework"),
    ],
)
def test_wrong_use(at: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    (at / "c.json").write_text(GOOD)
    assert main_code(["lint", "c.json", *words]) == 2
    assert said in capsys.readouterr().err


def test_world_size(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at / "c.json").write_text(GOOD.replace("{\n", '{\n  "train_batch_size": 12,\n', 1))
    assert main_code(["lint", "c.json", "--world-size", "2", "--select", "BAT"]) == 0
    assert main_code(["lint", "c.json", "--world-size", "4", "--select", "BAT"]) == 1
    assert "BAT003" in capsys.readouterr().out


def test_recipes_are_linted_too(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at / "r.yaml").write_text("schema: 1\nname: x\nmodel: llama-2-7b\nzero: {stage: 5}\n")
    assert main_code(["lint", "r.yaml"]) == 1
    assert "--> r.yaml:4:15" in capsys.readouterr().out


def test_a_comment_leaves_a_finding_out(at: Path) -> None:
    (at / "c.json").write_text(CONFIG.replace('{"stage": 2}', '{"stage": 2}  // dsgen: ignore[KEY001,REA002]'))
    assert main_code(["lint", "c.json"]) == 0


def test_a_secret_is_not_shown_again(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at / "c.json").write_text(GOOD.replace("{\n", '{\n  "comet": {"enabled": true, "api_key": "s3cr3t-key"},\n', 1))
    for form in ("text", "json", "github", "sarif"):
        main_code(["lint", "c.json", "--format", form, "--select", "SEC"])
        said = capsys.readouterr().out
        assert "SEC001" in said and "s3cr3t" not in said
