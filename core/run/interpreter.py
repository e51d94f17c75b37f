"""How longfit starts a Python child of its own: `-P`, this very code, nothing found by accident in a working folder.

Used for supervisor, launcher, workers and data preparation.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import core


def python_argv(*arguments: str) -> tuple[str, ...]:
    """This interpreter with -P: neither the working folder nor a script's folder enters sys.path."""
    return (sys.executable, "-P", *arguments)


def child_environment(base: Mapping[str, str]) -> dict[str, str]:
    """``base`` with PYTHONSAFEPATH for grandchildren, with pipes and logs in UTF-8 whatever the locale (the parent
    reads them so), and with the root of this source tree on PYTHONPATH when it is not installed: the child must load
    the code that started it, not another longfit."""
    environment = {**base, "PYTHONSAFEPATH": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}
    root = str(Path(core.__file__).resolve().parents[1])
    if root not in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        others = [path for path in base.get("PYTHONPATH", "").split(os.pathsep) if path and path != root]
        environment["PYTHONPATH"] = os.pathsep.join([root, *others])
    return environment
