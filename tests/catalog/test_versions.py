from __future__ import annotations

from pathlib import Path

import pytest

from dsgen.catalog.versions import cann_for, cann_releases, matched_set, torch_for

ROOT = Path(__file__).resolve().parents[2]


def test_matched_set_is_that_of_the_constraints_file():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    assert matched_set() == {package.strip(): version.strip() for package, version in pins.items()}
    assert torch_for(matched_set()["torch_npu"]) == matched_set()["torch"]


def test_pairs():
    assert next(iter(cann_releases())) == "9.1.0"
    assert "2.7.1.post8" in cann_releases()["9.1.0"]
    assert cann_for("2.9.0") == ("8.5.0",)
    assert cann_for("2.7.1.post4") == ("9.0.0",)
    assert cann_for("2.1.0.post10") == ("8.0.0",)
    assert cann_for("2.13.0") == ()


def test_one_cann_release_for_each_torch_npu_release():
    every = [version for versions in cann_releases().values() for version in versions]
    assert len(every) == len(set(every)) == 36
    assert all(isinstance(version, str) for version in every)


def test_torch_of_a_torch_npu_release():
    assert torch_for("2.7.1.post8") == "2.7.1"
    assert torch_for("2.10.0rc1") == "2.10.0"
    with pytest.raises(ValueError, match="three numbers"):
        torch_for("v26.1")
