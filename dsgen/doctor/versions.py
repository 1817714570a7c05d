"""Python and the packages that training needs: installed, and going together. Packages are never imported here."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from dsgen.catalog.versions import matched_set, torch_for
from dsgen.doctor.check import Check, Subject, error, not_captured, ok, warning

_OLDEST, _NEWEST = (3, 10), (3, 13)
_NEEDED = ("torch", "deepspeed", "transformers")


def check_python(subject: Subject) -> Iterator[Check]:
    """The Python that this process and the ranks run in."""
    found = f"Python {platform.python_version()} on {platform.machine()}, {sys.executable}"
    if _OLDEST <= sys.version_info[:2] <= _NEWEST:
        yield ok("python", found)
    else:
        yield warning("python", f"{found}: dsgen is tested with 3.10 to 3.13", "make an environment with one of these")


def check_packages(subject: Subject) -> Iterator[Check]:
    """Packages of the training side, against the set that is tested together."""
    probe = subject.probe
    if not probe.knows_packages:
        yield not_captured(probe, "packages", "packages.txt")
        return
    matched = matched_set()
    for name in (*_NEEDED, *(["torch_npu"] if subject.kind == "npu" else [])):
        version = probe.version(name)
        if version is None:
            extra = "npu" if name == "torch_npu" else "train"
            where = f" in {sys.executable}" if probe.live else ""
            yield subject.wrong(f"packages.{name}", f"{name} is not installed{where}", f"pip install 'dsgen[{extra}]'")
        elif name == "torch_npu":
            yield _torch_npu(version, probe.version("torch"), torch_build() if probe.live else None)
        elif name == "torch" and subject.kind == "cuda" and probe.live and torch_build() == "cpu":
            found = f"torch {version} is a CPU build, which uses no CUDA device"
            yield subject.wrong("packages.torch", found, "install a CUDA build of torch")
        elif fnmatchcase(version, matched[name]):
            yield ok(f"packages.{name}", f"{name} {version}")
        else:
            yield warning(
                f"packages.{name}",
                f"{name} {version}: dsgen is tested with {matched[name]}",
                f"pip install '{name}=={matched[name]}', or read a first run's log with care",
            )


def _torch_npu(version: str, torch: str | None, build: str | None) -> Check:
    name = "packages.torch_npu"
    if build not in (None, "cpu"):
        return error(
            name,
            f"torch is a build for {build}, beside which torch_npu {version} refuses to load",
            "install the CPU build of the same version of torch",
        )
    try:
        wanted = torch_for(version)
    except ValueError as problem:
        return warning(name, str(problem), "install a released torch_npu")
    if torch is not None and torch != wanted:
        return error(
            name,
            f"torch_npu {version} needs torch {wanted}, and torch is {torch}: it fails to load or crashes later",
            f"pip install torch=={wanted}, or the torch_npu that begins with {torch}",
        )
    return ok(name, f"torch_npu {version}" + (f" with torch {torch}" if torch else ""))


def torch_build() -> str | None:
    """`cpu`, or what torch was built for (`CUDA 13.0`); None when torch is not installed or does not say."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        version = Path(folder) / "version.py"
        if version.is_file():
            match = re.search(r"^cuda\b[^=\n]*= *(None|['\"][^'\"]+['\"])", version.read_text(), re.MULTILINE)
            if match:
                return "cpu" if match[1] == "None" else "CUDA " + match[1].strip("'\"")
    return None
