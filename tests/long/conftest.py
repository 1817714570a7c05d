"""The long proofs start jobs as the tests of the training side do, and through the rendered launcher."""

from __future__ import annotations

import os
import random

import pytest

from tests.runtime.conftest import environment, ranks  # noqa: F401


@pytest.fixture
def chance() -> random.Random:
    """Random numbers of a seed that is printed."""
    seed = int(os.environ.get("DSGEN_LONG_SEED") or random.SystemRandom().randrange(10**6))
    print(f"\nDSGEN_LONG_SEED={seed}")
    return random.Random(seed)
