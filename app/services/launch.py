"""Start a run, or a further attempt of one: directory, detached supervisor, first sign of life. Used by every face."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.services.locations import default_runs_dir
from app.services.runs import is_attended, observed_state
from core.run.command import DEFAULT_TARGET, Device, WorkerCommand, worker_command
from core.run.directory import RunDirectory, create_run
from core.run.environment import describe_environment
from core.run.interpreter import child_environment, python_argv
from core.run.journal import read_state
from core.run.process import is_alive
from planner.errors import ConfigError, LaunchError
from planner.types import RunConfig, RunState

_START_SECONDS = 60.0  # an interpreter that imports no torch needs a fraction of a second
_LEAVE_SECONDS = 10.0  # a supervisor that has said `finished` is about to leave


def launch(
    *, config: RunConfig, plan: Mapping[str, Any], preset_text: str, data: Mapping[str, str | None],
    runs_root: Path | None = None, target: tuple[str, ...] = DEFAULT_TARGET,
) -> RunDirectory:  # fmt: skip
    """Create the run's directory and start its supervisor; returns once that has reported in.

    ``plan`` is plan_to_dict's; ``data`` is {"train": path, "eval": path or None} of prepared token stores;
    ``target`` is what python or torchrun is told to run.
    Raises: EnvironmentProblem when the directory cannot be written, LaunchError when the supervisor does not start.
    """
    device = device_of(plan)

    def command(run_dir: Path) -> WorkerCommand:
        return worker_command(config, run_dir, device=device, base=os.environ, target=target)

    paths = create_run(
        runs_root or default_runs_dir(), config=config, preset_text=preset_text, plan=plan,
        data={name: None if path is None else str(Path(path).resolve()) for name, path in data.items()},
        environment=describe_environment(device, argv=tuple(sys.argv), variables=os.environ), command=command,
    )  # fmt: skip
    start_supervisor(paths, target=target)
    return paths


def resume(paths: RunDirectory, *, target: tuple[str, ...] = DEFAULT_TARGET) -> RunDirectory:
    """A new attempt in the same directory; the workers go on from the newest valid checkpoint, or from the beginning.

    Raises: ConfigError when the run is live (with its pid) or done, LaunchError when processes of an earlier attempt
    are still there.
    """
    state = _state_when_left(paths)
    if state.status == "done":
        raise ConfigError(
            f"The run {paths.id} is done: all {state.total_steps} steps were taken.", why="There is nothing to resume.",
            fix="Train again with more epochs or steps: longfit train ... --set num_train_epochs=...",
        )  # fmt: skip
    if state.supervisor is not None and is_attended(paths, state.supervisor):
        raise ConfigError(
            f"The run {paths.id} is {state.status}: its supervisor is pid {state.supervisor.pid}.",
            why="A run has one supervisor at a time.",
            fix=f"`longfit attach {paths.id}` follows it, `longfit stop {paths.id}` ends it.",
        )
    left = [process for process in state.workers.values() if is_alive(process)]
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise LaunchError(
            f"Processes of an earlier attempt of {paths.id} are still there: pid {pids}.",
            why="They would hold memory that the new attempt needs.",
            fix=f"`longfit stop {paths.id} --kill` ends them.",
        )  # fmt: skip
    start_supervisor(paths, target=target)
    return paths


def start_supervisor(paths: RunDirectory, *, target: tuple[str, ...] = DEFAULT_TARGET) -> None:
    """In a session of its own, so that no terminal, browser or SSH connection takes the run with it.

    Raises: LaunchError with what it said when it left before its first event.
    """
    with paths.supervisor_log.open("ab") as log:
        log_start = log.tell()
        process = subprocess.Popen(
            python_argv("-m", "core.run.supervisor", str(paths.path), "--", *target),
            env=child_environment(os.environ), cwd=paths.path, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    # When it ends before this face does, somebody must collect it, or it stays a zombie.
    threading.Thread(target=process.wait, name="longfit-reaper", daemon=True).start()
    deadline = time.monotonic() + _START_SECONDS
    while True:
        has_left = process.poll() is not None
        state = read_state(paths)
        if state.supervisor is not None and state.supervisor.pid == process.pid:
            return
        if has_left or time.monotonic() > deadline:
            raise _not_started(paths, log_start, has_left=has_left)
        time.sleep(0.02)


def device_of(plan: Mapping[str, Any]) -> Device:
    """A plan for CPU processes has no compute capability."""
    return "cuda" if (plan.get("environment") or {}).get("compute_capability") else "cpu"


def _state_when_left(paths: RunDirectory) -> RunState:
    """The observed state, once a supervisor that has said its last word is gone."""
    deadline = time.monotonic() + _LEAVE_SECONDS
    state = observed_state(paths)
    while (
        state.status in ("done", "stopped", "failed") and state.supervisor is not None
        and is_alive(state.supervisor) and time.monotonic() < deadline
    ):  # fmt: skip
        time.sleep(0.05)
    return state


def _not_started(paths: RunDirectory, log_start: int, *, has_left: bool) -> LaunchError:
    with paths.supervisor_log.open("rb") as log:
        log.seek(log_start)
        said = log.read(4096).decode("utf-8", errors="replace").strip()
    what = "ended before it began" if has_left else f"gave no sign of life in {_START_SECONDS:.0f} s"
    return LaunchError(
        f"The supervisor of {paths.id} {what}.", why=said or "It said nothing.", fix=f"See {paths.supervisor_log}."
    )
