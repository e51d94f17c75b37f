"""The supervisor's descendants: the child it starts, ranks and helpers below it, adopted orphans; and how they end."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from core.run.command import WorkerCommand
from core.run.postmortem import Exit, exit_of
from core.run.process import descendants, identify, is_alive
from core.run.stop_ladder import Ending
from planner.types import ProcessId


class Family:
    def __init__(self) -> None:
        self.child_exit: Exit | None = None  # of the child we started: torchrun, or the only rank
        self._child_pid = 0
        self._launcher: ProcessId | None = None
        self._known: set[ProcessId] = set()
        self._ending: Ending | None = None

    @property
    def is_gone(self) -> bool:
        """The child has ended and so has everybody below it."""
        return self.child_exit is not None and not self.others()

    @property
    def has_launcher(self) -> bool:
        """torchrun is there and will tell how its ranks ended."""
        return self._launcher is not None and is_alive(self._launcher)

    def start(self, command: WorkerCommand, log: Path) -> None:
        """Start the child with its output appended to ``log``. Raises: OSError when it cannot be started."""
        with log.open("ab") as output:
            child = subprocess.Popen(
                command.argv, env=dict(command.environment), cwd=command.directory,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        child.returncode = 0  # it is reaped with all other descendants in `reap`, not by Popen
        self._child_pid = child.pid
        if command.has_launcher:
            self._launcher = identify(child.pid)

    def know(self, process: ProcessId) -> None:
        """Where orphans cannot be adopted (not Linux), a rank is remembered from its hello."""
        self._known.add(process)

    def others(self) -> set[ProcessId]:
        """Every living descendant but the launcher."""
        found = {*descendants(os.getpid()), *(process for process in self._known if is_alive(process))}
        return found - {self._launcher}

    def reap(self, rank_of: Callable[[int], int | None]) -> list[Exit]:
        """Bury what ended since the last call. Ranks appear here only when they are our children: without torchrun,
        or orphaned by it."""
        exits: list[Exit] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return exits
            if pid == 0:
                return exits
            is_child = pid == self._child_pid
            rank = rank_of(pid)
            if rank is None and is_child and self._launcher is None:
                rank = 0  # it ended before it could say hello
            exit_ = exit_of(pid, rank, status)
            if is_child:
                self.child_exit = exit_
            if is_child or rank is not None:
                exits.append(exit_)

    def end(self, *, grace_seconds: float) -> None:
        """Begin to end everybody, or bring the SIGKILL forward when that has begun."""
        now = time.monotonic()
        if self._ending is None:
            self._ending = Ending(now, grace_seconds=grace_seconds)
        else:
            self._ending.hasten(now, grace_seconds=grace_seconds)

    @property
    def is_ending(self) -> bool:
        return self._ending is not None

    def pursue(self, *, had_ranks: bool) -> None:
        """The next step of an ending that has begun; call it again and again."""
        if self._ending is not None:
            launcher = self._launcher if self.has_launcher else None
            self._ending.act(time.monotonic(), launcher=launcher, others=self.others(), had_ranks=had_ranks)
