"""Files that the recipe names: there, where its relative paths count from."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path

from dsgen.doctor.check import Check, Subject, error, ok, skipped
from dsgen.recipe.load import is_path
from dsgen.resources import local_path


def check_inputs(subject: Subject) -> Iterator[Check]:
    """Text, the user's own script, weights and tokenizer."""
    plan, folder = subject.plan, subject.folder
    if plan is None or folder is None:
        yield skipped("inputs", "which files are needed depends on the recipe")
        return
    if plan.data.files:
        patterns = [local_path(folder, name) for name in plan.data.files]
        yield _judged("inputs.data", [f"no file matches {path}" for path in patterns if not file_matches(path)])
    if plan.entrypoint is not None:
        path = local_path(folder, plan.entrypoint.script)
        yield _judged("inputs.entrypoint", [] if path.is_file() else [f"there is no script {path}"])
    for check, name in (("inputs.weights", plan.weights), ("inputs.tokenizer", plan.data.tokenizer)):
        if name and is_path(name):
            path = local_path(folder, name)
            yield _judged(check, [] if path.exists() else [f"{path} does not exist"])


def _judged(name: str, wrong: list[str]) -> Check:
    remedy = "mend the path: a relative one counts from the recipe's folder"
    return error(name, "; ".join(wrong), remedy) if wrong else ok(name, "there")


def file_matches(path: Path) -> bool:
    """Whether a file has this very name, or matches it as a pattern."""
    return path.exists() or next(glob.iglob(str(path), recursive=True), None) is not None  # noqa: PTH207
