"""The process beside a run: `python -P -m core.run.supervisor RUN_DIR [-- TARGET...]`, started by app.services.launch.

It leads a session of its own, adopts every orphan among its descendants (Linux), starts the workers, is the only
writer of the run's files, and leaves nobody behind: not when a rank dies, not when the launcher dies, not on stop.
Workers and launcher hold a socket to it, so that they end when it is killed. It never imports torch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from core.run.atomic import atomic_write
from core.run.channel import SOCKET_VARIABLE
from core.run.command import DEFAULT_TARGET, Device, worker_command
from core.run.config_file import read_config
from core.run.control import StopMode, take_commands
from core.run.directory import RunDirectory, open_run
from core.run.family import Family
from core.run.inbox import Inbox
from core.run.journal import Journal
from core.run.listener import Connection, Listener
from core.run.lock import RunLock
from core.run.nvml import GpuReading, Nvml
from core.run.postmortem import Cause, build_postmortem, explain_death, log_tail, oom_kill_count
from core.run.process import become_subreaper, identify
from core.run.ranks import Ranks
from core.run.sampler import Sampler
from core.run.stop_ladder import next_rung
from planner.errors import LongfitError

TURN_SECONDS = 0.1
FAILURE_GRACE_SECONDS = 1.5  # SIGTERM to SIGKILL when a rank or the launcher died: all are gone well within 5 s
DYING_SECONDS = 3.0  # a rank that named its failure must have ended by itself after this time
STOP_GRACE_SECONDS = 10.0  # SIGTERM to SIGKILL for `stop --now`, and for helpers that outlive a good end
RELEASE_SECONDS = 5.0  # how long the driver may take to give device memory back


class Supervisor:
    """One attempt of one run, from its `supervisor` event to `finished`."""

    def __init__(self, directory: RunDirectory, *, target: tuple[str, ...], base: Mapping[str, str]) -> None:
        """``target``: what python or torchrun is told to run. ``base``: the environment that workers inherit."""
        self._directory = directory
        self._config = read_config(directory.path)
        self._device: Device = "cuda" if directory.read_json(directory.environment).get("device") == "cuda" else "cpu"
        self._target = target
        self._base = base
        self._journal = Journal(directory)
        self._previous = self._journal.state
        self._listener = Listener()
        self._family = Family()
        self._ranks = Ranks()
        self._inbox = Inbox(self._journal, self._ranks, is_resume=self._previous.supervisor is not None)
        self._nvml = Nvml("" if self._device == "cpu" else base.get("CUDA_VISIBLE_DEVICES"))
        self._sampler = Sampler(self._nvml, directory.path)
        self._host_row: dict[str, Any] = {}
        self._launch_problem: Cause | None = None
        self._stop: StopMode | None = None
        self._num_signals = 0
        self._oom_kills_before = oom_kill_count()

    def run(self) -> int:
        """0 when the run is done or was stopped, 1 when it failed."""
        try:
            self._begin()
            next_watch = 0.0
            while self._launch_problem is None and not self._family.is_gone:
                self._take_messages(self._listener.poll(TURN_SECONDS))
                if time.monotonic() >= next_watch:
                    self._watch()
                    next_watch = time.monotonic() + TURN_SECONDS
            return self._finish()
        except BaseException as error:  # a full disk, or a bug of ours: nobody may be left without a supervisor
            traceback.print_exc()
            self._give_up(error)
            return 1

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT to the supervisor is a stop, the next one a harder stop. Counted here, acted on later."""
        self._num_signals += 1

    def _begin(self) -> None:
        attempt = 1 if self._previous.supervisor is None else self._previous.attempt + 1
        own = identify(os.getpid())
        assert own is not None
        self._journal.event(
            "supervisor", pid=own.pid, start_ticks=own.start_ticks, boot_id=own.boot_id, attempt=attempt
        )
        if attempt > 1:
            self._set_aside_failure()
        command = worker_command(
            self._config, self._directory.path, device=self._device, target=self._target,
            base={**self._base, SOCKET_VARIABLE: self._listener.path},
        )  # fmt: skip
        self._directory.write_command(command)
        self._sampler.start()
        try:
            self._family.start(command, self._directory.log)
        except OSError as error:
            self._launch_problem = Cause(kind="environment", message=f"{command.argv[0]} does not start: {error}")

    def _set_aside_failure(self) -> None:
        """Post-mortem and log of the attempt before stay, but do not speak for the new one."""
        if self._directory.postmortem.exists():
            aside = self._directory.path / f"postmortem.attempt-{self._previous.attempt}.json"
            self._directory.postmortem.rename(aside)
        with self._directory.log.open("a", encoding="utf-8") as log:
            log.write(f"\n--- attempt {self._previous.attempt + 1} ---\n")

    def _watch(self) -> None:
        """Ten times a second: who died, what was asked, what follows."""
        self._sampler.worker_pids = {rank: process.pid for rank, process in self._ranks.processes.items()}
        for row in self._sampler.rows():
            self._host_row = row
            self._journal.memory(row)
        for process in self._ranks.processes.values():
            self._family.know(process)
        if len(self._ranks.processes) == self._config.parallel.world:
            self._listener.close_door()
        self._reap()
        self._take_stops()
        self._end_if_due()
        self._family.pursue(had_ranks=bool(self._ranks))
        self._journal.flush()

    def _take_messages(self, messages: Iterable[tuple[Connection, dict[str, Any] | None]]) -> None:
        for connection, message in messages:
            if message is None:
                continue  # it closed: _watch looks at its process
            if message.get("type") == "failure":
                self._reap()  # who is dead already did not die of this
            self._inbox.take(connection, message)

    def _reap(self) -> None:
        exits = self._family.reap(self._ranks.number_of)
        child = self._family.child_exit
        if child is not None and child in exits:
            if child.rank is None and child.signal is not None:
                self._ranks.close_case()
            self._take_messages(self._listener.drain())  # its last words, before anything is judged
        for exit_ in exits:
            self._inbox.note_exit(exit_)

    def _take_stops(self) -> None:
        while self._num_signals > 0:
            self._num_signals -= 1
            self._stop_on("save")
        commands, problems = take_commands(self._directory.control)
        for command in commands:
            self._journal.event("acknowledged", command=f"stop {command.mode}", id=command.id)
            self._stop_on(command.mode)
        for problem in problems:
            self._journal.event("warning", message=f"a file in control/ was not understood: {problem}")
        if self._stop is not None:
            self._listener.ask_to_save()  # also those that connect later

    def _stop_on(self, asked: StopMode) -> None:
        self._stop = next_rung(self._stop, asked)
        self._journal.event("stop_requested", mode=self._stop)
        if self._stop != "save":
            self._family.end(grace_seconds=STOP_GRACE_SECONDS if self._stop == "now" else 0.0)

    def _end_if_due(self) -> None:
        now = time.monotonic()
        dead = self._ranks.newly_dead(now, may_be_cause=not self._family.is_ending)
        failed_at = self._inbox.failed_at
        is_overdue = failed_at is not None and now - failed_at >= DYING_SECONDS
        child = self._family.child_exit
        if self._stop in ("now", "kill"):
            return  # they are being ended already, with the grace that was asked for
        if dead or is_overdue:
            self._family.end(grace_seconds=FAILURE_GRACE_SECONDS)
        elif child is not None and not self._family.is_ending:
            is_good = child.code == 0 and not self._ranks.has_failed
            self._family.end(grace_seconds=STOP_GRACE_SECONDS if is_good else FAILURE_GRACE_SECONDS)

    def _finish(self) -> int:
        self._reap()  # zombies are gone to everybody but us
        self._take_messages(self._listener.drain())
        self._sampler.stop()
        if self._stop is not None:
            self._prove_release()
        status, cause = self._outcome()
        if cause is None:
            self._journal.event("finished", status=status)
        else:
            self._write_postmortem(cause)
            self._journal.event("finished", status=status, kind=cause.kind, message=cause.message)
        self._listener.close()
        self._journal.close()
        return 0 if cause is None else 1

    def _outcome(self) -> tuple[str, Cause | None]:
        """done, stopped or failed, and of what. Where an end at once was asked for, no end is a failure."""
        if self._stop in ("now", "kill"):
            return "stopped", None
        tail = log_tail(self._directory.log)
        oom_kills = oom_kill_count() - self._oom_kills_before
        child = self._family.child_exit
        cause = self._launch_problem or self._ranks.cause(tail, oom_kills=oom_kills)
        if cause is None and child is not None and child.code != 0:
            reported = [exit_ for exit_ in self._ranks.exits if exit_.rank is not None and exit_.code != 0]
            first = child if child.signal is not None or not reported else reported[0]
            cause = explain_death(first, tail, oom_kills=oom_kills)
        if cause is not None:
            return "failed", cause
        state = self._journal.state
        is_complete = 0 < state.total_steps <= state.step
        return ("stopped" if self._stop is not None and not is_complete else "done"), None

    def _write_postmortem(self, cause: Cause) -> None:
        content = build_postmortem(
            cause=cause, state=self._journal.state, exits=self._ranks.exits, memory=self._inbox.memory,
            peaks=self._inbox.peaks, host=self._host_row, plan=self._directory.read_json(self._directory.plan),
            tail=log_tail(self._directory.log), now=time.time(),
            out_of_memory=self._out_of_memory(cause) if cause.kind == "oom" else None,
        )  # fmt: skip
        atomic_write(self._directory.postmortem, json.dumps(content, indent=1) + "\n")

    def _out_of_memory(self, cause: Cause) -> dict[str, Any] | None:
        """Where, what, and what would fit. The post-mortem must be written whatever becomes of the advice."""
        # a rank that was killed could not say where: then the fullest moment that it reported
        memory = cause.memory or self._inbox.peaks.get(cause.rank or 0, {})
        plan = self._directory.read_json(self._directory.plan)
        try:
            from core.run.oom import explain_out_of_memory  # the planner's search, which no other run needs

            return explain_out_of_memory(
                self._config, plan, instant=memory.get("instant"), allocatable_bytes=memory.get("allocatable_bytes")
            )  # fmt: skip
        except Exception:
            traceback.print_exc()  # to supervisor.log
            return None

    def _prove_release(self) -> None:
        """After a stop: what the driver says of device memory, once no process of the run is left on it."""
        pids = {process.pid for process in self._ranks.processes.values()}
        deadline = time.monotonic() + RELEASE_SECONDS
        after = self._nvml.read()
        while _holders(after, pids) and time.monotonic() < deadline:
            time.sleep(0.2)
            after = self._nvml.read()
        if after:
            before = self._sampler.highest_used
            self._journal.event(
                "released", holders=_holders(after, pids),
                gpus=[
                    {"index": gpu.index, "before_bytes": before.get(gpu.index), "after_bytes": gpu.used_bytes}
                    for gpu in after
                ],
            )  # fmt: skip

    def _give_up(self, error: BaseException) -> None:
        """End everybody at once, then try to say why."""
        deadline = time.monotonic() + RELEASE_SECONDS
        self._listener.close()
        self._family.end(grace_seconds=0.0)
        while not self._family.is_gone and time.monotonic() < deadline:
            self._family.pursue(had_ranks=True)
            self._family.reap(self._ranks.number_of)
            time.sleep(TURN_SECONDS)
        try:
            message = f"The supervisor failed: {type(error).__name__}: {error}"
            self._journal.event("finished", status="failed", kind="error", message=message)
            self._journal.close()
        except OSError:
            traceback.print_exc()


def _holders(gpus: Sequence[GpuReading], pids: set[int]) -> list[int]:
    return sorted(pid for gpu in gpus for pid in gpu.pids or () if pid in pids)


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 done or stopped, 1 failed, or that of a LongfitError (told on stderr) when nothing was begun."""
    path, *rest = arguments
    target = tuple(rest[1:]) if rest[:1] == ["--"] else DEFAULT_TARGET
    try:
        directory = open_run(Path(path))
        lock = RunLock(directory.lock)
        become_subreaper()
        supervisor = Supervisor(directory, target=target, base=os.environ)
    except LongfitError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return error.exit_code
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal never ends a run; workers inherit this
    signal.signal(signal.SIGTERM, supervisor.on_signal)
    signal.signal(signal.SIGINT, supervisor.on_signal)
    code = supervisor.run()
    lock.close()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
