"""Start a run, or a further attempt of one: plan, data, directory, detached supervisor. Used by every face."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from app.services.locations import default_runs_dir
from app.services.planning import Planned, cluster_for_launch, plan_preset, refuse_errors, refuse_planned_only
from app.services.prepare_data import Progress, prepare_data
from app.services.presets import load_preset, preset_text
from app.services.runs import is_attended, observed_state
from app.views.format import format_bytes
from app.views.run_view import set_arguments
from core.run.command import DEFAULT_TARGET, Device, WorkerCommand, worker_command
from core.run.directory import RunDirectory, create_run
from core.run.environment import describe_environment
from core.run.interpreter import child_environment, python_argv
from core.run.journal import read_state
from core.run.process import is_alive
from planner.errors import ConfigError, DoesNotFit, LaunchError, LongfitError
from planner.plan_json import plan_to_dict
from planner.price import ROOMY
from planner.types import FINAL_STATUSES, Plan, Preset, RunConfig, RunState

_START_SECONDS = 60.0  # an interpreter that imports no torch needs a fraction of a second
_LEAVE_SECONDS = 10.0  # a supervisor that has said `finished` is about to leave


def plan_for_launch(
    preset: str | Preset, overrides: Mapping[str, Any] | None = None, *, gpu: str | None = None
) -> Planned:
    """The plan of a preset on the hardware that a launch really gets; ``gpu`` as in cluster_for_launch.

    Raises: ConfigError when the preset is wrong or the planner finds an error in it.
    """
    loaded = load_preset(preset) if isinstance(preset, str) else preset
    planned = plan_preset(loaded, overrides, cluster=cluster_for_launch(loaded, gpu), alternatives=True)
    refuse_errors(planned.plan)
    refuse_planned_only(planned.plan)
    return planned


def refuse_what_does_not_fit(plan: Plan) -> None:
    """Raises: DoesNotFit with the bytes that are missing and the fastest change that would do."""
    if plan.verdict != "over":
        return
    worst = plan.worst_gpu
    fitting = next((found for found in plan.alternatives if found.verdict in ROOMY), None)
    device = "process" if plan.cluster.gpu.kind == "cpu" else "GPU"
    whose = f"The fullest of {len(plan.gpus)} {device}{'es' if device == 'process' else 's'}"
    why = f"{whose if len(plan.gpus) > 1 else f'The {device}'} needs {_of(worst.used_bytes, worst.usable_bytes)}."
    if plan.host_verdict == "over" and device == "GPU":  # a CPU process is host memory
        why += f" Host memory needs {_of(plan.host_bytes, plan.cluster.host_bytes_per_node)}."
    if plan.disk_verdict == "over":
        why += f" The checkpoints need {_of(plan.disk_bytes, plan.cluster.disk_free_bytes or 0)}."
    changes = shlex.join(set_arguments(dict(fitting.changes))) if fitting is not None else ""
    fix = f"It fits with {changes}." if changes else "Lower max_length, or use more or larger GPUs."
    if device == "process" and not changes:
        fix = (
            f"This machine has no GPU that can be used; `longfit plan {plan.config.name}` plans for the one it is for."
        )
    raise DoesNotFit(f"{plan.config.name} does not fit on this machine.", why=why, fix=fix)


def _of(needed_bytes: int, usable_bytes: int) -> str:
    return f"{format_bytes(needed_bytes)} of {format_bytes(usable_bytes)}"


def launch_preset(
    preset: str | Preset, overrides: Mapping[str, Any] | None = None, *, gpu: str | None = None,
    allow_over: bool = False, runs_root: Path | None = None, on_progress: Progress | None = None,
) -> RunDirectory:  # fmt: skip
    """Plan for this machine, prepare the data, start. Returns once the supervisor has reported in.

    Raises: as plan_for_launch, launch_planned, and DoesNotFit unless ``allow_over``.
    """
    planned = plan_for_launch(preset, overrides, gpu=gpu)
    if not allow_over:
        refuse_what_does_not_fit(planned.plan)
    return launch_planned(planned, runs_root=runs_root, on_progress=on_progress)


def launch_planned(
    planned: Planned, *, runs_root: Path | None = None, on_progress: Progress | None = None,
    on_data: Callable[[Mapping[str, Any]], None] | None = None,
) -> RunDirectory:  # fmt: skip
    """Prepare the data, tell ``on_data`` its report, and start what was planned. Raises: as prepare_data and launch."""
    config = planned.resolved.config
    prepared = prepare_data(config, on_progress=on_progress)
    if on_data is not None:
        on_data(prepared.report)
    return launch(
        config=config, plan=plan_to_dict(planned.plan),
        preset_text=preset_text(replace(planned.preset, values=planned.resolved.values)),
        data={"train": prepared.train_store, "eval": prepared.eval_store}, runs_root=runs_root,
    )  # fmt: skip


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
    obstacle = resume_obstacle(paths, _state_when_left(paths))
    if obstacle is not None:
        raise obstacle
    start_supervisor(paths, target=target)
    return paths


def resume_obstacle(paths: RunDirectory, state: RunState) -> LongfitError | None:
    """Why a run in this state cannot be resumed now, with what to do instead; None when it can."""
    if state.status == "done":
        return ConfigError(
            f"The run {paths.id} is done: all {state.total_steps} steps were taken.", why="There is nothing to resume.",
            fix="Train again with more epochs or steps: longfit train ... --set num_train_epochs=...",
        )  # fmt: skip
    # one that has said its last word counts only while its process is here
    is_watched = is_alive if state.status in FINAL_STATUSES else partial(is_attended, paths)
    if state.supervisor is not None and is_watched(state.supervisor):
        return ConfigError(
            f"The run {paths.id} is {state.status}: its supervisor is pid {state.supervisor.pid}.",
            why="A run has one supervisor at a time.",
            fix=f"`longfit attach {paths.id}` follows it, `longfit stop {paths.id}` ends it.",
        )
    left = [process for process in state.workers.values() if is_alive(process)]
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        return LaunchError(
            f"Processes of an earlier attempt of {paths.id} are still there: pid {pids}.",
            why="They would hold memory that the new attempt needs.",
            fix=f"`longfit stop {paths.id} --kill` ends them.",
        )  # fmt: skip
    return None


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
