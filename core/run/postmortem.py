"""postmortem.json: why a run failed, with what was known at that moment. Written by the supervisor, before `finished`.

Memory compares like with like: the most bytes that tensors of a rank held (``allocated_bytes`` of its memory rows),
against the plan's allocated peak.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.types import RunState

_LOG_TAIL_BYTES = 64 << 10
_LOG_TAIL_LINES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The first thing that went wrong; what followed from it is not a cause."""

    kind: str  # of planner.run_state.FAILURE_KINDS
    message: str
    rank: int | None = None
    step: int | None = None
    traceback: str = ""
    memory: Mapping[str, Any] | None = None  # {"instant", "allocatable_bytes"} of a rank that said where memory ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended: a code, a signal, or neither when nobody could see it."""

    pid: int
    rank: int | None  # None: the launcher
    code: int | None = None
    signal: str | None = None

    @property
    def words(self) -> str:
        if self.signal:
            return f"was ended by {self.signal}"
        return "ended without a word" if self.code is None else f"ended with exit code {self.code}"


def exit_of(pid: int, rank: int | None, wait_status: int) -> Exit:
    """From a status of waitpid."""
    code = os.waitstatus_to_exitcode(wait_status)
    if code >= 0:
        return Exit(pid=pid, rank=rank, code=code)
    return Exit(pid=pid, rank=rank, signal=signal.Signals(-code).name)


def log_tail(path: Path) -> list[str]:
    """The last 100 lines of at most 64 KiB; of a line that a progress bar rewrote, what it last said."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.rstrip("\n").split("\n")][-_LOG_TAIL_LINES:]


def explain_death(exit_: Exit, tail: Sequence[str], *, oom_kills: int) -> Cause:
    """A cause for a rank that could not say one: from how it ended, the log, and the kernel's count of OOM kills."""
    who = "The launcher (torchrun)" if exit_.rank is None else f"Rank {exit_.rank}"
    what = f"{who}, pid {exit_.pid}, {exit_.words}."
    kind = "launcher" if exit_.rank is None else "worker"
    cause = Cause(kind=kind, message=what, rank=exit_.rank)
    if exit_.signal == "SIGKILL" and oom_kills > 0:
        return replace(
            cause, kind="oom",
            message=f"{what} The kernel's out-of-memory killer struck {oom_kills} time(s) on this machine meanwhile: "
            "host memory was exhausted.",
        )  # fmt: skip
    said = last_error(tail)
    if said and exit_.code not in (None, 0):
        cause = replace(cause, message=f"{what} It last said: {said}")
        if "OutOfMemoryError" in said or "out of memory" in said.lower():
            cause = replace(cause, kind="oom")
        elif said.startswith(("ModuleNotFoundError", "ImportError")):
            cause = replace(cause, kind="environment")
    return cause


def last_error(tail: Sequence[str]) -> str:
    """The last line that looks like the end of a traceback."""
    for line in reversed(tail):
        text = line.partition("]:")[2] if line.startswith("[rank") else line
        name = text.strip().partition(":")[0]
        if name.endswith(("Error", "Exception", "Exit", "Interrupt")) and " " not in name:
            return text.strip()
    return ""


def oom_kill_count() -> int:
    """How often the kernel's OOM killer struck since boot (Linux); 0 where the kernel does not tell."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def build_postmortem(
    *, cause: Cause, state: RunState, exits: Sequence[Exit], memory: Mapping[int, Mapping[str, Any]],
    peaks: Mapping[int, Mapping[str, Any]], host: Mapping[str, Any], plan: Mapping[str, Any], tail: Sequence[str],
    now: float, out_of_memory: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """``memory``: rank -> its newest row; ``peaks``: rank -> its row with the most allocated bytes; ``host``: the
    supervisor's newest memory row; ``out_of_memory``: of core/run/oom.py, for a run that ended so."""
    return {
        "schema": 1,
        "time": now,
        "kind": cause.kind,
        "message": cause.message,
        "rank": cause.rank,
        "step": state.step if cause.step is None else cause.step,
        "total_steps": state.total_steps,
        "phase": state.phase,
        "attempt": state.attempt,
        "last_checkpoint": state.last_checkpoint,
        "exits": [{"rank": e.rank, "pid": e.pid, "code": e.code, "signal": e.signal} for e in exits],
        "peaks": [_peak(rank, row, plan) for rank, row in sorted(peaks.items())],
        "peak_instant": plan.get("peak_instant"),
        "out_of_memory": None if out_of_memory is None else dict(out_of_memory),
        "memory": {str(rank): dict(row) for rank, row in sorted(memory.items())},
        "host": dict(host),
        "traceback": cause.traceback,
        "log_tail": list(tail),
    }


def _peak(rank: int, row: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    measured = int(row["allocated_bytes"])
    gpus = plan.get("gpus") or []
    planned = int(gpus[rank]["peak"]["allocated_bytes"]) if rank < len(gpus) else None
    return {
        "rank": rank,
        "instant": row.get("instant"),
        "measured_bytes": measured,
        "planned_bytes": planned,
        "over_bytes": None if planned is None else measured - planned,
    }
