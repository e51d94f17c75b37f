"""A run as words and rows: state, progress, rates, events, failure. Pure functions over
RunState, rows of metrics.jsonl, events and postmortem.json; memory is in memory_view.py. Called by every face."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.views.format import (
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_learning_rate,
    format_loss,
    format_share,
    format_signed_bytes,
    format_tokens_per_second,
)
from app.views.series import LossHistory
from planner.types import FINAL_STATUSES, RunEvent, RunState

QUIET_SECONDS = 120.0  # without any sign of life a person is told so

PHASE_LABELS = {
    "data": "preparing data",
    "workers": "starting workers",
    "load": "loading the model",
    "evaluate": "evaluating",
    "train": "training",
    "save": "saving",
}
_FAILURE_WORDS = {
    "oom": "out of memory",
    "data": "the data",
    "nonfinite": "a loss that is not a number",
    "worker": "a worker process died",
    "launcher": "the launcher died",
    "environment": "the environment",
    "error": "an error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    word: str  # RUNNING
    detail: str  # training; step 412 of 2,000
    color_role: str
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    step: int
    total_steps: int
    fraction: float
    seconds_per_step: float | None
    eta_seconds: float | None

    @property
    def words(self) -> str:
        if not self.total_steps:
            return "not started"
        words = f"step {self.step:,} of {self.total_steps:,}"
        if self.eta_seconds is not None and self.step < self.total_steps:
            words += f", {format_duration(self.eta_seconds)} left"
        if self.seconds_per_step is not None:
            words += f", {format_duration(self.seconds_per_step)} a step"
        return words


_STATUS_ROLES = {
    "created": "primary", "starting": "primary", "running": "success", "stopping": "warning",
    "done": "success", "stopped": "warning", "failed": "error", "lost": "error",
}  # fmt: skip


def status_view(
    state: RunState, *, now: float | None = None, last_output: float = 0.0, seconds_per_step: float | None = None
) -> StatusView:
    """The state in a word and a sentence. With ``now`` (unix seconds) silence is reported too.

    ``last_output``: when the log last grew. A step may take long: only the time of three counts as silence.
    """
    words = PHASE_LABELS.get(state.phase, state.phase)
    match state.status:
        case "running":
            detail = words or "training"
        case "starting" | "stopping":
            detail = words
        case "failed":
            detail = f"{_FAILURE_WORDS.get(state.failure_kind, state.failure_kind or 'an error')}"
        case "lost":
            detail = "its processes are gone and left no final state; resume continues from the last checkpoint"
        case "stopped":
            detail = f"at step {state.step:,}{_resumable_words(state)}"
        case "done":
            detail = f"{state.total_steps:,} steps"
        case _:
            detail = "waiting for its supervisor"
    if state.attempt > 1:
        detail += f" (attempt {state.attempt})"
    is_final = state.status in FINAL_STATUSES
    silence = 0.0 if now is None or not state.updated_at else now - max(state.updated_at, last_output)
    if not is_final and silence > max(QUIET_SECONDS, 3 * (seconds_per_step or 0.0)):
        detail += f"; no sign of life for {format_duration(silence)}"
    return StatusView(
        word=state.status.upper(), detail=detail, color_role=_STATUS_ROLES[state.status], is_final=is_final
    )


def progress_view(state: RunState, history: LossHistory) -> Progress:
    """Steps and what is left, from the seconds per step of the newest metric rows."""
    step = max(state.step, int(history.last.get("step") or 0))
    total = state.total_steps
    seconds_per_step = history.seconds_per_step
    return Progress(
        step=step,
        total_steps=total,
        fraction=min(1.0, step / total) if total else 0.0,
        seconds_per_step=seconds_per_step,
        eta_seconds=(
            (total - step) * seconds_per_step
            if seconds_per_step is not None and total >= step and state.status not in FINAL_STATUSES
            else None
        ),
    )


def rate_rows(history: LossHistory, plan: Mapping[str, Any] | None = None) -> tuple[tuple[str, str], ...]:
    """(name, value) of the newest row: loss, evaluation, learning rate, norm of the gradient, speed."""
    last = history.last
    speed = last.get("tokens_per_second")
    speed_words = format_tokens_per_second(float(speed)) if isinstance(speed, int | float) else "n/a"
    planned = float((plan or {}).get("tokens_per_second") or 0)
    if planned > 0 and isinstance(speed, int | float):
        speed_words += f", {format_share(speed / planned)} of plan"
    norm = last.get("grad_norm")
    return (
        ("loss", format_loss(_finite_or_none(last.get("loss")))),
        ("eval", format_loss(history.last_evaluation)),
        ("lr", format_learning_rate(last.get("learning_rate"))),
        ("norm", f"{norm:.3f}" if isinstance(norm, int | float) else "n/a"),
        ("speed", speed_words),
    )


def _finite_or_none(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def loss_note(history: LossHistory, *, logging_steps: int = 1) -> str:
    """What to say beside, or instead of, the curve."""
    if not history.last:
        return f"waiting for the first row (logging_steps = {logging_steps})"
    if history.num_nonfinite:
        return f"{history.num_nonfinite} value{'s' if history.num_nonfinite > 1 else ''} not finite, left out"
    return ""


def event_lines(events: Sequence[RunEvent], *, limit: int | None = None) -> tuple[str, ...]:
    """``13:42:10 loading the model``, oldest first; steps are left out, the progress bar shows them."""
    lines = [f"{format_clock(event.time)} {words}" for event in events if (words := event_words(event)) is not None]
    return tuple(lines if limit is None else lines[-limit:])


def event_words(event: RunEvent) -> str | None:
    """One event as a short sentence, None when it is not worth a line."""
    data = event.data
    match event.type:
        case "progress":
            return None
        case "created":
            return "run created"
        case "phase":
            name = str(data.get("name", ""))
            return PHASE_LABELS.get(name, name)
        case "supervisor":
            attempt = int(data.get("attempt") or 1)
            return f"supervisor started, pid {data.get('pid')}" + (f", attempt {attempt}" if attempt > 1 else "")
        case "worker":
            return f"rank {data.get('rank')} started, pid {data.get('pid')}"
        case "running":
            return f"training, {format_count(data.get('total_steps') or 0)} steps, world {data.get('world')}"
        case "fallback":
            return f"fallback: {data.get('optimization')}: {data.get('reason')}"
        case "evidence":
            return f"active: {data.get('optimization')}: {data.get('claim')}"
        case "evaluation":
            return f"evaluation at step {data.get('step')}: loss {format_loss(_finite_or_none(data.get('loss')))}"
        case "checkpoint":
            return f"checkpoint saved at step {data.get('step')}"
        case "memory_peak":
            return f"rank {data.get('rank')}: peak {format_bytes(data.get('allocated_bytes') or 0)}"
        case "stop_requested":
            return f"stop requested ({data.get('mode')})"
        case "acknowledged":
            return f"{data.get('command')}: understood"
        case "warning":
            return "warning: " + str(data.get("message") or data.get("what") or dict(data))
        case "failure":
            return f"rank {data.get('rank')}: {data.get('kind')}: {data.get('message')}"
        case "worker_exit":
            return f"rank {data.get('rank')} {_exit_words(data)}"
        case "resumed":
            exact = data.get("exact") is not False
            reason = f": {data['reason']}" if data.get("reason") and not exact else ""
            return f"resumed after step {data.get('step')}" + ("" if exact else f", not bit-exact{reason}")
        case "superseded":
            return f"{data.get('num_rows')} rows after step {data.get('after_step')} set aside"
        case "released":
            return "device memory released: " + ", ".join(_released_words(gpu) for gpu in data.get("gpus") or ())
        case "finished":
            return f"finished: {data.get('status')}" + (f" ({data['kind']})" if data.get("kind") else "")
    return f"{event.type} {dict(data)}" if data else event.type


def _process_words(data: Mapping[str, Any]) -> str:
    return "launcher" if data.get("rank") is None else f"rank {data['rank']}"  # torchrun itself has no rank


def _resumable_words(state: RunState) -> str:
    if not state.last_checkpoint:
        return ""
    saved = state.last_checkpoint.rpartition("step-")[2]
    return ", resumable" if saved == str(state.step) else f", resumable from step {saved}"


def _exit_words(data: Mapping[str, Any]) -> str:
    if data.get("signal"):
        return f"was ended by {data['signal']}"
    return "ended without a word" if data.get("code") is None else f"ended with exit code {data['code']}"


def _released_words(gpu: Mapping[str, Any]) -> str:
    before, after = gpu.get("before_bytes"), gpu.get("after_bytes")
    if before is None or after is None:
        return f"GPU {gpu.get('index')} n/a"
    return f"GPU {gpu.get('index')} {format_bytes(before)} -> {format_bytes(after)}"


def failure_text(state: RunState, postmortem: Mapping[str, Any] | None = None, *, width: int = 78) -> str:
    """The post-mortem in words: what failed and when, memory against the plan, exits, traceback or log, what to do.

    ``postmortem`` is postmortem.json (core/run/postmortem.py). Empty while nothing failed.
    """
    if state.status not in ("failed", "lost"):
        return ""
    view = status_view(state)
    known = postmortem or {}
    rank = f", rank {known['rank']}" if known.get("rank") is not None else ""
    step = f"step {state.step:,} of {state.total_steps:,}" if state.total_steps else "before the first step"
    lines = [f"{view.word}: {view.detail}{rank}, {step}"]
    if state.failure_message:
        lines += ["", *_wrapped(state.failure_message, width)]
    peaks = [_peak_words(peak) for peak in known.get("peaks") or ()]
    if peaks:
        lines += ["", "memory at its highest", *peaks]
    lines += _out_of_memory_lines(known.get("out_of_memory") or {})
    exits = [f"  {_process_words(e)}, pid {e.get('pid')}: {_exit_words(e)}" for e in known.get("exits") or ()]
    if exits:
        lines += ["", "processes", *exits]
    if state.last_checkpoint:
        lines += ["", f"Resume continues from {state.last_checkpoint}."]
    trace = known.get("traceback") or "\n".join(known.get("log_tail") or ())
    if trace:
        lines += ["", "traceback" if known.get("traceback") else "end of the log", *_wrapped(trace, width)]
    return "\n".join(lines)


def checkpoint_text(found: Sequence[tuple[str, int, str]]) -> str:
    """(name, bytes, problem) of every folder, newest first, as words: which one resume takes, and why not others."""
    if not found:
        return "There is no checkpoint yet: a resumed run would begin at step 0."
    lines, taken = [], False
    for name, size, problem in found:
        is_taken = not problem and not taken
        taken = taken or is_taken
        words = problem or ("sound; resume continues from it" if is_taken else "sound")
        lines.append(f"{name:<12} {format_bytes(size):>9}  {words}")
    return "\n".join(lines if taken else [*lines, "", "None of them is sound: a resumed run would begin at step 0."])


def _out_of_memory_lines(known: Mapping[str, Any]) -> list[str]:
    """What was largest where it happened, and what the planner says fits."""
    lines: list[str] = []
    parts = [f"{entry['part']} {format_bytes(entry['bytes'])}" for entry in known.get("parts") or ()]
    if parts:
        lines += ["", f"planned in the {known.get('instant')}", f"  {', '.join(parts[:4])}"]
    changes = [
        f"  train again with {shlex.join(set_arguments(entry['changes']))}" for entry in known.get("changes") or ()
    ]
    if changes:
        usable = known.get("usable_bytes")
        room = f" into {format_bytes(usable)}" if usable else ""
        lines += ["", f"the planner says that this fits{room}", *changes]
    return lines


def set_arguments(changes: Mapping[str, Any]) -> list[str]:
    """What `longfit train` is given to lay ``changes`` over a preset."""
    return [argument for key, value in changes.items() for argument in ("--set", f"{key}={_yaml_value(value)}")]


def _yaml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml_value(inner)}" for key, inner in value.items()) + "}"
    return str(value)


def _peak_words(peak: Mapping[str, Any]) -> str:
    measured, planned, over = peak.get("measured_bytes"), peak.get("planned_bytes"), peak.get("over_bytes")
    words = f"  rank {peak.get('rank')}: {format_bytes(measured or 0)}"
    if planned is not None:
        words += f", planned {format_bytes(planned)}"
    if over is not None:
        words += f" ({format_signed_bytes(over)})"
    return words + (f", during {peak['instant']}" if peak.get("instant") else "")


def _wrapped(text: str, width: int) -> list[str]:
    """Lines kept as they are, long ones folded; a traceback stays readable."""
    return [
        piece
        for line in text.splitlines() or [""]
        for piece in (textwrap.wrap(line, width, drop_whitespace=False, replace_whitespace=False) or [""])
    ]
