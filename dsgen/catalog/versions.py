"""Versions that go together: the set that dsgen is tested with, and the pairs of CANN and torch_npu."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dsgen.catalog.datafiles import read_yaml


def matched_set() -> Mapping[str, str]:
    """Package -> the version that is tested together with the others; `5.24.*` for any release of 5.24."""
    return dict(read_yaml("versions.yaml")["matched"])


def cann_releases() -> Mapping[str, tuple[str, ...]]:
    """CANN release -> the torch_npu releases published for it, newest first (documentation of Ascend/pytorch)."""
    return {cann: tuple(versions) for cann, versions in read_yaml("versions.yaml")["cann"].items()}


def cann_for(torch_npu: str) -> tuple[str, ...]:
    """The CANN releases that a torch_npu release is published for; empty when none is known."""
    return tuple(cann for cann, versions in cann_releases().items() if torch_npu in versions)


def torch_for(torch_npu: str) -> str:
    """The torch release that a torch_npu release needs: its own first three numbers.

    Raises ValueError when it does not begin with three numbers.
    """
    match = re.match(r"\d+\.\d+\.\d+", torch_npu)
    if match is None:
        raise ValueError(f"{torch_npu!r} is no torch_npu version: expected three numbers, for example 2.7.1.post8")
    return match[0]
