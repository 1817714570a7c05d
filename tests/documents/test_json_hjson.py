"""The reader beside the real hjson, on everything that a hand can do to a config."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgen.documents.errors import DocumentError
from dsgen.documents.json_reader import read_json_text

hjson = pytest.importorskip("hjson", reason="hjson comes with DeepSpeed")

CONFIGS = [
    json.dumps(
        {
            "train_batch_size": 16,
            "gradient_clipping": 1.0,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.999], "weight_decay": "auto"}},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/nvme"}, "x": None},
        },
        indent=2,
    ),
    '{"a": [1, 2.0, "x"], "b": {"c": true, "d": null}}',
    "a: 1\nb: text # c\nc: '''\n  x\n    y\n  '''\n",
    "{a:'x',\"b\":[1\n2,],}\n",
    "{\n  a:\n    '''\n    x'\n      y\n    '''\n}\n",
    "{a: '''x\n'''}",
    "[1,'a' \"b\"]",
    '"x"',
]
PIECES = [
    *"{}[]:,\"'#/*\n\r\t \\u0123eE.-+truefalsn\u00a0\ufeff\u0661\x0b\x7f",
    *("'''", "/*", "*/", "//", "true", "false", "null", "True", "1e5", "NaN", "Infinity", "\\u0041", "\\n", "\\'"),
    *("\r\n", ": ", " ,\n", "01", "1.50", "''", '""', "\\ud83d\\ude00", "-0", "# c\n", "// c\n", "/* c */", ",\n}"),
]


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal types but for whole floats, which hjson makes ints."""
    if isinstance(left, dict):
        return isinstance(right, dict) and list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, (int, float)) and not isinstance(left, bool):
        return isinstance(right, (int, float)) and not isinstance(right, bool) and left == right
    return type(left) is type(right) and left == right


def by_hjson(text: str) -> Any:
    """The value, or the exception: hjson has no error of its own for some faults, just an IndexError."""
    try:
        return hjson.loads(text)
    except (ValueError, IndexError, OverflowError) as error:
        return error


def compare(text: str) -> str:
    """Check one text: "json", "hjson", or "" where both refuse it."""
    theirs = by_hjson(text)
    try:
        document = read_json_text(text, "f")
    except DocumentError as error:
        # A NUL or half a surrogate pair is beyond hjson's refusals, and so is an escape with white space as digits.
        odd = "NUL" in error.message or "surrogate" in error.message or "\\u" in text
        assert odd or isinstance(theirs, Exception), error
        return ""
    kinds = {note.kind for note in document.notes}
    if "not-finite" in kinds:  # json.loads takes NaN and 1e999; hjson reads text, or fails
        return ""
    try:
        expected = json.loads(text)
    except ValueError:
        assert kinds, "not JSON, and nothing to say of it"
        if document.value == {} and kinds == {"empty"}:
            return ""
        assert not isinstance(theirs, Exception), theirs
        assert same(theirs, document.value)
        return "hjson"
    assert kinds <= {"duplicate-key"}
    assert same(expected, document.value)
    return "json"


def damage(draw: random.Random, text: str) -> str:
    for _ in range(draw.choice([1, 1, 1, 2, 3, 6])):
        start = draw.randrange(len(text) + 1)
        end = start + draw.choice([0, 0, 1, 1, 2, 5, 30])
        what = draw.random()
        if what < 0.6:
            text = text[:start] + "".join(draw.choice(PIECES) for _ in range(draw.choice([1, 1, 1, 4]))) + text[end:]
        elif what < 0.8:
            text = text[:start] + text[end:]
        elif what < 0.9:
            text = text[:start]
        else:
            at = draw.randrange(len(text) + 1)
            text = text[:at] + text[start:end] + text[at:]
    return text


@pytest.mark.parametrize("seed", range(4))
def test_damaged_configs_read_as_with_hjson(seed: int) -> None:
    draw = random.Random(seed)
    outcomes = [compare(damage(draw, draw.choice(CONFIGS))) for _ in range(1500)]
    assert outcomes.count("hjson") > 250 and outcomes.count("json") > 50 and outcomes.count("") > 300


@given(st.data())
def test_configs_written_as_hjson_read_as_with_hjson(data: st.DataObject) -> None:
    choose = lambda *options: data.draw(st.sampled_from(options))  # noqa: E731
    gap = st.sampled_from(["", "", " ", "\n", " \t", " /* c: , } */ ", " # c ] \n", " // 'c\r\n", "\r\n  "])
    words = st.text("ab_-. é'\"\\", min_size=1, max_size=6)

    def blank() -> str:
        return str(data.draw(gap))

    def value(depth: int) -> str:
        kind = data.draw(st.integers(0, 9 if depth < 3 else 6))
        if kind == 0:
            return str(choose("true", "false", "null", "0", "-1.50", "2.0", "5e8", "1E-5"))
        if kind == 1:
            return str(choose("True", "None", "1_000", ".5", "+1", "/a/b", "a, b", "x } y", "01")) + "\n"
        if kind in (2, 3):
            return json.dumps(data.draw(words))
        if kind == 4:
            return "'" + data.draw(words).replace("\\", "\\\\").replace("'", "\\'") + "'"
        if kind == 5:
            return "'''" + str(choose("", " \n", "x", "x\n  y", "\n   a\n  b'\n      c\n")) + "'''"
        if kind == 6:
            return str(data.draw(st.integers(-(10**20), 10**20))) + str(choose("", " ", "\n"))
        items = [value(depth + 1) for _ in range(data.draw(st.integers(0, 3)))]
        if kind == 7:
            return "[" + blank() + joined(items) + "]"
        return "{" + blank() + members(items) + "}"

    def joined(items: list[str]) -> str:
        text = ""
        for item in items:
            text += item + blank() + str(choose(",", ",", ",", "\n", " ")) + blank()
        return text

    def members(items: list[str]) -> str:
        keys = [
            f"{name}{index}{quote}" if not quote else f"{quote}{name}{index}{quote}"
            for index, (name, quote) in enumerate(
                (choose("a", "stage", "b c", "é"), choose('"', "'", "")) for _ in items
            )
        ]
        return joined([f"{key}{blank()}:{blank()}{item}" for key, item in zip(keys, items, strict=True)])

    compare(str(choose("", "\n", "# c\n")) + value(0) + blank())
    compare(members([value(1) for _ in range(data.draw(st.integers(1, 4)))]))


@pytest.mark.parametrize(
    "text",
    [
        # the first line of a ''' text is measured from the end of the file
        "{a: '''x\n      y'''}\n",
        "a: '''\n  x'''\n\n  ",
        "a:'''x\r\n y\r'''\n",
        "a: ''''b'''\n",
        "a: ''''''\n",
        # without a value, the whole line is one text
        "a:",
        "a: [1, 2",
        "a: {",
        "# c\na: }",
        "a: 1 /* x",
        "a: 1e999",
        "NaN",
        "NaN,",
        "a b",
        "a\nb",
        "true # c",
        "5,",
        "'x' y",
        "\u00a0: 1",
        "a\u00a0 : 1",
        "a: true\u2003, b: 1",
        "a: \u0663, b",
        "a: 1\u0663.\u0663, b: 2",
        "{a: 1}// x",
        "{a//: 1\n}",
        "{a#b: 1\n}",
        "{'a' /* c */ : 1}",
        "{a /* c */ : 1}",
        '{"a":1"b":2\n}',
        '{"a":"x""b":2}',
        "[[1][2]]",
        "\ufeffa: 1",
        "\ufeff",
        "\ufeff# c",
        "\u00ef\u00bb\u00bf{}",
        '"\\u 12 \\u+1aF\\u1_2f"',
        "'\\ud83d\\ude00\\u00e9'",
        "/**/",
        "/*/ {} /*/",
        "//",
    ],
)
def test_odd_corners(text: str) -> None:
    theirs = by_hjson(text)
    outcome = compare(text)
    assert outcome == ("hjson" if not isinstance(theirs, Exception) else "") or text in ("NaN", "//", "/**/")
