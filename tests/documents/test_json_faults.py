from __future__ import annotations

import pytest

from dsgen.documents.errors import DocumentError
from dsgen.documents.json_mistakes import KINDS
from dsgen.documents.json_reader import read_json_text

FAULTS = [
    # words of Python take the bracket behind them into their text
    ('{"fp16": {"enabled": True}, "x": 1}', "1:22", "rest of the line as text, its } too: True}", "write true"),
    ('{\n "fp16": {"enabled": False},\n "x": 1\n}', "2:22", "its } too: False},", "write false"),
    ('{"a": None}', "1:7", "its } too: None}", "write null"),
    ('{"a": [1, True], "b": 2,\n"c": 3}', "1:11", "its ] too: True], ", "write true"),
    ('{"a": 1 "b": 2}', "1:7", 'its } too: 1 "b": 2}', "write a comma behind 1"),
    ('{"a": 1e-5f}', "1:7", "its } too: 1e-5f}", "write a number as JSON does"),
    ('{"a": auto}', "1:7", "its } too: auto}", "write the text in quotes"),
    # brackets
    ('{\n"a": {\n"b": 1}', "1:1", "the { here is not closed: the text ends without its }", "close it with }"),
    ('{"a": [1,\n2', "1:7", "the [ here is not closed: the text ends without its ]", "close it with ]"),
    ('{"a": [1, 2}', "1:7", "the [ here is not closed: a } at line 1, column 12 stands before its ]", "close it"),
    (
        '{"a": [1,\n"b": 2, "c": 3}',
        "1:7",
        "the [ here is not closed: a key with its colon at line 2, column 4",
        "with ]",
    ),
    ('{"a": [1, 2,\n"b": 2}', "1:7", "the [ here is not closed: a key with its colon at line 2, column 4", "with ]"),
    ('{"a": 1]', "1:8", "] where } would close the { of line 1, column 1", "write }"),
    ('{\n  "a": {\n    "b": 1,\n  "c": {\n    "d": 2\n  }\n}\n', "2:8", "closed by the } at line 7, further left", "}"),
    ('{\n  "a": {\n    "b": {\n      "c": 1\n  },\n  "d": 2\n}\n', "3:10", "by the } at line 5, further left", "}"),
    ("}", "1:1", "} closes nothing", "remove it"),
    ("a: 1\n]", "2:1", "] closes nothing: no [ stands before it", "remove it"),
    # after the end
    ('{"a": 1}}', "1:9", "text after the end, which is the } at line 1, column 8: }", "remove it"),
    ('{"a": {"b": 1}},\n"c": 2}', "1:16", "text after the end", "ends the config too early"),
    ('{"a": 1}\n\n{"b": 2}', "3:1", 'text after the end, which is the } at line 1, column 8: {"b": 2}', "remove it"),
    # quotes
    ('{"a": "x\n}', "1:7", 'the " here is not closed in its line', 'close it with "'),
    ('{"a: 1,\n "b": 2}', "1:2", 'the " here is not closed in its line', 'close it with "'),
    ("{a: 'x", "1:5", "the ' here is not closed before the text ends", "close it with '"),
    ('{"a": "x\\', "1:7", "is not closed before the text ends", 'close it with "'),
    ('{"a: 1, "b": 2}', "1:2", 'no colon stands behind the key "a: 1, "', "close its quotes"),
    ("{a: '''x\n}", "1:5", "the ''' here is not closed", "close it with '''"),
    ("{a: '''", "1:5", "without line breaks", 'in " quotes'),
    ("\n{a: '''", "2:5", "the ''' here is not closed", "close it with '''"),
    ('{"a": "C:\\data"}', "1:10", "\\d is no escape", "write a backslash as \\\\"),
    ('{"a": "\\u12"}', "1:8", "\\u without four hexadecimal digits", "write a backslash as"),
    ('{"a": "\\u-123"}', "1:8", "\\u with a negative number", "write a backslash as"),
    ('{"a": "x\ty"}', "1:9", "a control character (U+0009) in a text", "write it as \\u0009"),
    # comments
    ('{"a": 1 /* x\n}', "1:9", "the comment that starts here is not closed", "close it with */"),
    ("/*/", "1:1", "the comment that starts here is not closed", "close it with */"),
    # commas and colons
    ('{"a": 1,\n "b": 2,,\n}', "2:9", "a comma without a setting before it", "remove it"),
    ("{,}", "1:2", "a comma without a setting before it", "remove it"),
    ("[1,,2]", "1:4", "a value is missing before the ,", "write a value, or null"),
    ('{"a": , "b": 1}', "1:7", "a value is missing before the ,", "write a value, or null"),
    ('{"a": }', "1:7", "a value is missing before the }", "write a value, or null"),
    ('{"a":: 1}', "1:6", "a value is missing before the :", "write a value, or null"),
    ("{: 1}", "1:2", "a colon without a key before it", "write a key"),
    ('"a":\n', "2:1", "the text ends where a value is missing", "write a value"),
    ('{"a" = 1}', "1:6", 'a colon is missing behind the key "a", before = 1}', 'write "a": VALUE'),
    ('{"a" "b"}', "1:6", 'a colon is missing behind the key "a"', 'write "a": VALUE'),
    ("{a}", "1:3", "a colon is missing behind the key a, before }", "write a: VALUE"),
    ('"a"\n"b"\n"c"', "2:1", 'a colon is missing behind the key "a", before "b"', 'write "a": VALUE'),
    ('["a": 1]', "1:5", "a list holds no keys", "write { } around"),
    ('{"a": 1, {"b": 2}}', "1:10", "{ where a key is expected", 'write "KEY": before it'),
    # templates
    ('{"a": {{ x }}}', "1:7", "a template that nobody filled in: {{ x }}", "render the template first"),
    ("{ {{ key }}: 1}", "1:3", "a template that nobody filled in: {{ key }}", "render the template first"),
    ('{"a": {% if x %}1{% endif %}}', "1:7", "a template that nobody filled in: {% if x %}", "render the template"),
    ('{"a": ${BS}}', "1:7", "a template that nobody filled in: ${BS}", "or write the value"),
    ('{"a": {"b": $BS}}', "1:13", "a template that nobody filled in: $BS", "or write the value"),
    ('{"a": <batch size>}', "1:7", "a template that nobody filled in: <batch size>", "or write the value"),
    ('{"a": @BS@}', "1:7", "a template that nobody filled in: @BS@", "or write the value"),
    ('{"a": %(bs)s}', "1:7", "a template that nobody filled in: %(bs)s", "or write the value"),
    ("{${KEY}: 1}", "1:2", "a template that nobody filled in: ${KEY}", "or write the value"),
    # merge conflicts
    ('{\n<<<<<<< HEAD\n"a": 1\n=======\n"a": 2\n>>>>>>> x\n}', "2:1", "nobody resolved: <<<<<<<", "choose one"),
    ('{"a": 1,\r\n=======\r\n"a": 2\r\n>>>>>>> x\r\n}', "2:1", "nobody resolved: =======", "choose one of"),
    ('{"a": 1,\n>>>>>>> x\n}', "2:1", "a merge conflict that nobody resolved: >>>>>>>", "choose one of the two sides"),
    ('{"a": 1,\n=======\n"b": 1}', "2:1", "a merge conflict that nobody resolved: =======", "choose one of the two"),
    # characters that look like others
    ('{"a": {"b": true}，\n"c": 1}', "1:18", "， (U+FF0C, fullwidth comma) looks like ,", "write ,"),
    ('{"a"： 1}', "1:5", "： (U+FF1A, fullwidth colon) looks like :", "write :"),
    ('{"a": ｛"b": 1｝}', "1:7", "｛ (U+FF5B, fullwidth left curly bracket) looks like {", "write {"),
    ("{“a”: 1, b}", "1:2", '“ (U+201C, left double quotation mark) looks like "', 'write "'),
    ('{"a": ‘x’}', "1:7", '‘ (U+2018, left single quotation mark) looks like "', 'write "'),
    ('{"a": "x”,\n"b": 1}', "1:9", '” (U+201D, right double quotation mark) looks like "', 'write "'),
    ('{"a”: 1, "b": 2}', "1:4", '” (U+201D, right double quotation mark) looks like "', 'write "'),
    ('{"a":\u00a0true}', "1:6", "U+00A0 (no-break space) is no blank of JSON", "write a plain space"),
    ('{"a": 1}\u00a0\n', "1:9", "U+00A0 (no-break space) is no blank of JSON", "write a plain space"),
    ('\u200b{"a": 1,\n"b": 2}', "1:1", "U+200B (zero width space) is no blank", "remove it"),
    ('{"a": １}', "1:7", "１ (U+FF11, fullwidth digit one) looks like 1", "write 1"),
    ('{"a": –1}', "1:7", "– (U+2013, en dash) looks like -", "write -"),
    # texts that are something else
    (
        "import os\nprint(1)\n",
        "1:1",
        "neither JSON nor hjson, and no config at all: it starts with import os",
        "name the",
    ),
    ("# Title\n\nSome *words*.\n\n- a\n", "3:1", "no config at all: it starts with Some *words*.", "name the config"),
    ("Title\n=======\n\nNote: this\n", "1:1", "no config at all: it starts with Title", "name the config itself"),
    ("#!/bin/sh\nset -e\nls\n", "2:1", "is a script, not a config", "name the config itself"),
    ('<?xml version="1.0"?>\n<a/>\n', "1:1", "is XML or HTML, not a config", "a page of a web site"),
    ("\n<html><body>Not: found\n</html>", "2:1", "is XML or HTML, not a config", "a page of a web site"),
    ("[train]\nbatch = 1\n", "1:1", "is INI or TOML, not JSON or hjson", 'write {"KEY": VALUE'),
    # a config without braces stays one
    ("a: 1\nb 2\nc: 3\n", "2:3", "a colon is missing behind the key b, before 2", "write b: VALUE"),
]


@pytest.mark.parametrize(("text", "place", "part", "help"), FAULTS)
def test_faults_stand_where_they_are_made(text: str, place: str, part: str, help: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_json_text(text, "f")
    assert str(caught.value).startswith(f"f:{place}: ")
    assert part in caught.value.message
    assert help in caught.value.help


def test_a_long_line_is_cut() -> None:
    with pytest.raises(DocumentError) as caught:
        read_json_text('{"a": 1} ' + "x" * 1000, "f")
    assert len(caught.value.message) < 120


def test_a_mistake_in_another_line_is_not_blamed() -> None:
    with pytest.raises(DocumentError) as caught:
        read_json_text('{\n“a”: 1,\n"b": 1,,\n}', "f")
    assert str(caught.value) == "f:3:8: a comma without a setting before it"


NOTED = [
    ("{“a”: 1}", [("look-alike", "1:2", "“")]),
    ('{"b": {\u00a0"a": 1}}', [("look-alike", "1:8", "\u00a0")]),
    (
        '{"a": 1，\n"b": “x”,\n"c":　2\n}',
        [("look-alike", "1:8", "，"), ("look-alike", "2:6", "“"), ("look-alike", "3:5", "　")],
    ),
    ('{"a": true；  // x\n}', [("look-alike", "1:11", "；")]),
    ('{"a": 1，"b": 2\n}', [("look-alike", "1:8", "，")]),
    ('{"a": ${BS},\n"<key>": 1, <key>: 1}', [("template", "1:7", "${BS}"), ("template", "2:13", "<key>")]),
    (
        "[\n<<<<<<< HEAD\n1\n=======\n2\n>>>>>>> x\n]",
        [("conflict", f"{n}:1", 7 * mark) for n, mark in ((2, "<"), (4, "="), (6, ">"))],
    ),
    # words in any language are no mistake, nor are strings
    ("{a: 你好，世界。\nb: it’s “fine”\nc: <b>x</b> y\nd: 5 – 6\ne: é\né: a@b.c\n}", []),
    ('{"a": "“x”，", "b": "${x}", "<c>": "：", "\u00a0": 1, \'“\': 1, }', []),
]


@pytest.mark.parametrize(("text", "expected"), NOTED)
def test_mistakes_that_can_be_read_are_noted(text: str, expected: list[object]) -> None:
    notes = read_json_text(text, "f").notes
    assert [(n.kind, f"{n.position.line}:{n.position.column}", n.detail) for n in notes if n.kind in KINDS] == expected
