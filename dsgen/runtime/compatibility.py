"""Whether this runtime can serve a `train.py` that was rendered for another version of it."""

from __future__ import annotations

import sys

from dsgen.runtime.settings import API_VERSION


def require_api(major: int, minor: int) -> None:
    """End the program with a message when a `train.py` written for API (major, minor) cannot run here.

    Raises SystemExit (exit code 1, message on stderr) unless the installed runtime has the same major
    version and at least the same minor version.
    """
    have_major, have_minor = API_VERSION
    if have_major == major and have_minor >= minor:
        return
    if (have_major, have_minor) < (major, minor):
        remedy = "install a newer one: pip install --upgrade 'dsgen[train]'"
    else:
        remedy = "render the recipe again with this version: dsgen render RECIPE -o FOLDER"
    sys.exit(
        f"train.py was rendered for version {major}.{minor} of dsgen.runtime, but version "
        f"{have_major}.{have_minor} is installed; {remedy}"
    )
