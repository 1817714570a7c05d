"""The environment of processes that take the simulated NPU for a real one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

MARK = "DSGEN_SIMULATED_NPU"
"""Set to 1 wherever the simulated NPU is used; whatever reports a result must look at it and say so."""


def is_simulated(environ: Mapping[str, str]) -> bool:
    """Whether the NPU of a process with these variables is the simulated one."""
    return environ.get(MARK) == "1"


def simulated_environment(
    toolkit: Path,
    *,
    devices: int | None = None,
    soc: str | None = None,
    hbm_bytes: int | None = None,
    faults: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables to add to `environ` (default: this process's) for the simulated NPU in `toolkit` (see `build`).

    `devices` is the number of devices of the machine (8), `soc` what aclrtGetSocName says (Ascend910B3), `hbm_bytes`
    the memory of each as torch reports it (65452113920). `faults` are written as in docs/ascend-sim.md; the libraries
    refuse a wrong one when a process starts.
    """
    environ = os.environ if environ is None else environ
    others = environ.get("LD_LIBRARY_PATH")
    libraries = str(toolkit / "lib64")
    added = {
        MARK: "1",
        "ASCEND_HOME_PATH": str(toolkit),
        "ASCEND_OPP_PATH": str(toolkit / "opp"),
        # Where a rendered launch.sh looks for set_env.sh when ASCEND_HOME_PATH is not set.
        "ASCEND_TOOLKIT_HOME": str(toolkit),
        "LD_LIBRARY_PATH": f"{libraries}{os.pathsep}{others}" if others else libraries,
        "DS_ACCELERATOR": "npu",
    }
    if devices is not None:
        added[f"{MARK}_DEVICES"] = str(devices)
    if soc is not None:
        added[f"{MARK}_SOC"] = soc
    if hbm_bytes is not None:
        added[f"{MARK}_HBM_BYTES"] = str(hbm_bytes)
    if faults:
        added[f"{MARK}_FAULTS"] = ";".join(faults)
    return added
