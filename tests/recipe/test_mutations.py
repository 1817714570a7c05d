"""Shipped recipes, broken in every way that comes to mind: never a traceback, always a place, nothing written."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsgen.documents.errors import DocumentError
from dsgen.documents.positions import Position
from dsgen.findings import FindingsError
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.resolve import resolve
from dsgen.render.files import render_recipe

from ..conftest import RECIPES

NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
# One value of each kind that is wrong in most places, and some that are wrong in all.
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    0.5,
    1e308,
    10**40,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "\u202e\u0007\x1b[31m",
    "x" * 100_000,
    [],
    [[[]]],
    {},
    {"": {}},
    {"1": None, "a.b": [1]},
]


def run(path: Path, *overrides: str) -> list[Position]:
    """Load, check and resolve; the places of everything that is found wrong."""
    try:
        checked = check_recipe(load_recipe(path, overrides))
        plan = resolve(checked)
        json.dumps(plan.ds_config, allow_nan=False)
        places = [each.position for each in checked.findings]
    except DocumentError as error:
        assert error.message
        places = [error.position]
    except FindingsError as error:
        assert all(each.message and each.path for each in error.findings)
        places = [each.position for each in error.findings]
        assert places
    for place in places:
        assert place.file and place.line >= 1 and place.column >= 1
    return places


def places_in(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place of a document."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places_in(inner, (*path, key))


def with_value(content: dict[str, Any], path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    out: Any = copy.deepcopy(content)
    at = out
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    return out


def without(content: dict[str, Any], path: tuple[str | int, ...]) -> dict[str, Any]:
    out: Any = copy.deepcopy(content)
    at = out
    for part in path[:-1]:
        at = at[part]
    del at[path[-1]]
    return out


@pytest.fixture
def untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in; only what the test itself writes may be there at the end."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert {each.name for each in tmp_path.iterdir()} <= {"r.yaml", "base.yaml", "loop.yaml", "sub"}


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_value_at_every_place(name: str, untouched: Path) -> None:
    """Every place of every shipped recipe takes some of the values, another choice at each place."""
    content = load_recipe(RECIPES / f"{name}.yaml").document.value
    path = untouched / "r.yaml"
    mutations = 0
    for number, place in enumerate(places_in(content)):
        for value in random.Random(f"{name}{number}").sample(VALUES, 3):
            path.write_text(yaml.dump(with_value(content, place, value), Dumper=DUMPER, allow_unicode=True))
            run(path)
            mutations += 1
        path.write_text(yaml.dump(without(content, place), Dumper=DUMPER))
        run(path)
    assert mutations > 100


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_every_value_as_a_whole_section(number: int, untouched: Path) -> None:
    content = load_recipe(RECIPES / "70b-zero3-offload.yaml").document.value
    for field in content:
        (untouched / "r.yaml").write_text(
            yaml.dump({**content, field: VALUES[number]}, Dumper=DUMPER, allow_unicode=True)
        )
        run(untouched / "r.yaml")


CHARACTERS = ["", *"{}[]:,#&*!|>'\"%@`-?\t\n\r \u2028\ufeff０é\x00\x7f"]


@pytest.mark.parametrize("seed", range(40))
def test_characters_taken_out_put_in_and_exchanged(seed: int, untouched: Path) -> None:
    """Text that is no longer quite YAML, or still is and means something else."""
    choice = random.Random(seed)
    text = (RECIPES / f"{choice.choice(NAMES)}.yaml").read_text()
    (untouched / "tiny-cpu.yaml").write_text((RECIPES / "tiny-cpu.yaml").read_text())
    for _ in range(choice.randint(1, 6)):
        at = choice.randrange(len(text))
        text = text[:at] + choice.choice(CHARACTERS) + text[at + choice.randint(0, 3) :]
    (untouched / "r.yaml").write_text(text)
    run(untouched / "r.yaml")
    (untouched / "tiny-cpu.yaml").unlink()


GOOD = (RECIPES / "13b-zero2.yaml").read_text()

LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 20)}]\n" for level in range(1, 9)
)

CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "only a comment": b"# nothing\n",
    "only a marker": b"---\n...\n",
    "two documents": GOOD.encode() + b"---\na: 1\n",
    "a list": b"- schema: 1\n",
    "a number": b"1\n",
    "binary": bytes(range(256)),
    "zeros": bytes(1000),
    "UTF-16": GOOD.encode("utf-16"),
    "UTF-32": GOOD.encode("utf-32"),
    "Latin-1": GOOD.replace("Full", "Fülle").encode("latin-1"),
    "GB18030": GOOD.replace("Full", "完整").encode("gb18030"),
    "half a character": GOOD.encode() + "完".encode()[:2],
    "lone surrogate": GOOD.encode() + b"a: \xed\xa0\x80\n",
    "byte order mark": b"\xef\xbb\xbf" + GOOD.encode(),
    "two byte order marks": b"\xef\xbb\xbf\xef\xbb\xbf" + GOOD.encode(),
    "carriage returns": GOOD.replace("\n", "\r\n").encode(),
    "old line ends": GOOD.replace("\n", "\r").encode(),
    "tabs": GOOD.replace("  ", "\t").encode(),
    "full-width colons": GOOD.replace(": ", "： ").encode(),
    "no-break spaces": GOOD.replace(": ", ":\u00a0").encode(),
    "deep lists": b"schema: 1\nname: " + b"[" * 5000,
    "deep mappings": b"schema: 1\nmodel: " + b"{a: " * 60 + b"1" + b"}" * 60 + b"\n",
    "too deep mappings": b"schema: 1\nmodel: " + b"{a: " * 70 + b"1" + b"}" * 70 + b"\n",
    "aliases of aliases": LAUGHS.encode(),
    "an alias of itself": b"schema: &a [*a]\n",
    "keys that are lists": b"schema: 1\n? [a, b]\n: 1\n",
    "keys that are mappings": b"schema: 1\n{a: 1}: 1\n",
    "keys that are numbers": b"1: 2\n2.5: 3\ntrue: 4\nnull: 5\n~: 6\n",
    "a key that stands twice": GOOD.encode() + b"zero: {stage: 3}\n",
    "merge keys": b"<<: {schema: 1}\n" + GOOD.encode(),
    "tags": b"schema: !!int 1\nname: !!python/object:os.system x\n",
    "a long line": b"name: " + b"x" * 10**6 + b"\n",
    "a long key": b"x" * 10**6 + b": 1\n",
    "many fields": b"".join(b"field%d: 1\n" % i for i in range(500)),
    "too large": b"#" * (5 * 2**20),
    "a huge number": b"schema: " + b"9" * 5000 + b"\n",
    "a long exponent": b"schema: 1e" + b"9" * 300 + b"\n",
    "a directive": b"%YAML 3.0\n---\nschema: 1\n",
    "escapes": b'schema: 1\nname: "\\ud800\\x00\\u202e"\n',
}  # fmt: skip


GOOD_CONTENTS = ("byte order mark", "two byte order marks", "carriage returns", "old line ends")


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_contents(content: bytes, untouched: Path) -> None:
    (untouched / "r.yaml").write_bytes(content)
    places = run(untouched / "r.yaml")
    assert bool(places) == (content not in map(CONTENTS.get, GOOD_CONTENTS))


def folder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to("loop.yaml")
    path.with_name("loop.yaml").symlink_to(path.name)


def unreadable(path: Path) -> None:
    path.write_text(GOOD)
    path.chmod(0)


FILES: dict[str, Callable[[Path], Any]] = {
    "missing": lambda path: None,
    "a folder": folder,
    "a loop of links": loop,
    "a link to nothing": lambda path: path.symlink_to("nothing.yaml"),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "unreadable": unreadable,
}


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_files(make: Callable[[Path], Any], untouched: Path) -> None:
    path = untouched / "r.yaml"
    make(path)
    if make is unreadable and os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert len(run(path)) == 1
    base = untouched / "base.yaml"
    base.write_text("extends: r.yaml\nschema: 1\n")
    assert run(base) == [Position(str(base), 1, 10)]


@pytest.mark.parametrize(
    "path", ["", ".", "..", "/", "no/such/folder/r.yaml", "r.yaml/", "x" * 300, "a\nb.yaml", "~/r.yaml"]
)
def test_paths(path: str, untouched: Path) -> None:
    assert len(run(Path(path))) == 1


def test_a_path_with_a_null_character(untouched: Path) -> None:
    assert run(Path("a\0b")) == [Position("a\0b")]
    (untouched / "r.yaml").write_text('extends: "a\\0b"\n')
    assert run(untouched / "r.yaml")


@pytest.mark.parametrize("length", [1, 2, 3, 15, 16, 17])
def test_cycles(length: int, untouched: Path) -> None:
    (untouched / "sub").mkdir()
    for index in range(length):
        (untouched / "sub" / f"{index}.yaml").write_text(f"schema: 1\nextends: {(index + 1) % length}.yaml\n")
    (place,) = run(untouched / "sub" / "0.yaml")
    assert (place.line, place.column) == (2, 10)


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_values_on_the_command_line(number: int, untouched: Path) -> None:
    text = yaml.dump(VALUES[number], Dumper=DUMPER, default_flow_style=True, allow_unicode=True, width=10**9)
    for path in (
        "zero.stage",
        "batch.global",
        "model",
        "hardware.hosts",
        "deepspeed.zero_optimization",
        "data.files[0]",
    ):
        run(RECIPES / "70b-zero3-offload.yaml", f"{path}={text.removesuffix('...' + chr(10)).strip()}")


def test_a_refused_recipe_is_not_rendered(untouched: Path) -> None:
    (untouched / "r.yaml").write_text(GOOD.replace("stage: 2", "stage: 7"))
    with pytest.raises(FindingsError):
        render_recipe(untouched / "r.yaml")
