"""Runs on disk, as every face sees them: find, list, look at, follow. Reads only; `lost` is derived here."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.services.locations import default_runs_dir
from core.run.config_file import FILE_NAME, read_config
from core.run.directory import RunDirectory, open_run
from core.run.journal import cached_state, decode_events, read_state, told_events
from core.run.jsonl import JsonlTail
from core.run.log_tail import LogTail
from core.run.process import boot_id, is_alive
from planner.errors import ConfigError, LongfitError, RunNotFound
from planner.run_state import fold
from planner.types import FINAL_STATUSES, ProcessId, RunConfig, RunEvent, RunState

_ELSEWHERE_SECONDS = 60.0  # silence after which a run of another machine counts as lost; it writes every ten seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """One look at a run. ``state.status`` may be "lost" here, and only here."""

    paths: RunDirectory
    state: RunState
    config: RunConfig
    plan: Mapping[str, Any]

    @property
    def id(self) -> str:
        return self.paths.id

    @property
    def is_live(self) -> bool:
        """Somebody works on it now."""
        return self.state.status not in FINAL_STATUSES and self.state.supervisor is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    runs: tuple[RunSnapshot, ...]  # newest first
    unreadable: tuple[tuple[Path, str], ...]  # folders that are runs but cannot be read, and why


def snapshot(run: Path | RunDirectory) -> RunSnapshot:
    """Raises: RunNotFound when there is no run, ConfigError when its files are damaged."""
    paths = run if isinstance(run, RunDirectory) else open_run(run)
    return RunSnapshot(
        paths=paths, state=observed_state(paths), config=read_config(paths.path), plan=paths.read_json(paths.plan)
    )


def list_runs(runs_root: Path | None = None) -> RunList:
    found, unreadable = [], []
    for path in _run_paths(runs_root or default_runs_dir()):
        try:
            found.append(snapshot(path))
        except LongfitError as error:
            unreadable.append((path, str(error)))
    found.sort(key=lambda run: (run.state.created_at, run.id), reverse=True)
    return RunList(runs=tuple(found), unreadable=tuple(unreadable))


def find_run(reference: str, runs_root: Path | None = None) -> RunDirectory:
    """A run by its id, the beginning or the last four characters of it, a path, or "last".

    Raises: RunNotFound with the nearest ids, ConfigError when several runs match.
    """
    root = runs_root or default_runs_dir()
    if (Path(reference) / FILE_NAME).is_file():
        return open_run(Path(reference))
    paths = _run_paths(root)
    if reference == "last" and paths:
        return open_run(max(paths, key=lambda path: path.name))
    matches = [path for path in paths if path.name == reference] or [
        path for path in paths if path.name.startswith(reference) or path.name.rpartition("-")[2] == reference
    ]
    if len(matches) == 1:
        return open_run(matches[0])
    if matches:
        names = ", ".join(sorted(path.name for path in matches))
        raise ConfigError(
            f"{reference!r} is the beginning of {len(matches)} runs: {names}.", fix="Give more of the id."
        )
    near = difflib.get_close_matches(reference, [path.name for path in paths], n=3, cutoff=0.4)
    raise RunNotFound(
        f"There is no run {reference!r}.", why=f"{root.resolve()} holds {len(paths)} runs.",
        fix=f"Did you mean {' or '.join(near)}?" if near else "`longfit runs` lists them; --runs-dir looks elsewhere.",
    )  # fmt: skip


def observed_state(paths: RunDirectory, state: RunState | None = None) -> RunState:
    """The fold of the events (or ``state``, when the caller has it), with "lost" where nobody is left to end it."""
    folded = read_state(paths) if state is None else state
    if folded.status in FINAL_STATUSES or folded.supervisor is None or is_attended(paths, folded.supervisor):
        return folded
    again = read_state(paths)  # it may have finished, and left, between the two looks
    if again.status in FINAL_STATUSES or again.supervisor != folded.supervisor:
        return again
    return replace(again, status="lost")


def is_attended(paths: RunDirectory, supervisor: ProcessId) -> bool:
    """Does this supervisor live? On another machine (shared folder) its files must have moved in the last minute."""
    if supervisor.boot_id == boot_id():
        return is_alive(supervisor)
    newest = max((path.stat().st_mtime for path in (paths.memory, paths.events) if path.exists()), default=0.0)
    return time.time() - newest < _ELSEWHERE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUpdate:
    """What is new since the last look."""

    state: RunState
    events: tuple[RunEvent, ...]
    metrics: tuple[Mapping[str, Any], ...]
    memory: tuple[Mapping[str, Any], ...]  # rows of ranks
    samples: tuple[Mapping[str, Any], ...]  # rows of the supervisor: host, GPUs, resident bytes of each rank
    log: tuple[str, ...]
    metrics_restarted: bool  # a resume took rows back: drop what was built from earlier ones

    @property
    def is_empty(self) -> bool:
        return not (self.events or self.metrics or self.memory or self.samples or self.log or self.metrics_restarted)


@dataclass(slots=True)
class RunFollower:
    """Reads a run as it grows, a bounded piece of each file at a time. Cheap enough for twice a second.

    Of the events that state.json has folded already only those are told that are not steps.
    """

    paths: RunDirectory
    log_bytes: int | None = 64 << 10  # of the log that was written before; None: all of it
    _state: RunState = field(init=False)
    _past: list[RunEvent] = field(init=False)
    _events: JsonlTail = field(init=False)
    _metrics: JsonlTail = field(init=False)
    _memory: JsonlTail = field(init=False)
    _log: LogTail = field(init=False)

    def __post_init__(self) -> None:
        self._state, folded_bytes = cached_state(self.paths)
        self._past = told_events(self.paths, folded_bytes)
        self._events = JsonlTail(self.paths.events, offset=folded_bytes)
        self._metrics = JsonlTail(self.paths.metrics)
        self._memory = JsonlTail(self.paths.memory)
        self._log = LogTail(self.paths.log, last_bytes=self.log_bytes)

    def read(self) -> RunUpdate:
        """Events are read to their end, so that ``state`` is that of now; rows and log come a piece at a time."""
        events = self._new_events()
        state = observed_state(self.paths, self._state)
        if state.status != self._state.status:  # it ended, and left, between two looks: tell what it said last
            events += self._new_events()
        events, self._past = [*self._past, *events], []
        generation = self._metrics.generation
        metrics = self._metrics.read()
        memory = self._memory.read()
        return RunUpdate(
            state=state,
            events=tuple(events),
            metrics=tuple(metrics),
            memory=tuple(row for row in memory if row.get("source") != "supervisor"),
            samples=tuple(row for row in memory if row.get("source") == "supervisor"),
            log=tuple(self._log.read()),
            metrics_restarted=self._metrics.generation != generation,
        )

    def _new_events(self) -> list[RunEvent]:
        events: list[RunEvent] = []
        while rows := self._events.read():
            events += decode_events(rows)
        self._state = fold(events, self._state)
        return events


def _run_paths(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return [path for path in root.iterdir() if not path.name.startswith(".") and (path / FILE_NAME).is_file()]
