"""Where the shipped templates and recipes stand, in every way of running dsgen."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """Folder of the shipped files called `name` (`templates` or `recipes`).

    A wheel carries them inside the package; an editable install and a plain checkout have them
    beside it, at the top of the repository.

    Raises FileNotFoundError when neither is there (a damaged installation).
    """
    for folder in (_PACKAGE / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"dsgen's {name} are missing beside {_PACKAGE}: install dsgen again")
