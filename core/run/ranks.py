"""The ranks of an attempt as the supervisor knows them: who said hello, who is done, who died, and of what first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.run.listener import Connection
from core.run.postmortem import Cause, Exit, explain_death
from core.run.process import is_alive
from planner.run_state import FAILURE_KINDS
from planner.types import ProcessId

_OPEN_SOCKET_SECONDS = 1.0  # a dead rank's socket stays open only if a child of it holds it; then we wait this long


@dataclass(eq=False, slots=True)
class Rank:
    number: int
    process: ProcessId
    connection: Connection
    dead_since: float | None = None
    is_buried: bool = False  # its death was noticed and dealt with


class Ranks:
    def __init__(self, *, alive: Callable[[ProcessId], bool] = is_alive) -> None:
        self._ranks: dict[int, Rank] = {}
        self._alive = alive
        self._silent: Rank | None = None
        self._said: Cause | None = None
        self._is_closed = False
        self.exits: list[Exit] = []  # in the order in which we learned of them

    def __bool__(self) -> bool:
        return bool(self._ranks)

    @property
    def processes(self) -> Mapping[int, ProcessId]:
        return {rank.number: rank.process for rank in self._ranks.values()}

    @property
    def has_failed(self) -> bool:
        return self._silent is not None or self._said is not None

    def add(self, number: int, process: ProcessId, connection: Connection) -> None:
        self._ranks[number] = Rank(number, process, connection)

    def number_of(self, pid: int) -> int | None:
        return next((rank.number for rank in self._ranks.values() if rank.process.pid == pid), None)

    def record_exit(self, exit_: Exit) -> bool:
        """False when it was known already: from waitpid and from the launcher."""
        if any(known.pid == exit_.pid for known in self.exits):
            return False
        self.exits.append(exit_)
        return True

    def close_case(self) -> None:
        """The cause is known to lie elsewhere (the launcher was killed): what ranks say or do now follows from it."""
        self._is_closed = True

    def record_failure(self, number: int, data: Mapping[str, Any]) -> None:
        """A rank says what it is dying of. If another one is dead by then and said nothing, that death came first and
        this complaint (a broken connection, most often) follows from it."""
        if self.has_failed or self._is_closed:
            return
        silent = next((r for r in self._ranks.values() if r.number != number and self._died_silently(r)), None)
        if silent is not None:
            self._silent = silent
            return
        kind = str(data.get("kind"))
        step, memory = data.get("step"), data.get("memory")
        self._said = Cause(
            kind=kind if kind in FAILURE_KINDS else "error", message=str(data.get("message") or "no message"),
            rank=number, step=step if isinstance(step, int) else None, traceback=str(data.get("traceback") or ""),
            memory=memory if isinstance(memory, Mapping) else None,
        )  # fmt: skip

    def newly_dead(self, now: float, *, may_be_cause: bool) -> list[Rank]:
        """Ranks that are gone since the last call without having said that they are done.

        ``may_be_cause`` is False once we end them ourselves.
        """
        dead = []
        for rank in self._ranks.values():
            if rank.is_buried or self._alive(rank.process):
                continue
            rank.dead_since = now if rank.dead_since is None else rank.dead_since
            if rank.connection.is_open and now - rank.dead_since < _OPEN_SOCKET_SECONDS:
                continue  # its last words may still be on the way
            rank.is_buried = True
            if not rank.connection.is_done:
                if may_be_cause and not self.has_failed and not self._is_closed:
                    self._silent = rank
                dead.append(rank)
        return dead

    def cause(self, tail: Sequence[str], *, oom_kills: int) -> Cause | None:
        """What went wrong first, in words; None when no rank failed."""
        if self._silent is None:
            return self._said
        # torchrun saw the order of deaths better than we could: it reports the first
        silent = Exit(pid=self._silent.process.pid, rank=self._silent.number)
        first = next((exit_ for exit_ in self.exits if exit_.rank is not None), silent)
        return None if first.code == 0 else explain_death(first, tail, oom_kills=oom_kills)

    def _died_silently(self, rank: Rank) -> bool:
        return not self._alive(rank.process) and not rank.connection.is_done
