"""Every code is documented, and its example is true: it is linted as a user would lint it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dsgen.cli.lint import command as lint_command
from dsgen.dsconfig.job import job_named
from dsgen.findings import Finding, Severity
from dsgen.lint.lint import lint_file
from dsgen.lint.options import Options
from dsgen.rules.documentation import (
    KINDS,
    Documentation,
    Sample,
    about_family,
    all_documentation,
    documentation,
    documented,
    families,
)
from dsgen.rules.other_codes import OTHER_CODES
from dsgen.rules.registry import all_codes

from ..conftest import REPOSITORY
from .conftest import recipe_text

DOCUMENTED = all_documentation()

SOUND: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
}
"""A ds_config.json with nothing wrong, whose keys examples replace."""

FILES = {
    "ds_config": "ds_config.json",
    "yaml": "ds_config.yaml",
    "recipe": "job.yaml",
    "accelerate": "accelerate.yaml",
    "hostfile": "hostfile",
    "environment": ".deepspeed_env",
}
JOB = ("deepspeed", "framework", "world_size", "model", "device", "client_optimizer")


def content(kind: str, sample: Sample) -> str:
    """A sample as a whole document."""
    if sample.whole or kind not in ("ds_config", "recipe"):
        return sample.text + "\n"
    if kind == "recipe":
        return recipe_text(sample.text + "\n")
    return json.dumps({**SOUND, **json.loads(sample.text)}, indent=2)


def lint(each: Documentation, sample: Sample, folder: Path) -> list[Finding]:
    """Findings in a sample, with the options that the documentation names."""
    path = folder / FILES[each.kind]
    path.write_text(content(each.kind, sample), encoding="utf-8")
    said = lint_command.make_context("lint", [*shlex.split(each.options), str(path)]).params
    job = {name: said[name] for name in JOB if said[name] is not None}
    linted = lint_file(path, Options(job=job_named(**job)))
    kind = "ds_config" if each.kind == "yaml" else each.kind
    assert linted is not None and (linted.kind or kind) == kind
    return list(linted.findings)


@pytest.mark.parametrize("each", DOCUMENTED, ids=lambda each: each.code)
def test_nothing_is_missing(each: Documentation) -> None:
    said = {
        "summary": each.summary,
        "text": each.text,
        "Example": each.example.text,
        "Instead": each.instead.text,
        "Since": each.since,
    }
    assert [name for name, text in said.items() if not text] == []
    assert re.fullmatch(r"\S.{15,112}\.", each.summary)
    assert each.text.endswith((".", '"', ")"))
    assert re.search(r"\d+\.\d+", each.since), each.since
    assert each.example != each.instead


@pytest.mark.parametrize("each", DOCUMENTED, ids=lambda each: each.code)
def test_the_example_gives_the_finding(each: Documentation, tmp_path: Path) -> None:
    found = [finding for finding in lint(each, each.example, tmp_path) if finding.code == each.code]
    assert found
    if each.code in OTHER_CODES:
        assert {finding.severity for finding in found} == {each.severity}


@pytest.mark.parametrize("each", DOCUMENTED, ids=lambda each: each.code)
def test_what_is_written_instead_is_sound(each: Documentation, tmp_path: Path) -> None:
    found = lint(each, each.instead, tmp_path)
    assert [finding for finding in found if finding.code == each.code or finding.severity is Severity.ERROR] == []


def test_the_config_around_the_examples_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(SOUND))
    linted = lint_file(path, Options())
    assert linted is not None
    assert [finding for finding in linted.findings if finding.severity is not Severity.INFO] == []


def test_every_code_in_the_program_is_documented() -> None:
    said = set()
    for path in (REPOSITORY / "dsgen").rglob("*.py"):
        said |= set(re.findall(r'"([A-Z]{3}\d{3})"', path.read_text(encoding="utf-8")))
    assert said == {each.code for each in all_documentation()} == all_codes()


def test_codes_stand_by_family() -> None:
    order = [each.family for each in all_documentation()]
    assert sorted(order, key=families().index) == order
    assert all(about_family(each.family).endswith(".") for each in DOCUMENTED)


def test_looking_codes_up() -> None:
    found = documentation("key001")
    assert found is not None
    assert (found.code, found.family, found.severity) == ("KEY001", "keys", Severity.ERROR)
    assert found.summary == "A key that DeepSpeed does not know."
    assert "without a word (`zero_optimisation` trains at stage 0)" in found.text
    assert found.since.startswith("DeepSpeed 0.14")
    assert documentation("KEY01") is None
    assert documented("Keys") == documented("key") == tuple(e for e in all_documentation() if e.family == "keys")
    assert documented("") == documented("KEY001") == ()


def test_a_whole_file_is_marked_and_the_mark_is_not_shown() -> None:
    found = documentation("REA001")
    assert found is not None
    assert found.example.whole and found.instead.whole
    assert found.example.text.startswith('{\n  "train_micro')
    assert set(KINDS) == set(FILES)
