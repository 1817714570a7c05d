from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgen.findings import DsgenError
from dsgen.render.templates import env_value, environment, python, render_template, sh, to_json

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.integers(0, 100))
def test_python_literals_come_back(value: object, indent: int) -> None:
    assert ast.literal_eval(python(value, indent)) == value


@given(VALUES)
def test_json_comes_back(value: object) -> None:
    assert json.loads(to_json(value)) == value


@given(TEXT)
def test_shell_words_come_back(text: str) -> None:
    assert shlex.split(sh(text)) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "a'b",
        'a"b',
        "$(touch x)",
        "`touch x`",
        "a\nb",
        "a;b",
        "a b",
        "\\",
        "!!",
        "é漢",
        "-n",
        "",
        "~",
        "*",
        "\t",
        "%s %d",
    ],
)
def test_bash_sees_the_text_itself(text: str) -> None:
    out = subprocess.run(["bash", "-c", f"printf %s {sh(text)}"], capture_output=True, check=True)
    assert out.stdout.decode() == text


@pytest.mark.parametrize(
    "text", ["plain", "a b", "a'b", 'a"b', "$(echo x)", "`echo x`", "$HOME", "\\", "é", "a;b", "!x", "50%n %%", "%h"]
)
def test_deepspeed_hands_values_to_nodes_verbatim(text: str) -> None:
    """The line of the environment file, through what DeepSpeed and pdsh make of it, and a shell."""
    value = env_value(text).strip()
    if re.search(r"[^\w@%+=:,./-]", value):  # as MultiNodeRunner.add_export does
        value = f'"{value}"'
    value = re.sub("%([nhu%])", lambda match: "%" if match[1] == "%" else "REPLACED", value)  # as pdsh does
    out = subprocess.run(["bash", "-c", f'export X={value}; printf %s "$X"'], capture_output=True, check=True)
    assert out.stdout.decode() == text


def test_python_breaks_long_values_and_keeps_short_ones() -> None:
    assert python({"a": 1, "b": [True, None]}) == '{"a": 1, "b": [True, None]}'
    assert python(("x",)) == '("x",)'
    assert python({"key": "v" * 120}) == '{\n    "key": "' + "v" * 120 + '",\n}'


def test_compiled_templates_are_kept_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSGEN_CACHE_DIR", str(tmp_path))
    assert render_template(environment({"t.j2": "{{ 1 }}"}, cached=True), "t.j2") == "1"
    (kept,) = (tmp_path / "templates").iterdir()
    assert render_template(environment({"t.j2": "{{ 2 }}"}, cached=True), "t.j2") == "2"
    kept.write_bytes(b"torn")
    assert render_template(environment({"t.j2": "{{ 2 }}"}, cached=True), "t.j2") == "2"
    assert (tmp_path / "templates").stat().st_mode & 0o077 == 0


def test_compiled_templates_of_others_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSGEN_CACHE_DIR", str(tmp_path))
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates").chmod(0o777)
    assert render_template(environment({"t.j2": "{{ 1 }}"}, cached=True), "t.j2") == "1"
    assert list((tmp_path / "templates").iterdir()) == []
    monkeypatch.setenv("DSGEN_CACHE_DIR", "/proc/nowhere")
    assert render_template(environment({"t.j2": "{{ 1 }}"}, cached=True), "t.j2") == "1"


def test_values_without_a_plain_form_are_refused() -> None:
    for value in (True, None, ["a"], {"a": 1}):
        with pytest.raises(TypeError):
            sh(value)
    with pytest.raises(ValueError):
        to_json(float("nan"))
    with pytest.raises(TypeError):
        python(object())


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("line\n{{ missing }}\n", "template t.j2:2: 'missing' is undefined"),
        ("{% if %}", "template t.j2:1"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{% include 'other.j2' %}", "asks for other.j2"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% include 't.j2' %}", "calls itself without end"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself without end"),
    ],
)
def test_template_faults_name_the_template(source: str, part: str) -> None:
    with pytest.raises(DsgenError) as caught:
        render_template(environment({"t.j2": source}), "t.j2")
    assert part in str(caught.value)
