"""Files that a recipe names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsgen.doctor.check import State, Subject
from dsgen.doctor.inputs import check_inputs
from dsgen.doctor.probe import Machine
from dsgen.recipe.plan import Plan

from .conftest import by_name


def _judged(plan: Plan, folder: Path) -> dict[str, tuple[State, str]]:
    checks = by_name(check_inputs(Subject(probe=Machine(), plan=plan, folder=folder)))
    return {name.removeprefix("inputs."): (check.state, check.found) for name, check in checks.items()}


def test_all_that_are_not_there_are_named(plan: Callable[..., Plan], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "[1].txt").touch()
    files = ["a.jsonl", "b.jsonl", "*.jsonl", "none/**/*.txt", str(tmp_path / "a.jsonl"), "[1].txt"]
    found = _judged(plan(data={"files": files}, weights="./weights", entrypoint="own.py"), tmp_path)
    assert found == {
        "data": (State.ERROR, f"no file matches {tmp_path}/b.jsonl; no file matches {tmp_path}/none/**/*.txt"),
        "entrypoint": (State.ERROR, f"there is no script {tmp_path}/own.py"),
        "weights": (State.ERROR, f"{tmp_path}/weights does not exist"),
        "tokenizer": (State.ERROR, f"{tmp_path}/tokenizer does not exist"),
    }


def test_what_is_there(plan: Callable[..., Plan], tmp_path: Path) -> None:
    for name in ("a.jsonl", "own.py", "weights", "tokenizer"):
        (tmp_path / name).touch()
    found = _judged(plan(data={"files": "a.jsonl"}, weights="./weights", entrypoint="own.py"), tmp_path)
    assert set(found.values()) == {(State.OK, "there")}
    assert set(found) == {"data", "entrypoint", "weights", "tokenizer"}


def test_names_on_a_hub_and_built_in_text_are_no_files(plan: Callable[..., Plan], tmp_path: Path) -> None:
    assert _judged(plan(data={"builtin": "python-topics"}, weights="org/model", tokenizer="org/model"), tmp_path) == {}


def test_home_folders(plan: Callable[..., Plan], tmp_path: Path) -> None:
    """One of a user that does not exist is missed under the name that was given."""
    found = _judged(
        plan(data={"builtin": "python-topics"}, tokenizer="~no-such-user/t", entrypoint="~/no-such.py"), tmp_path
    )
    assert found == {
        "entrypoint": (State.ERROR, f"there is no script {Path.home()}/no-such.py"),
        "tokenizer": (State.ERROR, f"{tmp_path}/~no-such-user/t does not exist"),
    }


def test_without_a_recipe() -> None:
    (check,) = check_inputs(Subject(probe=Machine()))
    assert (check.name, check.state) == ("inputs", State.SKIPPED)
