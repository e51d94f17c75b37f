"""Paths that were typed into the page stay below the folder in which the page was started. Used by form.py and
paste_actions.py.

The page may be open to others (another user of the machine, a token passed on), so unlike the command line it is no
way to have any file of the account read. What lies outside is refused in the same words whether it exists or not.
"""

from __future__ import annotations

import os
from pathlib import Path

from planner.errors import ConfigError


def confined_path(text: str, *, what: str, root: Path | None = None) -> Path:
    """The real path behind ``text``, symbolic links followed, when it is inside ``root`` (the current folder).

    A trailing ``#500`` (a sample of so many rows) is no part of the name. A hub id reads as a path below ``root``.
    Raises: ConfigError when it leads outside, or cannot be a path.
    """
    root = (root or Path.cwd()).resolve()
    name, _, sample = text.rpartition("#")
    name = name if name and sample.isdigit() else text
    if "\0" in name or "\\" in name or not name.isprintable():
        raise ConfigError(
            f"{what}: {text!r} cannot be a path.", why="It holds a backslash or an unprintable character."
        )
    # realpath follows what exists of the path, so that a link inside the folder cannot lead out of it
    real = Path(os.path.realpath(root / os.path.expanduser(name)))
    if real != root and root not in real.parents:
        raise ConfigError(
            f"{what}: {text!r} is outside of {root}.",
            why="Paths given in the web page stay below the folder in which `longfit web` was started.",
            fix="Start it in a folder above your data, or name the file in a preset.",
        )
    return real


def is_confined(text: str) -> bool:
    try:
        confined_path(text, what="path")
    except ConfigError:
        return False
    return True
