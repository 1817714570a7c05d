"""Hostfiles and environment files: what dsgen writes is clean, and the findings are what DeepSpeed's launcher does."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgen.documents.errors import DocumentError
from dsgen.lint.launch_files import lint_launch_file
from dsgen.lint.lint import lint_bytes, lint_file
from dsgen.lint.options import Options
from dsgen.render.files import render_recipe

HOSTFILES = {
    "good": "w0 slots=8\n# comment\n\nw1 slots=8 # tail\n",
    "one": "w0 slots=4",
    "trailing": "w0 slots=8garbage\nw1 slots=8 max_slots=16\n",
    "zero": "w0 slots=8\nw1 slots=0\n",
    "user": "me@w0 slots=8\nfe80::1 slots=8\n",
    "spaces": "w0 slots = 8\n",
    "colon": "w0:8\n",
    "bare": "w0 slots=8\nw1\n",
    "twice": "w0 slots=8\nw0 slots=8\n",
    "empty": "",
    "comments": "# w0 slots=8\n",
    "mark": "\ufeffw0 slots=8\nw1 slots=8\n",
}
ENVIRONMENTS = {
    "good": "A=1\nB = x y\nC=b=c\n",
    "blank": "A=1\n\n",
    "comment": "# note\nA=1\n",
    "commented": "A=1\n# B=2\n",
    "export": "export A=1\n",
    "hyphen": "A-B=1\nA=1\n",
    "double": 'A="x y"\n',
    "single": "A='x'\n",
    "tail": "A=1 # one\n",
    "twice": "A=1\nA=2\n",
}

ASK = """
import collections, json, os, sys
from deepspeed.launcher import runner
asked = json.load(sys.stdin)
told = {"hosts": {}, "environment": {}}
for name, text in asked["hosts"].items():
    with open("hosts", "w") as stream:
        stream.write(text)
    try:
        told["hosts"][name] = dict(runner.fetch_hostfile("hosts"))
    except ValueError as error:
        told["hosts"][name] = str(error).partition(",")[0]
with open("hosts", "w") as stream:
    stream.write("w0 slots=1\\nw1 slots=1\\n")
for name, text in asked["environment"].items():
    with open(".deepspeed_env", "w") as stream:
        stream.write(text)
    try:
        runner.main(["--hostfile", "hosts", "--master_addr", "w0", "--no_ssh_check", "train.py"])
        told["environment"][name] = open("command").read()
    except ValueError as error:
        told["environment"][name] = str(error)
json.dump(told, open("told", "w"))
"""
"""Asks DeepSpeed's own launcher; a pdsh that only writes down its command stands in for the real one."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the launcher makes of the files above: hosts, or the command for the nodes, or the text of its error."""
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("the real DeepSpeed is asked; install the extra `train`")
    folder = tmp_path_factory.mktemp("launcher")
    pdsh = folder / "bin" / "pdsh"
    pdsh.parent.mkdir()
    pdsh.write_text('#!/bin/sh\nshift 5\nprintf "%s" "$*" > command\n')
    pdsh.chmod(0o755)
    environment = {
        "PATH": f"{pdsh.parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "DS_ACCELERATOR": "cpu",
        "TRITON_CACHE_DIR": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps({"hosts": HOSTFILES, "environment": ENVIRONMENTS}),
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, dict[str, Any]] = json.loads((folder / "told").read_text())
    return answer


def codes(text: str, name: str) -> set[str]:
    linted = lint_bytes(text.encode(), name, Options())
    assert linted is not None
    return {each.code for each in linted.findings}


@pytest.mark.parametrize("name", HOSTFILES)
def test_hostfiles_that_the_launcher_refuses_have_an_error(name: str, told: dict[str, dict[str, Any]]) -> None:
    answer, found = told["hosts"][name], codes(HOSTFILES[name], "hostfile")
    refusals = {
        "Hostfile contains a bad entry": "HST001",
        "Hostfile contains multiple entries for w0": "HST002",
        "Hostfile is empty or not formatted correctly": "HST003",
    }
    if isinstance(answer, str):
        assert refusals[next(text for text in refusals if answer.startswith(text))] in found
    else:
        assert not found & set(refusals.values())


def test_hosts_are_what_the_launcher_takes(told: dict[str, dict[str, Any]]) -> None:
    hosts = told["hosts"]
    assert hosts["good"] == {"w0": 8, "w1": 8}
    assert hosts["trailing"] == {"w0": 8, "w1": 8}
    assert codes(HOSTFILES["trailing"], "hostfile") == {"HST004"}
    assert hosts["zero"] == {"w0": 8, "w1": 0}
    assert hosts["user"] == {"me@w0": 8, "fe80::1": 8}
    assert "\ufeffw0" in hosts["mark"]


def started(command: str) -> str:
    """What a node would do that gets the command: print A, instead of going to the folder and starting ranks."""
    exports = command.partition("cd ")[0]
    shell = subprocess.run(["bash", "-c", f"{exports} echo started:$A"], capture_output=True, text=True, env={})
    return shell.stdout.strip().rpartition("\n")[2]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("good", "started:1", set()),
        ("commented", None, {"ENV010"}),
        ("export", "started:1", {"ENV001"}),
        ("hyphen", "started:1", {"ENV001"}),
        ("double", "started:x", {"ENV011"}),
        ("single", "started:'x'", {"ENV011"}),
        ("tail", "started:1 # one", {"ENV012"}),
        ("twice", "started:2", {"ENV013"}),
    ],
)
def test_nodes_get_what_is_said(
    name: str, value: str | None, expected: set[str], told: dict[str, dict[str, Any]]
) -> None:
    last = started(told["environment"][name])
    assert last == value if value is not None else "started" not in last
    assert codes(ENVIRONMENTS[name], ".deepspeed_env") == expected


@pytest.mark.parametrize("name", ["blank", "comment"])
def test_lines_that_stop_the_launcher(name: str, told: dict[str, dict[str, Any]]) -> None:
    assert told["environment"][name] == "not enough values to unpack (expected 2, got 1)"
    assert codes(ENVIRONMENTS[name], ".deepspeed_env") == {"ENV009"}


def test_what_dsgen_writes_is_clean(write_recipe: Callable[..., Path], tmp_path: Path) -> None:
    path = write_recipe(
        hardware={"device": "ascend-910b3-64g", "nodes": 2, "hosts": ["node-a", "10.0.0.2"]},
        environment={"NOTE": 'say "hi" to $HOME, 100 %', "HCCL_CONNECT_TIMEOUT": 600, "EMPTY": ""},
    )
    rendered = render_recipe(path)
    for name in ("hostfile", ".deepspeed_env"):
        (tmp_path / name).write_bytes(rendered.files[name])
        linted = lint_file(tmp_path / name, Options())
        assert linted is not None and linted.document is not None and linted.document.value
        assert linted.findings == ()


def test_text_in_another_encoding_is_told() -> None:
    with pytest.raises(DocumentError, match="0xff is not UTF-8") as caught:
        lint_launch_file(b"w0 slots=8\n\xff", "hostfile", "hostfile")
    assert caught.value.position.line == 2


@given(
    st.text(st.sampled_from("aw0 =#'\"\n\r\t:@[\ufeff\\export slots=8")), st.sampled_from(["hostfile", "environment"])
)
def test_any_text_can_be_linted(text: str, kind: Any) -> None:
    document, found = lint_launch_file(text.encode(), "x", kind)
    for finding in found:
        assert 1 <= finding.position.line <= max(1, len(document.value))
