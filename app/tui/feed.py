"""What a Run screen follows: state, curves, memory, events and log of one run, taken in by a thread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.services.runs import RunFollower, snapshot
from app.tui.log_file import LogFile
from app.views.memory_view import MemoryHistory
from app.views.series import LossHistory
from planner.types import RunConfig, RunEvent, RunState

MAX_EVENTS = 500
PIECES_PER_POLL = 4  # of a megabyte each: about 20,000 rows, so that a run of days is seen to fill in


class RunFeed:
    """``poll`` takes in everything new; call it from one thread at a time and read the attributes in between.

    Raises: RunNotFound, ConfigError when there is no such run or it is damaged.
    """

    def __init__(self, run_dir: Path) -> None:
        seen = snapshot(run_dir)
        self.run = seen.paths
        self.config: RunConfig = seen.config
        self.plan: Mapping[str, Any] = seen.plan
        self.state: RunState = seen.state
        self.postmortem: Mapping[str, Any] = {}
        self.loss = LossHistory()
        self.memory = MemoryHistory()
        self.events: list[RunEvent] = []
        self.log = LogFile(self.run.log)
        self._follower = RunFollower(paths=self.run, log_bytes=0)

    def poll(self) -> bool:
        """Take in what is new, at most a few megabytes of it. True when there is more: draw, then poll again."""
        has_more = True
        for _ in range(PIECES_PER_POLL):
            update = self._follower.read()
            self.state = update.state
            if update.metrics_restarted:
                self.loss = LossHistory()
            self.loss.extend(update.metrics)
            self.memory.extend(update.memory)
            self.memory.extend(update.samples)
            self.events += update.events
            del self.events[:-MAX_EVENTS]
            if update.is_empty:
                has_more = False
                break
        self.postmortem = self.run.read_json(self.run.postmortem) if self.state.status == "failed" else {}
        self.log.refresh()
        return has_more
