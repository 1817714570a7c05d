#!/usr/bin/env python3
"""Runs the long proofs (about half an hour on two cores): `python tests/long/run.py`. Arguments go to pytest.

Random moments come from a seed that is printed; `DSGEN_LONG_SEED=N` repeats one.
"""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    # The options of pyproject.toml leave this folder out.
    options = ["-o", "addopts=-ra --strict-markers", "--rootdir", str(HERE.parents[1]), "-s"]
    named = [argument for argument in sys.argv[1:] if Path(argument.split("::")[0]).exists()]
    sys.exit(pytest.main([*options, *sys.argv[1:], *([] if named else [str(HERE)])]))
