"""What a run's growing files hold, read once and then only where they grew. Used by run_actions.py.

A reader is a cache and nothing more: everything in it comes from the run directory, and a server that was restarted
builds it anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.services.runs import RunFollower
from app.views.memory_view import MemoryHistory
from app.views.series import LossHistory
from core.run.directory import RunDirectory
from planner.types import RunEvent, RunState

_MAX_READERS = 8
_MAX_EVENTS = 500
_MAX_LOG_LINES = 400


class RunReader:
    """Histories of one run. ``version`` grows whenever there is something new to draw."""

    def __init__(self, paths: RunDirectory) -> None:
        self.paths = paths
        self.state = RunState()
        self.loss = LossHistory()
        self.memory = MemoryHistory()
        self.events: deque[RunEvent] = deque(maxlen=_MAX_EVENTS)
        self.log: deque[str] = deque(maxlen=_MAX_LOG_LINES)
        self.version = 0
        self._follower = RunFollower(paths)

    def refresh(self) -> None:
        while True:
            update = self._follower.read()
            self.state = update.state
            if update.is_empty:
                return
            self.version += 1
            if update.metrics_restarted:
                self.loss = LossHistory()
            self.loss.extend(update.metrics)
            self.memory.extend((*update.memory, *update.samples))
            self.events.extend(event for event in update.events if event.type != "progress")
            self.log.extend(update.log)


class RunReaders:
    """The readers of the runs that were looked at last."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Path, tuple[RunReader, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def opened(self, paths: RunDirectory) -> Iterator[RunReader]:
        """The reader of a run, up to date, for this thread alone."""
        with self._lock:
            entry = self._entries.pop(paths.path, None) or (RunReader(paths), threading.Lock())
            self._entries[paths.path] = entry
            while len(self._entries) > _MAX_READERS:
                self._entries.popitem(last=False)
        reader, lock = entry
        with lock:
            reader.refresh()
            yield reader
