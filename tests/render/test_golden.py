"""Rendered files are what they were: every shipped recipe against tests/render/golden.

launch.sh differs little between recipes; it is kept for three, and the lock holds its hash for all.
After a wanted change: DSGEN_UPDATE_GOLDEN=1 tests/run tests/render/test_golden.py, then read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsgen.render.files import render_recipe
from dsgen.render.lock import LOCK_NAME, without_version

from ..conftest import RECIPES

GOLDEN = Path(__file__).with_name("golden")
WITH_SCRIPT = ("70b-zero3-offload", "7b-24g-single-gpu", "tiny-cpu")
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_files_are_golden(name: str) -> None:
    files = dict(render_recipe(RECIPES / f"{name}.yaml").files)
    files[LOCK_NAME] = without_version(files[LOCK_NAME])
    if name not in WITH_SCRIPT:
        del files["launch.sh"]
    folder = GOLDEN / name
    if os.environ.get("DSGEN_UPDATE_GOLDEN"):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for file, data in files.items():
            (folder / file).write_bytes(data)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {k: v.decode() for k, v in files.items()}
