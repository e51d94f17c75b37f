"""One supervisor per run: an flock that the kernel frees when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from planner.errors import LaunchError


class RunLock:
    """Held from construction until `close` or the end of the process; children do not inherit it."""

    def __init__(self, path: Path) -> None:
        """Raises: LaunchError with the holder's pid when another process holds it."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise LaunchError(
                f"The run {path.parent.name} already has a supervisor, pid {holder or 'unknown'}.",
                why="Two of them would train the same run twice into one directory.",
                fix=f"`longfit attach {path.parent.name}` follows it, `longfit stop {path.parent.name}` ends it.",
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def close(self) -> None:
        os.close(self._descriptor)
