from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgen.documents.document import Document
from dsgen.documents.errors import DocumentError
from dsgen.documents.json_reader import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_NODES,
    read_json_bytes,
    read_json_file,
    read_json_text,
)
from dsgen.documents.positions import Position
from dsgen.documents.yaml_reader import MAX_BYTES

CONFIG = """{
  "train_micro_batch_size_per_gpu": 4,
  "gradient_clipping": 1.0,
  "optimizer": {
    "type": "AdamW",
    "params": {"lr": 2e-5, "betas": [0.9, 0.95], "torch_adam": true}
  },
  "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "offload_param": null}
}
"""


def notes(document: Document) -> list[tuple[str, str, tuple[str | int, ...], str]]:
    return [(n.kind, f"{n.position.line}:{n.position.column}", n.path, n.detail) for n in document.notes]


def test_a_config_has_its_values_and_every_position() -> None:
    document = read_json_text(CONFIG, "ds.json")
    assert document.value == json.loads(CONFIG)
    assert document.notes == ()
    assert document.sources == {"ds.json": CONFIG}
    assert document.at(()) == Position("ds.json", 1, 1)
    assert document.at(("optimizer", "params", "betas", 1)) == Position("ds.json", 6, 43)
    assert document.at_key(("optimizer", "params", "betas")) == Position("ds.json", 6, 28)
    assert document.at(("optimizer", "params", "eps")) == Position("ds.json", 6, 15)
    assert document.has(("zero_optimization", "offload_param")) and not document.has(("zero_optimization", "eps"))


def test_spans_are_the_pieces_of_the_text() -> None:
    document = read_json_text(CONFIG, "f")
    pieces = {path: CONFIG[start:end] for path, (start, end) in document.spans.items()}
    keys = {path: CONFIG[start:end] for path, (start, end) in document.key_spans.items()}
    assert pieces[()] == CONFIG.strip()
    assert pieces["optimizer", "type"] == '"AdamW"'
    assert pieces["optimizer", "params", "betas"] == "[0.9, 0.95]"
    assert pieces["zero_optimization", "reduce_bucket_size"] == "5e8"
    assert pieces["zero_optimization", "offload_param"] == "null"
    assert keys["optimizer", "params", "lr"] == '"lr"'
    assert ("optimizer", "params", "betas", 0) in pieces and ("optimizer", "params", "betas", 0) not in keys


def test_spans_of_hjson() -> None:
    text = "a : b c  \n'd': '''\n  x\n  '''\ne: 'f' # g\n"
    document = read_json_text(text, "f")
    assert {path: text[start:end] for path, (start, end) in document.spans.items()} == {
        (): text[: text.index(" # g")],
        ("a",): "b c",
        ("d",): "'''\n  x\n  '''",
        ("e",): "'f'",
    } | {(): text}
    assert {path: text[start:end] for path, (start, end) in document.key_spans.items()} == {
        ("a",): "a",
        ("d",): "'d'",
        ("e",): "e",
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2.0", 2.0),
        ("5e8", 5e8),
        ("-0", 0),
        ("-0.0", -0.0),
        ("1" * MAX_DIGITS, int("1" * MAX_DIGITS)),
        ("0." + "1" * 1000, 1 / 9),
        ("true", True),
        ("null", None),
        ('"\\u00e9\\n\\ud83d\\ude00"', "é\n😀"),
        ('""', ""),
        ("[]", []),
        ("{}", {}),
    ],
)
def test_values_are_those_of_json(text: str, value: object) -> None:
    for document in (read_json_text(f'{{"a": {text}}}', "f"), read_json_text(f" [{text} ]", "f")):
        (read,) = document.value.values() if isinstance(document.value, dict) else document.value
        assert read == value and type(read) is type(value)
        assert document.notes == ()
    assert read_json_text(text, "f").value == value


@pytest.mark.parametrize(
    ("text", "value", "found"),
    [
        ('{"a": 1, "a": 2}', {"a": 2}, [("duplicate-key", "1:10", ("a",), "line 1")]),
        (
            '{"z": {"a": 1,\n"b": 0, "a": 2}, "b": 3}',
            {"z": {"a": 2, "b": 0}, "b": 3},
            [("duplicate-key", "2:9", ("z", "a"), "line 1")],
        ),
        ('{"a": Infinity}', {"a": math.inf}, [("not-finite", "1:7", ("a",), "Infinity")]),
        ("[-Infinity , 1]", [-math.inf, 1], [("not-finite", "1:2", (0,), "-Infinity")]),
        ('{"a": 1e999}', {"a": math.inf}, [("not-finite", "1:7", ("a",), "1e999")]),
        ("-1e999", -math.inf, [("not-finite", "1:1", (), "-1e999")]),
        ("", {}, [("empty", "1:1", (), "")]),
        (" \n\t\n", {}, [("empty", "1:1", (), "")]),
        ("\ufeff{}", {}, [("bom", "1:1", (), "")]),
        ("\u00ef\u00bb\u00bf{}", {}, [("bom", "1:1", (), "")]),
        ('{"a": 1 // x\n}', {"a": 1}, [("comment", "1:9", (), "")]),
        (
            '# x\n{"a": {/* y\n*/"b": 1}}',
            {"a": {"b": 1}},
            [("comment", "1:1", (), ""), ("comment", "2:8", ("a",), "")],
        ),
        ('{"a": 1,\n}', {"a": 1}, [("trailing-comma", "1:8", ("a",), "")]),
        ('{"a": [1, 2, ]}', {"a": [1, 2]}, [("trailing-comma", "1:12", ("a", 1), "")]),
        ('{"a": 1 \n"b": 2}', {"a": 1, "b": 2}, [("missing-comma", "1:8", ("a",), "")]),
        ('["x" "y"]', ["x", "y"], [("missing-comma", "1:5", (0,), "")]),
        ("{a: 1}", {"a": 1}, [("unquoted-key", "1:2", ("a",), "a")]),
        (
            '{"a": True,\n"b": 1}',
            {"a": "True,", "b": 1},
            [("unquoted-text", "1:7", ("a",), "True,"), ("missing-comma", "1:12", ("a",), "")],
        ),
        ('{"a": x # y, 1\n}', {"a": "x # y, 1"}, [("unquoted-text", "1:7", ("a",), "x # y, 1")]),
        ('{"a": true\u00a0}', {"a": True}, [("unquoted-text", "1:7", ("a",), "true\u00a0")]),
        ('{"a": \'it"s\'}', {"a": 'it"s'}, [("single-quotes", "1:7", ("a",), "")]),
        ("{'a': 1}", {"a": 1}, [("single-quotes", "1:2", ("a",), "")]),
        ("{\"a\": 'x\\'\\u0041'}", {"a": "x'A"}, [("single-quotes", "1:7", ("a",), "")]),
        ('{"a": "x\\\'"}', {"a": "x'"}, [("escape", "1:7", ("a",), "")]),
        (
            "{\n  \"a\":\n    '''\n    x\n      y\n    '''\n}",
            {"a": "x\n  y"},
            [("multiline-text", "3:5", ("a",), "")],
        ),
        ('"a": 1', {"a": 1}, [("no-root-braces", "1:1", (), "")]),
        ("\n'a': 1", {"a": 1}, [("no-root-braces", "2:1", (), ""), ("single-quotes", "2:1", ("a",), "")]),
        ("some text", "some text", [("unquoted-text", "1:1", (), "some text")]),
    ],
)
def test_departures_from_json_are_noted(text: str, value: object, found: list[object]) -> None:
    document = read_json_text(text, "f")
    assert document.value == value
    assert notes(document) == found


def test_not_a_number_is_one_where_the_rest_is_json() -> None:
    document = read_json_text('{"a": NaN,\n"b": 1}', "f")
    assert math.isnan(document.value["a"])
    assert notes(document) == [("not-finite", "1:7", ("a",), "NaN")]
    document = read_json_text('{"a": NaN,\n"b": 1,}', "f")
    assert document.value == {"a": "NaN,", "b": 1}
    assert [note.kind for note in document.notes] == ["unquoted-text", "missing-comma", "trailing-comma"]
    assert read_json_text("a: NaN} b", "f").value == {"a": "NaN} b"}


def test_of_equal_keys_only_the_last_leaves_spans() -> None:
    text = '{"a": {"x": [1, {"y": 2}]}, "a": {"z": 3}, "a": {"z": 4, "z": 5}}'
    document = read_json_text(text, "f")
    assert document.value == {"a": {"z": 5}}
    assert set(document.spans) == {(), ("a",), ("a", "z")}
    assert set(document.key_spans) == {("a",), ("a", "z")}
    assert document.at(("a", "x", 0)) == document.at(("a",)) == Position("f", 1, 49)
    assert [note.position.column for note in document.notes] == [29, 44, 58]


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    document = read_json_bytes('\ufeff{"a": 1}'.encode(), "f")
    assert document.sources == {"f": '{"a": 1}'}
    assert document.spans["a",] == (6, 7)
    assert document.at(("a",)) == Position("f", 1, 7)


@pytest.mark.parametrize(
    ("data", "place", "part"),
    [
        (b'{\n "\xc3\xa9": "\xff"}', "2:8", "byte 0xff is not UTF-8"),
        (b'\xef\xbb\xbf{"a": "\xff"}', "1:9", "byte 0xff is not UTF-8"),
        ("{}".encode("utf-16"), "1:1", "is UTF-16"),
        ("{}".encode("utf-16-le"), "1:2", "a NUL character"),
        (b'{"a": 1}\n# \0', "2:3", "a NUL character"),
        (b'{"a": "\\u0000"}', "1:7", "text with a NUL character"),
        (b'{"a\\u0000": 1}', "1:2", "text with a NUL character"),
        (b'{"a": "\\udc00\\ud800"}', "1:7", "half of a surrogate pair"),
        (b"\xef\xbb\xbf \n", "1:1", "nothing behind its byte order mark"),
    ],
)
def test_other_encodings_are_refused(data: bytes, place: str, part: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_json_bytes(data, "f")
    assert str(caught.value).startswith(f"f:{place}: ")
    assert part in caught.value.message and caught.value.help


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(CONFIG)
    assert read_json_file(path).value == json.loads(CONFIG)
    path.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(DocumentError, match="is larger than 4 MiB"):
        read_json_file(path)
    with pytest.raises(DocumentError, match="is a folder"):
        read_json_file(tmp_path)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), f"f:1:{MAX_DEPTH + 1}: is nested deeper than 64 levels"),
        ("{a:" * 10_000, "nested deeper"),
        ("a: " + "[" * 100, "nested deeper"),
        (f"[{'1,' * MAX_NODES}1]", "holds more than 100000 values"),
        (f"[{'[],' * (MAX_NODES + 1)}]", "holds more than 100000 values"),
        ("#\n" * (MAX_NODES + 1), "f:100001:1: has more than 100000 comments"),
        ('{"a": ' + "1" * (MAX_DIGITS + 1) + "}", "f:1:7: a number of 401 digits"),
        ("a: " + "1" * 5000, "a number of 5000 digits"),
    ],
)
def test_documents_are_bounded(text: str, part: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_json_text(text, "f")
    assert part in str(caught.value)


def test_what_is_just_within_the_bounds_is_read() -> None:
    depth = "[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH
    assert read_json_text(depth, "f").value == json.loads(depth)
    assert len(read_json_text(f"[{'1,' * (MAX_NODES - 2)}1]", "f").value) == MAX_NODES - 1


@pytest.mark.parametrize("start", ["", "["])
@pytest.mark.parametrize(
    "piece",
    ["[", '{"a":', '"a":1,', '"', "'", '"\\\'",', '"\\n', "'''a''',", "/*", "/**/", "#\n", " ", "9", "a ", "a:\n"],
)
def test_a_large_file_takes_no_longer_than_its_size(piece: str, start: str) -> None:
    data = (start + piece * ((MAX_BYTES - 1) // len(piece))).encode()
    started = time.process_time()
    try:
        read_json_bytes(data, "f")
    except DocumentError as error:
        assert error.position.line >= 1
    assert time.process_time() - started < 3  # at most 0.8 on a quiet machine; quadratic reading takes minutes


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(_VALUES, st.booleans(), st.sampled_from([None, 0, 2, "\t"]), st.sampled_from(["", " ", "\r\n"]))
def test_json_is_read_as_json_loads_does(value: Any, ascii: bool, indent: int | str | None, around: str) -> None:
    text = around + json.dumps(value, ensure_ascii=ascii, indent=indent) + around
    document = read_json_text(text, "f")
    expected = json.loads(text)
    assert repr(document.value) == repr(expected)  # types and NaN count too
    assert {note.kind for note in document.notes} <= {"not-finite"}
    for path, (start, end) in document.spans.items():
        inner = expected
        for part in path:
            inner = inner[part]
        assert repr(json.loads(text[start:end])) == repr(inner)
    for path, (start, end) in document.key_spans.items():
        assert json.loads(text[start:end]) == path[-1]


def test_damaged_files_are_read_or_refused_with_a_place() -> None:
    draw = random.Random(8)
    data = CONFIG.encode()
    for _ in range(2000):
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 1, 2, 5])):
            at = draw.randrange(len(damaged) + 1)
            cut = draw.choice([0, 1, 1, 3, 40])
            new = draw.choice(
                [b"", b"[" * 10_000, b"9" * 5000, b"\xff", b"\0", b'"', b"{", b"}", b"'", b",", b":", b"/*"]
            )
            damaged[at : at + cut] = new
        if draw.random() < 0.1:
            damaged = bytearray(bytes(damaged).decode("latin-1").encode(draw.choice(["utf-16", "utf-8", "utf-32-be"])))
        try:
            document = read_json_bytes(bytes(damaged), "f")
        except DocumentError as error:
            lines = bytes(damaged).count(b"\n") + 1
            assert 1 <= error.position.line <= lines and error.position.column >= 1 and error.message
        else:
            assert document.has(())


@given(st.text(max_size=100) | st.text("{}[]:,\"'#/*\n \\u0a1eE.-tn\ufeff", max_size=40))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    try:
        read_json_text(text, "f")
    except DocumentError as error:
        assert error.position.line >= 1 and error.position.column >= 1
