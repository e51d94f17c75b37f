"""The state of a run as a pure fold of its events: replay = test. Called by the supervisor and by every reader.

events.jsonl has one event a line, {"time", "type", "data"}. Types and their data:

    created {}                              the directory is complete; nobody works on it yet
    supervisor {pid, start_ticks, boot_id, attempt}     a new attempt begins; attempt 2 and later are resumes
    worker {rank, pid, start_ticks, boot_id}            a rank is there
    phase {name}                            data | workers | load | evaluate | train | save
    running {total_steps, world}            the first step begins
    resumed {step, exact, reason}           continues after this step; exact=false says why not bit-exact
    superseded {after_step, num_rows}       metric rows of an earlier attempt beyond the resumed step were set aside
    progress {step}                         this many optimizer steps are done
    evaluation {step, loss, num_targets}    checkpoint {step, path}      memory_peak {rank, allocated_bytes, ...}
    evidence {optimization, claim, ...}     fallback {optimization, reason}          warning {message}
    skipped {step, loss_scale}              a float16 gradient overflowed: the step made no update, the scale is halved
    stop_requested {mode}                   save | now | kill          acknowledged {command}
    failure {kind, message, rank, step}     a rank says what it is dying of
    worker_exit {rank, pid, code, signal}   code is null when a signal ended it, both are null when nobody could see
    released {gpus}                         after a stop: device memory before and after, per GPU
    finished {status, kind, message}        done | stopped | failed; the last event of an attempt

Unknown types change nothing but the time, so that an old reader can follow a new run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from planner.types import ProcessId, RunEvent, RunState

FAILURE_KINDS = ("oom", "data", "nonfinite", "worker", "launcher", "environment", "error")


def fold(events: Iterable[RunEvent], initial: RunState | None = None) -> RunState:
    """The state after these events; ``initial`` is the state after those before them."""
    state = initial or RunState()
    for event in events:
        state = _after(state, event)
    return state


def _after(state: RunState, event: RunEvent) -> RunState:
    data = event.data
    state = replace(state, updated_at=event.time)
    match event.type:
        case "created":
            return replace(state, created_at=event.time)
        case "supervisor":
            return replace(
                RunState(created_at=state.created_at, updated_at=event.time, last_checkpoint=state.last_checkpoint),
                status="starting", phase="workers", supervisor=_process(data), attempt=int(data["attempt"]),
                step=_step_of(state.last_checkpoint), total_steps=state.total_steps, world=state.world,
            )  # fmt: skip
        case "worker":
            return replace(state, workers={**state.workers, int(data["rank"]): _process(data)})
        case "phase":
            return replace(state, phase=str(data["name"]))
        case "running":
            return replace(
                state, status="stopping" if state.status == "stopping" else "running", phase="train",
                total_steps=int(data["total_steps"]), world=int(data["world"]),
            )  # fmt: skip
        case "resumed" | "progress":
            return replace(state, step=int(data["step"]))
        case "checkpoint":
            return replace(state, last_checkpoint=str(data["path"]))
        case "fallback":
            text = f"{data['optimization']}: {data['reason']}"
            return state if text in state.fallbacks else replace(state, fallbacks=(*state.fallbacks, text))
        case "stop_requested":
            return replace(state, status="stopping")
        case "finished":
            return _finished(state, data)
    return state


def _step_of(checkpoint: str) -> int:
    """Where the next attempt goes on, until it says so itself: 20 of ``checkpoints/step-20``, 0 without one."""
    step = checkpoint.rpartition("step-")[2]
    return int(step) if step.isdecimal() else 0


def _finished(state: RunState, data: Mapping[str, Any]) -> RunState:
    match data["status"]:
        case "done":
            return replace(state, status="done", phase="")
        case "stopped":
            return replace(state, status="stopped", phase="")
        case _:
            return replace(
                state, status="failed", failure_kind=str(data.get("kind") or "error"),
                failure_message=str(data.get("message") or ""),
            )  # fmt: skip


def event_to_dict(event: RunEvent) -> dict[str, Any]:
    return {"time": event.time, "type": event.type, "data": dict(event.data)}


def event_from_dict(row: Mapping[str, Any]) -> RunEvent:
    """Raises: KeyError when the row is no event."""
    return RunEvent(time=float(row["time"]), type=str(row["type"]), data=row.get("data") or {})


def state_to_dict(state: RunState) -> dict[str, Any]:
    """For state.json; ranks become strings, as JSON wants."""
    values = asdict(state)
    values["workers"] = {str(rank): asdict(process) for rank, process in state.workers.items()}
    values["fallbacks"] = list(state.fallbacks)
    return values


def state_from_dict(values: Mapping[str, Any]) -> RunState:
    """Inverse of state_to_dict. Raises: TypeError or KeyError when it is of another version."""
    supervisor = values["supervisor"]
    return RunState(**{
        **values,
        "supervisor": None if supervisor is None else ProcessId(**supervisor),
        "workers": {int(rank): ProcessId(**process) for rank, process in values["workers"].items()},
        "fallbacks": tuple(values["fallbacks"]),
    })  # fmt: skip


def _process(data: Mapping[str, Any]) -> ProcessId:
    return ProcessId(pid=int(data["pid"]), start_ticks=int(data["start_ticks"]), boot_id=str(data["boot_id"]))
