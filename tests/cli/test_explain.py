from __future__ import annotations

import json

import pytest

from dsgen.cli.main import main_code
from dsgen.rules.documentation import Documentation, all_documentation


def test_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["explain", "zro001"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ZRO001  error; warning in a ds_config.json\n")
    assert main_code(["explain", "KEY009"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("KEY009  error\nA key that DeepSpeed knows in another section.\n\nWhere it stands ")
    assert '\n\nExample (ds_config.json):\n    {"offload_optimizer": {"device": "cpu"}, ' in out
    assert '\n\nInstead:\n    {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}\n\n' in out
    assert out.endswith("\n\nSince DeepSpeed 0.14\n")


def test_what_the_example_needs_and_what_cannot_be_seen_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["explain", "AUT002"]) == 0
    assert "\nFound with --framework native\n" in capsys.readouterr().out
    assert main_code(["explain", "REA006"]) == 0
    assert '    \\ufeff{"train_micro' in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["recipe"], ["REC"]])
def test_the_codes_of_families(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["explain", *words]) == 0
    out = capsys.readouterr().out
    assert "  REC004  error    A model that is not found.\n" in out
    assert max(map(len, out.splitlines())) <= 80
    listed = [line.split()[0] for line in out.splitlines() if line[:3] == "  R" or line[:3] == "  K"]
    assert ("KEY001" in listed) == (not words)


@pytest.mark.parametrize("each", all_documentation(), ids=lambda each: each.code)
def test_every_page_reads_well(each: Documentation, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["explain", each.code]) == 0
    prose = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("    ")]
    assert max(map(len, prose)) <= 80


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["explain", "KEY005", "--format", "json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert (one["code"], one["severity"], one["severity_in_ds_config"]) == ("KEY005", "error", "warning")
    assert json.loads(one["example"])["zero_optimization"] == {"stage": 2, "cpu_offload": True}
    assert main_code(["explain", "--format", "json"]) == 0
    assert [each["code"] for each in json.loads(capsys.readouterr().out)] == [e.code for e in all_documentation()]


def test_several_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["explain", "KEY009", "sec", "ZRO001"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("KEY009  error\n")
    assert "\n\nSince DeepSpeed 0.14\n\nsecrets: " in out and "  SEC001  warning  " in out
    assert "\n\nZRO001  error; " in out and out.count("`dsgen explain CODE` says more.") == 1
    assert main_code(["explain", "SEC001", "sec", "KEY009", "--format", "json"]) == 0
    assert [each["code"] for each in json.loads(capsys.readouterr().out)] == ["SEC001", "SEC002", "KEY009"]
    assert main_code(["explain", "KEY009", "KEY01"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and "no code or family is called 'KEY01'" in told.err


def test_unknown_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_code(["explain", "KEY01"]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err) == (
        "",
        "error: no code or family is called 'KEY01'\n  help: did you mean KEY010 or KEY001 or KEY002?\n",
    )
    assert main_code(["explain", "???"]) == 2
    assert "`dsgen explain` lists them all" in capsys.readouterr().err
    assert main_code(["explain", "kys", "--format", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["help"] == "did you mean keys?"
