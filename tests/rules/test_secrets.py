from __future__ import annotations

from typing import Any

import pytest

from .linted import lint_config, said

KEY = "AbCdEfGhIjKlMnOpQrStUvWx"


@pytest.mark.parametrize(
    ("changes", "path", "variable"),
    [
        ({"comet": {"enabled": True, "api_key": KEY}}, "comet.api_key", "COMET_API_KEY"),
        ({"wandb": {"enabled": True, "api_key": KEY}}, "wandb.api_key", "WANDB_API_KEY"),
        ({"wandb_api_key": KEY}, "wandb_api_key", "WANDB_API_KEY"),
        ({"hub_token": KEY}, "hub_token", "HF_TOKEN"),
        ({"monitors": [{"password": KEY}]}, "monitors[0].password", "an environment variable"),
    ],
)
def test_a_secret(changes: dict[str, Any], path: str, variable: str) -> None:
    (finding,) = lint_config(changes, "SEC")
    assert (finding.code, finding.severity.value, finding.path) == ("SEC001", "warning", path)
    assert f"set {variable} where" in finding.help
    assert KEY not in finding.message + finding.help


@pytest.mark.parametrize(
    "value", ["", "none", "<your key>", "YOUR_API_KEY", "your-key", "$COMET_API_KEY", "${KEY}", "xxx", None]
)
def test_what_stands_for_a_secret(value: Any) -> None:
    assert lint_config({"comet": {"enabled": True, "api_key": value}}, "SEC") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"comet": {"experiment_key": KEY, "workspace": "team"}},
        {"wandb": {"team": "us", "project": "keys", "group": "token"}},
        {"tokenizer": KEY, "tokens": KEY, "api_key_file": "/run/secrets/key"},
        {"wandb": {"group": "https://example.org:8080/a@b"}},
        {"wandb": {"group": "https://me@example.org"}},
        {"wandb": {"group": "https://me:${PASSWORD}@example.org"}},
    ],
)
def test_no_secret(changes: dict[str, Any]) -> None:
    assert lint_config(changes, "SEC") == []


def test_a_password_in_an_address() -> None:
    found = lint_config({"wandb": {"group": "see https://me:hunter2@example.org/x"}}, "SEC")
    assert said(found) == [("SEC002", "warning", "wandb.group")]
    assert "hunter2" not in found[0].message + found[0].help
