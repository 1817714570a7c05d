from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgen.documents.errors import DocumentError
from dsgen.documents.positions import Position, dotted, undotted
from dsgen.documents.yaml_reader import (
    MAX_BYTES,
    MAX_DEPTH,
    read_bytes,
    read_yaml_bytes,
    read_yaml_file,
    read_yaml_text,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("5e8", 5e8),
        ("1.5E+3", 1500.0),
        ("-7", -7),
        ("0x1F", 31),
        ("0o17", 15),
        ("010", 10),
        (".inf", float("inf")),
        ("on", "on"),
        ("yes", "yes"),
        ("no", "no"),
        ("12:30:45", "12:30:45"),
        ("2026-11-29", "2026-11-29"),
        ("1_000", "1_000"),
        ("true", True),
        ("True", True),
        ("~", None),
        ("null", None),
        ("", None),
        ("'1'", "1"),
        ('"1e-5"', "1e-5"),
        ("!!str 1", "1"),
        ("1.2.3", "1.2.3"),
        (".", "."),
        ("-", None),
    ],
)
def test_scalars_are_yaml_1_2(text: str, value: object) -> None:
    read = read_yaml_text(f"a: {text}" if text != "-" else "a:", "f").value["a"]
    assert read == value
    assert type(read) is type(value)


def test_every_node_has_its_position() -> None:
    document = read_yaml_text("zero:\n  stage: 2\nlist: [1, {b: c}]\n", "r.yaml")
    assert document.at(("zero", "stage")) == Position("r.yaml", 2, 10)
    assert document.at_key(("zero", "stage")) == Position("r.yaml", 2, 3)
    assert document.at(("list", 1, "b")) == Position("r.yaml", 3, 15)
    assert document.at(("zero", "nothing", "deeper")) == document.at(("zero",)) == Position("r.yaml", 2, 3)
    assert str(document.at(("list", 0))) == "r.yaml:3:8"


@pytest.mark.parametrize(
    ("text", "line", "column", "part"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, 1, "stands twice"),
        ("a: {x: 1,\n    x: 2}\n", 2, 5, "first at line 1"),
        ("a: [1, 2\n", 2, 1, "not YAML"),
        ("a: *nobody\n", 1, 4, "no anchor &nobody"),
        ("a: &x [*x]\n", 1, 8, "no anchor"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, 4, "not allowed"),
        ("? [1, 2]\n: 3\n", 1, 3, "key must be plain text"),
        ("a: 1\n---\nb: 2\n", 2, 1, "second document"),
        ("\tb: 1\n", 1, 1, "not YAML"),
        ("a: " + "9" * 5000, 1, 4, "a number of 5000 characters"),
        ('a: "x\\0y"\n', 1, 4, "no file or shell can hold"),
    ],
)
def test_faults_have_a_place(text: str, line: int, column: int, part: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_yaml_text(text, "r.yaml")
    assert (caught.value.position.line, caught.value.position.column) == (line, column)
    assert part in str(caught.value)


def test_nesting_and_expansion_are_bounded() -> None:
    with pytest.raises(DocumentError, match="deeper than"):
        read_yaml_text("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), "f")
    laughs = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
    with pytest.raises(DocumentError, match="aliases are expanded"):
        read_yaml_text(laughs, "f")


def test_aliases_stand_for_their_node() -> None:
    document = read_yaml_text("a: &x {k: [1, 2]}\nb: *x\nc: *x\n", "f")
    assert document.value["b"] == document.value["c"] == {"k": [1, 2]}
    assert document.at(("b",)).line == 2
    assert document.value["b"] is not document.value["a"]


def test_encodings() -> None:
    assert read_yaml_bytes("\ufeffa: é\n".encode(), "f").value == {"a": "é"}
    with pytest.raises(DocumentError, match=r"f:2:4: byte 0xff is not UTF-8"):
        read_yaml_bytes(b"a: 1\nb: \xff\n", "f")


def test_keys_are_text_whatever_they_look_like() -> None:
    document = read_yaml_text("1: a\ntrue: b\n~: c\n'x.y': d\n2.50: e\n", "f")
    assert document.value == {"1": "a", "true": "b", "~": "c", "x.y": "d", "2.50": "e"}
    assert document.has(("x.y",)) and not document.has(("x", "y"))
    assert str(document.at_key(("x.y",))) == "f:4:1"
    assert str(document.at_key(("none",))) == "f:1:1"


@pytest.mark.parametrize("text", ["[a]: 1", "{a: 1}: 1", "? - a\n: 1", "x: &k a\n*k : 1"])
def test_other_keys_are_refused(text: str) -> None:
    with pytest.raises(DocumentError, match="a key must be plain text"):
        read_yaml_text(text, "f")


def test_an_aliased_value_stands_where_the_alias_does() -> None:
    document = read_yaml_text("a: &x\n  k: 1\nb: *x\n", "f")
    assert str(document.at(("b",))) == "f:3:4"
    assert str(document.at(("b", "k"))) == "f:2:6"


def test_a_document_has_a_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"#" * MAX_BYTES)
    assert read_yaml_file(path).value is None
    path.write_bytes(b"#" * (MAX_BYTES + 10))
    assert len(read_bytes(path)) == MAX_BYTES + 1
    with pytest.raises(DocumentError, match="is larger than 4 MiB"):
        read_yaml_file(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="No such file"):
        read_yaml_file(tmp_path / "none.yaml")
    with pytest.raises(DocumentError, match="is a folder"):
        read_yaml_file(tmp_path)
    with pytest.raises(DocumentError, match="not a regular file"):
        read_yaml_file(Path("/dev/zero"))


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    try:
        read_yaml_text(text, "f")
    except DocumentError as error:
        assert error.position.line >= 1 and error.position.column >= 1


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**18), 10**18)
        | st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc-_ é", min_size=1), inner, max_size=3),
        max_leaves=10,
    )
)
def test_json_is_read_as_it_is_written(value: object) -> None:
    import json

    text = json.dumps(value, ensure_ascii=False)  # JSON writes characters beyond U+FFFF as two escapes, YAML as one
    assert read_yaml_text(text, "f").value == value


@given(st.lists(st.integers(0, 99) | st.from_regex(r"[a-z_]{1,8}", fullmatch=True), min_size=1, max_size=5))
def test_dotted_paths_come_back(path: list[int | str]) -> None:
    if isinstance(path[0], int):
        path = ["x", *path]
    assert undotted(dotted(tuple(path))) == tuple(path)
