"""How a run is brought to an end: save and stop, then SIGTERM, then SIGKILL of every descendant of the supervisor.

Times are seconds of one monotonic clock, given by the caller.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection

from core.run.control import STOP_MODES, StopMode
from core.run.process import send_signal
from planner.types import ProcessId

_LAUNCHER_SECONDS = 1.5  # torchrun reports how its ranks ended and leaves by itself; then it is killed too


def next_rung(current: StopMode | None, asked: StopMode) -> StopMode:
    """A repeated stop skips a rung: who asks twice does not want to wait for the first."""
    if current is None:
        return asked
    index = max(STOP_MODES.index(asked), STOP_MODES.index(current) + 1)
    return STOP_MODES[min(index, len(STOP_MODES) - 1)]


class Ending:
    """SIGTERM at once, SIGKILL after a grace, for everything that descends from the supervisor.

    The launcher is left alone until its ranks are gone, because only it can tell their exit codes.
    """

    def __init__(
        self, now: float, *, grace_seconds: float,
        send: Callable[[ProcessId, signal.Signals], bool] = send_signal,
    ) -> None:  # fmt: skip
        self._kill_at = now + grace_seconds
        self._launcher_at = self._kill_at + (_LAUNCHER_SECONDS if grace_seconds > 0 else 0.0)
        self._send = send
        self._asked: set[ProcessId] = set()

    def hasten(self, now: float, *, grace_seconds: float) -> None:
        """Bring the SIGKILL forward."""
        self._kill_at = min(self._kill_at, now + grace_seconds)
        self._launcher_at = min(self._launcher_at, self._kill_at + (_LAUNCHER_SECONDS if grace_seconds > 0 else 0.0))

    def act(
        self, now: float, *, launcher: ProcessId | None, others: Collection[ProcessId], had_ranks: bool
    ) -> None:  # fmt: skip
        """Call it again and again until nobody is left; a process that appears in between gets the same."""
        if launcher is not None:
            if now >= self._launcher_at:  # before the others, so that it starts no rank anew
                self._send(launcher, signal.SIGKILL)
            elif not had_ranks:  # it has nothing to tell
                self._ask(launcher)
        for process in others:
            if now >= self._kill_at:
                self._send(process, signal.SIGKILL)
            else:
                self._ask(process)

    def _ask(self, process: ProcessId) -> None:
        if process not in self._asked:
            self._asked.add(process)
            self._send(process, signal.SIGTERM)
