"""Findings of texts that are linted as a user would lint a file of that name."""

from __future__ import annotations

import json
from typing import Any

from dsgen.dsconfig.job import job_named
from dsgen.findings import Finding
from dsgen.lint.lint import lint_bytes
from dsgen.lint.options import Options

SOUND: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
}
"""A ds_config.json with nothing wrong."""


def lint_text(text: str, name: str, **job: Any) -> list[Finding]:
    """Every finding in a file of that name and content; `job` are options of `dsgen lint`."""
    linted = lint_bytes(text.encode(), name, Options(job=job_named(**job)))
    assert linted is not None
    return list(linted.findings)


def lint_config(changes: dict[str, Any], family: str, **job: Any) -> list[Finding]:
    """Findings of one family in SOUND with some keys replaced (None removes one)."""
    config = {name: value for name, value in {**SOUND, **changes}.items() if value is not None}
    return [each for each in lint_text(json.dumps(config), "ds_config.json", **job) if each.code.startswith(family)]


def said(findings: list[Finding]) -> list[tuple[str, str, str]]:
    """Code, severity and path of each."""
    return [(each.code, each.severity.value, each.path) for each in findings]
