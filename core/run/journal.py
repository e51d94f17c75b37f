"""The one writer of events.jsonl, metrics.jsonl, memory.jsonl and state.json. Owned by the supervisor."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from core.run.atomic import atomic_write
from core.run.directory import RunDirectory
from core.run.jsonl import JsonlTail, append_line, decode_line, encode_line, read_rows, repair_end
from planner.run_state import event_from_dict, event_to_dict, fold, state_from_dict, state_to_dict
from planner.types import RunEvent, RunState

_STATE_PERIOD_SECONDS = 0.5
_PIECE_BYTES = 1 << 20
_STEP = b'"type":"progress"'  # as encode_line writes it
_URGENT = frozenset({"supervisor", "running", "stop_requested", "finished"})  # state.json must show these at once


def cached_state(directory: RunDirectory) -> tuple[RunState, int]:
    """What state.json holds, and how many bytes of events.jsonl are folded into it; nothing of nothing without it."""
    try:
        cached = json.loads(directory.state.read_text(encoding="utf-8"))
        state, offset = state_from_dict(cached["state"]), int(cached["events_bytes"])
        if directory.events.stat().st_size < offset:
            raise ValueError("events.jsonl is shorter than what was folded")
    except (OSError, ValueError, KeyError, TypeError):  # no cache, or one of another version: events are the truth
        return RunState(), 0
    return state, offset


def read_state(directory: RunDirectory) -> RunState:
    """The fold of all events of a run, taken up where state.json left off. `lost` is not known here."""
    state, offset = cached_state(directory)
    tail = JsonlTail(directory.events, offset=offset)
    while rows := tail.read():
        state = fold(decode_events(rows), state)
    return state


def told_events(directory: RunDirectory, end: int) -> list[RunEvent]:
    """The events in the first ``end`` bytes of events.jsonl, steps left out: in a run of days those are nearly all,
    and a reader that has the folded state has no use for them."""
    events: list[RunEvent] = []
    carry, left = b"", end
    try:
        with directory.events.open("rb") as file:
            while data := file.read(min(_PIECE_BYTES, left)):
                left -= len(data)
                whole, _, carry = (carry + data).rpartition(b"\n")
                if whole.count(_STEP) <= whole.count(b"\n"):  # not steps alone, which is seen at once
                    lines = (line for line in whole.split(b"\n") if _STEP not in line)
                    events += decode_events([row for line in lines if (row := decode_line(line))])
    except FileNotFoundError:
        pass
    return events


def decode_events(rows: list[dict[str, Any]]) -> list[RunEvent]:
    """Rows of events.jsonl as events; a row that is none is left out."""
    events = []
    for row in rows:
        try:
            events.append(event_from_dict(row))
        except (KeyError, TypeError, ValueError):
            continue
    return events


class Journal:
    """Opens the files of a run for one attempt, ends half-written lines of a killed predecessor, appends, folds."""

    def __init__(self, directory: RunDirectory, *, clock: Callable[[], float] = time.time) -> None:
        self.directory = directory
        self._clock = clock
        for path in (directory.events, directory.metrics, directory.memory):
            repair_end(path)
        self.state = read_state(directory)
        self._events = _open(directory.events)
        self._metrics = _open(directory.metrics)
        self._memory = _open(directory.memory)
        self._state_is_stale = True
        self._state_written_at = 0.0

    def event(self, type: str, *, at: float | None = None, **data: Any) -> None:
        """Append and fold one event. One that the fold cannot take (a bad message of a worker) becomes a warning."""
        event = RunEvent(time=self._clock() if at is None else at, type=type, data=data)
        try:
            self.state = fold([event], self.state)
        except (KeyError, TypeError, ValueError) as error:
            self.event("warning", message=f"event {type} left out, {error!r} in {data}")
            return
        append_line(self._events, encode_line(event_to_dict(event)))
        self._state_is_stale = True
        self.flush(urgent=type in _URGENT)

    def metric(self, row: Mapping[str, Any]) -> None:
        append_line(self._metrics, encode_line(row))

    def memory(self, row: Mapping[str, Any]) -> None:
        append_line(self._memory, encode_line(row))

    def supersede_metrics(self, after_step: int) -> None:
        """The attempt that begins continues after this step: rows of earlier attempts beyond it are not shown twice.

        They move to metrics.superseded.jsonl; metrics.jsonl is replaced in one instant, so that a reader's tail starts
        anew. This is the only place where a metric row ever leaves. ``after_step`` -1: from the very beginning.
        """
        rows = read_rows(self.directory.metrics)
        kept = [row for row in rows if _step(row) <= after_step]
        dropped = [row for row in rows if _step(row) > after_step]
        if not dropped:
            return
        repair_end(self.directory.superseded_metrics)
        archive = _open(self.directory.superseded_metrics)
        for row in dropped:
            append_line(archive, encode_line({**row, "attempt": self.state.attempt - 1}))
        os.close(archive)
        os.close(self._metrics)
        atomic_write(self.directory.metrics, b"".join(encode_line(row) for row in kept))
        self._metrics = _open(self.directory.metrics)
        self.event("superseded", after_step=after_step, num_rows=len(dropped))

    def flush(self, *, urgent: bool = False) -> None:
        """Write state.json if something changed, at most twice a second unless it is urgent."""
        now = time.monotonic()
        if self._state_is_stale and (urgent or now - self._state_written_at >= _STATE_PERIOD_SECONDS):
            content = {
                "schema": 1, "events_bytes": os.fstat(self._events).st_size, "state": state_to_dict(self.state),
            }  # fmt: skip
            atomic_write(self.directory.state, json.dumps(content, indent=1) + "\n", durable=False)
            self._state_is_stale = False
            self._state_written_at = now

    def close(self) -> None:
        self.flush(urgent=True)
        for descriptor in (self._events, self._metrics, self._memory):
            os.fsync(descriptor)
            os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _step(row: Mapping[str, Any]) -> int:
    step = row.get("step")
    return int(step) if isinstance(step, int | float) else 0
