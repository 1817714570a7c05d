"""Passwords and keys in files that are kept and shared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dsgen.documents.positions import Path
from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View

_SECRET = re.compile(
    r"(?i)(?:\A|[_-])(?:api_?key|access_?key|secret|secret_?key|password|passwd|auth_?token|access_?token|api_?token"
    r"|hf_?token|hub_?token)\Z"
)
_STANDS_FOR = re.compile(r"(?i)\s*(?:|none|null|auto|x+|\*+|<.*>|\$.*|\{\{?.*\}?\}|(?:your|my)[-_ ].*)\s*\Z")
"""What stands in place of a secret: nothing, words that people have to replace, variables of a shell or a template."""
# Bounded, so that a text of any length is searched in time linear to it.
_PASSWORD = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,30}://[^/\s:@]{0,200}:([^/\s@]{1,200})@")
_VARIABLES = {"comet": "COMET_API_KEY", "wandb": "WANDB_API_KEY", "hub": "HF_TOKEN", "hf": "HF_TOKEN"}


@rule("SEC001", Severity.WARNING)
def key_stays_outside(view: View) -> Iterator[Problem]:
    """A secret key or a token in a file that is kept with the experiment, and read by everybody who may read that.

    The services take theirs from the environment: COMET_API_KEY, WANDB_API_KEY, HF_TOKEN. DeepSpeed hands
    `comet.api_key` on when it is there, and leaves it to comet when it is not (monitor/comet.py); for Weights & Biases
    it has no key of the kind.

    Example:
        {"comet": {"enabled": true, "api_key": "AbCdEfGhIjKlMnOp"}}

    Instead:
        {"comet": {"enabled": true}}

    Since: DeepSpeed 0.14
    """
    for path, value in _texts(view):
        if isinstance(path[-1], str) and _SECRET.search(path[-1]) and not _STANDS_FOR.match(value):
            variable = _variable(path)
            yield Problem(
                path=path,
                message=f"{path[-1]} is a secret: everybody who can read this file can use it",
                help=f"remove it, give out a new one, and set {variable} where the job is started",
                on_key=True,
            )


@rule("SEC002", Severity.WARNING)
def address_has_no_password(view: View) -> Iterator[Problem]:
    """An address with a password in it, such as `https://user:password@host`.

    It ends up in logs, and stays in the file's history after it has been removed from the file.

    Example:
        {"wandb": {"enabled": true, "group": "https://me:hunter2@example.org"}}

    Instead:
        {"wandb": {"enabled": true, "group": "https://example.org"}}

    Since: DeepSpeed 0.14
    """
    for path, value in _texts(view):
        match = _PASSWORD.search(value)
        if match is not None and not _STANDS_FOR.match(match[1]):
            yield Problem(
                path=path,
                message=f"the address in {path[-1]} holds a password: everybody who can read this file can use it",
                help="write the address without it; keep passwords in ~/.netrc or in the environment",
            )


def _variable(path: Path) -> str:
    if path[0] == "environment":
        return str(path[-1])
    words = " ".join(map(str, path)).lower()
    return next((name for word, name in _VARIABLES.items() if word in words), "an environment variable")


def _texts(view: View) -> Iterator[tuple[Path, str]]:
    """Every text of the config and of the environment, with its path."""
    for name, value in view.environment.items():
        yield ("environment", name), value
    pending: list[tuple[Path, Any]] = [((), view.config)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, str) and path:
            yield path, value
        elif isinstance(value, list):
            pending.extend(((*path, index), item) for index, item in enumerate(value))
        elif isinstance(value, dict):
            pending.extend(((*path, key), item) for key, item in value.items())
