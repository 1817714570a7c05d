"""Where things stand: what dsgen ships, what it keeps on disk, and what a recipe names."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

CACHE_VARIABLE = "DSGEN_CACHE_DIR"


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


def config_folder(name: str) -> Path:
    """Folder called `name` for what this user keeps of dsgen; it is not made here.

    It stands in `dsgen` under XDG_CONFIG_HOME or ~/.config. Raises OSError when this user has no home folder.
    """
    return _folder_of_user(f"{os.environ.get('XDG_CONFIG_HOME') or '~/.config'}/dsgen", name)


def cache_folder(name: str) -> Path:
    """Folder called `name` for what can be made again; it is not made here.

    It stands in DSGEN_CACHE_DIR, else in `dsgen` under XDG_CACHE_HOME or ~/.cache. Raises OSError when this user has
    no home folder.
    """
    root = os.environ.get(CACHE_VARIABLE) or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/dsgen"
    return _folder_of_user(root, name)


def _folder_of_user(root: str, name: str) -> Path:
    try:
        return Path(root).expanduser().absolute() / name
    except RuntimeError as error:
        raise OSError(f"{root} leads nowhere: {error}") from None


def local_path(folder: Path, name: str) -> Path:
    """The path that a recipe means by `name`: `~` is the home folder, a relative one counts from `folder`."""
    path = Path(name)
    # There may be no such user; then the path is missed under the name that was given.
    with suppress(RuntimeError):
        path = path.expanduser()
    return folder / path
