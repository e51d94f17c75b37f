"""Stop a run and see that it is stopped. A face never signals a live run's processes: it asks the supervisor."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from app.services.runs import is_attended, observed_state
from core.run.control import StopMode, submit_stop
from core.run.directory import RunDirectory
from core.run.process import is_alive, send_signal
from planner.errors import ConfigError
from planner.types import FINAL_STATUSES, RunState

_POLL_SECONDS = 0.1


def stop(paths: RunDirectory, mode: StopMode = "save") -> str:
    """Ask the supervisor: save at the next step and stop, stop now, or kill. Returns the id of the command, which the
    `acknowledged` event carries. Asked again, the supervisor skips a rung.

    Raises: ConfigError when nobody works on the run.
    """
    state = observed_state(paths)
    if state.supervisor is None or state.status in FINAL_STATUSES or not is_attended(paths, state.supervisor):
        raise ConfigError(
            f"The run {paths.id} is not running: it is {state.status}.",
            fix=f"`longfit resume {paths.id}` continues it." if state.status in ("stopped", "failed", "lost") else "",
        )
    return submit_stop(paths.control, mode)


def kill_leftovers(paths: RunDirectory) -> tuple[int, ...]:
    """SIGKILL for recorded ranks that outlived a lost run's supervisor; the pids that were hit. Each is checked by
    start time and boot, so that a pid taken over by a stranger is left alone."""
    state = observed_state(paths)
    if state.supervisor is not None and is_alive(state.supervisor):
        return ()
    return tuple(process.pid for process in state.workers.values() if send_signal(process, signal.SIGKILL))


def wait_for_end(
    paths: RunDirectory, *, timeout_seconds: float | None = None, watch: Callable[[RunState], None] | None = None
) -> RunState:
    """The state once it is final, or at the timeout. ``watch`` sees every look in between."""
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    while True:
        state = observed_state(paths)
        if watch is not None:
            watch(state)
        if state.status in FINAL_STATUSES or (deadline is not None and time.monotonic() > deadline):
            return state
        time.sleep(_POLL_SECONDS)
