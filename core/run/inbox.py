"""What workers and launcher say, put into journal and roster. A message that makes no sense becomes a warning."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from core.run.journal import Journal
from core.run.listener import Connection
from core.run.postmortem import Exit
from core.run.ranks import Ranks
from planner.types import ProcessId

# Only the supervisor says these; a worker that does is not believed.
_OWN_EVENTS = frozenset(
    {"created", "supervisor", "worker", "superseded", "stop_requested", "acknowledged", "released", "finished"}
)
MEMORY_ROW_SECONDS = 10.0  # between rows of one rank and instant that hold nothing new


class Inbox:
    def __init__(self, journal: Journal, ranks: Ranks, *, is_resume: bool) -> None:
        self.memory: dict[int, dict[str, Any]] = {}  # rank -> newest row
        self.peaks: dict[int, dict[str, Any]] = {}  # rank -> row with the most allocated bytes
        self.failed_at: float | None = None  # monotonic: when the first rank said that it is dying
        self._journal = journal
        self._ranks = ranks
        self._written: dict[tuple[int, str], tuple[float, int]] = {}  # rank, instant -> monotonic of its row, highest
        self._must_supersede = is_resume  # the attempt has not yet said from where it continues

    def take(self, connection: Connection, message: Mapping[str, Any]) -> None:
        try:
            self._take(connection, message)
        except (KeyError, TypeError, ValueError) as error:
            self._journal.event("warning", message=f"not understood from rank {connection.rank}: {error!r}")

    def note_exit(self, exit_: Exit) -> None:
        """Record how a rank ended, once, whoever told."""
        if self._ranks.record_exit(exit_) and exit_.rank is not None:
            self._journal.event(
                "worker_exit", rank=exit_.rank, pid=exit_.pid, code=exit_.code, signal=exit_.signal
            )  # fmt: skip

    def _take(self, connection: Connection, message: Mapping[str, Any]) -> None:
        match message["kind"]:
            case "hello":
                self._welcome(connection, message)
            case "event":
                self._take_event(connection.rank, str(message["type"]), dict(message["data"]), float(message["time"]))
            case "metric":
                self._note_start(after_step=-1)
                self._journal.metric(dict(message["row"]))
            case "memory":
                self._take_memory(dict(message["row"]))
            case "sync":
                connection.send({"synced": int(message["number"])})
            case "done":
                connection.is_done = True

    def _welcome(self, connection: Connection, message: Mapping[str, Any]) -> None:
        process = ProcessId(
            pid=int(message["pid"]), start_ticks=int(message["start_ticks"]), boot_id=str(message["boot_id"])
        )
        if message["rank"] is None:  # the launcher
            return
        connection.rank = int(message["rank"])
        self._ranks.add(connection.rank, process, connection)
        self._journal.event(
            "worker", rank=connection.rank, pid=process.pid, start_ticks=process.start_ticks, boot_id=process.boot_id
        )

    def _take_event(self, rank: int | None, type: str, data: dict[str, Any], at: float) -> None:
        if type == "worker_exit" and rank is None:
            self.note_exit(Exit(pid=data["pid"], rank=data["rank"], code=data["code"], signal=data["signal"]))
            return
        if type in _OWN_EVENTS or type == "worker_exit":
            self._journal.event("warning", message=f"rank {rank} may not say {type!r}: {data}")
            return
        if rank is not None:
            data = {"rank": rank, **data}
        if type == "resumed":
            self._note_start(after_step=int(data["step"]))
        elif type == "running":
            self._note_start(after_step=-1)
        elif type == "failure" and rank is not None:
            self._ranks.record_failure(rank, data)
            if self.failed_at is None:
                self.failed_at = time.monotonic()
        self._journal.event(type, at=at, **data)

    def _note_start(self, *, after_step: int) -> None:
        """The first word of a resumed attempt about its beginning settles which older metric rows still count."""
        if self._must_supersede:
            self._must_supersede = False
            self._journal.supersede_metrics(after_step)

    def _take_memory(self, row: dict[str, Any]) -> None:
        rank = int(row["rank"])
        if self._is_worth_a_row(rank, row):
            self._journal.memory(row)
        self.memory[rank] = row
        if int(row["allocated_bytes"]) >= int(self.peaks.get(rank, {}).get("allocated_bytes", 0)):
            self.peaks[rank] = row

    def _is_worth_a_row(self, rank: int, row: Mapping[str, Any]) -> bool:
        """Every new highest is written, and a row now and then: four a step would be gigabytes after some days."""
        key, allocated, now = (rank, str(row.get("instant"))), int(row["allocated_bytes"]), time.monotonic()
        written_at, highest = self._written.get(key, (-MEMORY_ROW_SECONDS, -1))
        if allocated <= highest and now - written_at < MEMORY_ROW_SECONDS:
            return False
        self._written[key] = (now, max(highest, allocated))
        return True
