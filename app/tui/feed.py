"""What a Run screen follows: state, curves, memory, events and log of one run, taken in by a thread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.services.runs import RunFollower, snapshot
from app.tui.log_file import LogFile
from app.views.memory_view import MemoryHistory
from app.views.series import LossHistory
from core.run.jsonl import read_rows, sample_rows
from planner.types import RunConfig, RunEvent, RunState

MAX_EVENTS = 500
PIECES_PER_POLL = 2  # of a megabyte each: about 10,000 rows, so that a run of days is seen to fill in
LONG_BYTES = 4 << 20  # of metrics.jsonl or memory.jsonl: longer ones are sampled first and read in full afterwards
_SAMPLE_BLOCKS = 250
_SAMPLE_BYTES = 1536  # a block: about six rows


class RunFeed:
    """``poll`` takes in everything new; call it from one thread at a time and read the attributes in between.

    The first poll of a long run takes a sample of its curves, so that the screen is whole at once. Later ones read the
    files, each byte once; what they built takes the sample's place when they have come to the end.

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
        self.is_sampled = False  # loss and memory are drawn from a part of their rows
        self.events: list[RunEvent] = []
        self.log = LogFile(self.run.log)
        self._read_loss = self.loss
        self._read_memory = self.memory
        self._follower: RunFollower | None = None

    def poll(self) -> bool:
        """Take in what is new, at most a few megabytes of it. True when there is more: draw, then poll again."""
        has_more = self._take_pieces()
        self.postmortem = self.run.read_json(self.run.postmortem) if self.state.status == "failed" else {}
        self.log.refresh()
        return has_more

    def _take_pieces(self) -> bool:
        if self._follower is None:
            self._follower = RunFollower(paths=self.run, log_bytes=0)
            self._sample()
            if self.is_sampled:
                return True
        for _ in range(PIECES_PER_POLL):
            if not self._take(self._follower):
                self.loss, self.memory, self.is_sampled = self._read_loss, self._read_memory, False
                return False
        return True

    def _take(self, follower: RunFollower) -> bool:
        update = follower.read()
        self.state = update.state
        if update.metrics_restarted:
            self._read_loss = LossHistory()
            if not self.is_sampled:
                self.loss = self._read_loss
        self._read_loss.extend(update.metrics)
        self._read_memory.extend(update.memory)
        self._read_memory.extend(update.samples)
        self.events += (event for event in update.events if event.type != "progress")
        del self.events[:-MAX_EVENTS]
        return not update.is_empty

    def _sample(self) -> None:
        """Fill curves and memory from what a first look can read of long files."""
        if max(_size(self.run.metrics), _size(self.run.memory)) <= LONG_BYTES:
            return
        self.is_sampled, self.loss, self.memory = True, LossHistory(), MemoryHistory()
        for rows in _some_rows(self.run.metrics):
            if rows:
                self.loss.skip_to(int(rows[0].get("step") or 0), logging_steps=self.config.logging_steps)
            self.loss.extend(rows)
        for rows in _some_rows(self.run.memory):
            self.memory.extend(rows)


def _some_rows(path: Path) -> list[list[dict[str, Any]]]:
    if _size(path) <= LONG_BYTES:
        return [read_rows(path)]
    return sample_rows(path, num_blocks=_SAMPLE_BLOCKS, block_bytes=_SAMPLE_BYTES)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
