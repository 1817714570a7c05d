"""What the light commands load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import RECIPES

HEAVY = {"torch", "deepspeed", "transformers", "numpy", "accelerate", "tokenizers", "pyarrow", "torch_npu"}


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], HEAVY | {"pydantic", "jinja2", "yaml", "rich"}),
        (["render", "--help"], HEAVY | {"pydantic", "jinja2"}),
        (["devices"], HEAVY | {"pydantic", "jinja2"}),
        (["explain"], HEAVY | {"pydantic", "jinja2", "rich"}),
        (["explain", "KEY001"], HEAVY | {"pydantic", "jinja2", "rich"}),
        (["models"], HEAVY | {"pydantic", "jinja2"}),
        (["render", str(RECIPES / "70b-zero3-offload.yaml"), "-o", "out"], HEAVY),
        (["render", str(RECIPES / "70b-zero3-offload.yaml"), "-o", "out", "--set", "zero.stage=9"], HEAVY),
        (["launch", str(RECIPES / "13b-zero2.yaml"), "--dry-run"], HEAVY),
        (["schema", "recipe"], HEAVY),
    ],
)
def test_light_commands_load_nothing_heavy(arguments: list[str], unwanted: set[str], tmp_path: Path) -> None:
    program = (
        "import json, sys\n"
        "from dsgen.cli.main import main_code\n"
        f"main_code({arguments!r})\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    loaded = set(json.loads(out.stdout.splitlines()[-1]))
    assert "click" in loaded
    assert loaded & unwanted == set()
