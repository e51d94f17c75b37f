"""A run as words and rows: state, progress, rates, memory against the plan, events, failure. Pure functions over
RunState, the planned peaks (plan.json), rows of metrics.jsonl and memory.jsonl, and events; called by every face."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.views.format import (
    format_bytes,
    format_clock,
    format_count,
    format_deviation,
    format_duration,
    format_learning_rate,
    format_loss,
    format_tokens_per_second,
)
from app.views.series import LossHistory
from planner.types import FINAL_STATUSES, RunEvent, RunState

QUIET_SECONDS = 120.0  # without any sign of life a person is told so
DRIFT_FRACTION = 0.25  # above plan by more than this: something that was planned is probably not active

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """One rank. ``peak_bytes`` and ``planned_peak_bytes`` are above the process's baseline, so they compare."""

    rank: int
    allocated_bytes: int
    used_bytes: int
    peak_bytes: int
    planned_peak_bytes: int
    planned_used_bytes: int
    usable_bytes: int
    deviation: str
    remark: str  # "" while all is as planned
    instant: str


_STATUS_ROLES = {
    "created": "primary", "starting": "primary", "running": "success", "stopping": "warning",
    "done": "success", "stopped": "warning", "failed": "error", "lost": "error",
}  # fmt: skip


def status_view(state: RunState, *, now: float | None = None) -> StatusView:
    """The state in a word and a sentence. With ``now`` (unix seconds) silence is reported too."""
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
            detail = f"at step {state.step:,}" + (", resumable" if state.last_checkpoint else "")
        case "done":
            detail = f"{state.total_steps:,} steps"
        case _:
            detail = "waiting for its supervisor"
    if state.attempt > 1:
        detail += f" (attempt {state.attempt})"
    is_final = state.status in FINAL_STATUSES
    if now is not None and not is_final and state.updated_at and now - state.updated_at > QUIET_SECONDS:
        detail += f"; no sign of life for {format_duration(now - state.updated_at)}"
    return StatusView(
        word=state.status.upper(), detail=detail, color_role=_STATUS_ROLES[state.status], is_final=is_final
    )


def progress_view(state: RunState, history: LossHistory) -> Progress:
    """Steps and what is left, from the seconds per step of the newest metric row."""
    step = max(state.step, int(history.last.get("step") or 0))
    total = state.total_steps
    seconds = history.last.get("seconds")
    seconds_per_step = float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None
    return Progress(
        step=step,
        total_steps=total,
        fraction=min(1.0, step / total) if total else 0.0,
        seconds_per_step=seconds_per_step,
        eta_seconds=(total - step) * seconds_per_step if seconds_per_step is not None and total >= step else None,
    )


def rate_rows(history: LossHistory, plan: Mapping[str, Any] | None = None) -> tuple[tuple[str, str], ...]:
    """(name, value) of the newest row: loss, evaluation, learning rate, gradient norm, speed."""
    last = history.last
    speed = last.get("tokens_per_second")
    speed_words = format_tokens_per_second(float(speed)) if isinstance(speed, int | float) else "n/a"
    planned = float((plan or {}).get("tokens_per_second") or 0)
    if planned > 0 and isinstance(speed, int | float):
        speed_words += f" ({100 * speed / planned:.0f} % of plan)"
    norm = last.get("grad_norm")
    return (
        ("loss", format_loss(_finite_or_none(last.get("loss")))),
        ("eval", format_loss(history.last_evaluation)),
        ("lr", format_learning_rate(last.get("learning_rate"))),
        ("grad norm", f"{norm:.3f}" if isinstance(norm, int | float) else "n/a"),
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


def memory_rows(rows: Mapping[int, Mapping[str, Any]], plan: Mapping[str, Any] | None) -> tuple[MemoryRow, ...]:
    """One row a rank: the newest line of memory.jsonl of each, with the highest peak, against plan.json.

    ``rows``: rank -> row. Ranks of the plan that have not reported yet are shown with zeros.
    """
    planned = dict(enumerate((plan or {}).get("gpus", ())))
    return tuple(_memory_row(rank, rows.get(rank, {}), planned.get(rank, {})) for rank in sorted({*rows, *planned}))


def _memory_row(rank: int, row: Mapping[str, Any], planned: Mapping[str, Any]) -> MemoryRow:
    baseline = int(row.get("baseline_bytes") or 0)
    peak = max(0, int(row.get("peak_bytes") or 0) - baseline)
    planned_peak = int(planned.get("peak", {}).get("allocated_bytes") or 0)
    return MemoryRow(
        rank=rank,
        allocated_bytes=max(0, int(row.get("allocated_bytes") or 0)),
        used_bytes=int(row.get("used_bytes") or 0),
        peak_bytes=peak,
        planned_peak_bytes=planned_peak,
        planned_used_bytes=int(planned.get("peak", {}).get("used_bytes") or 0),
        usable_bytes=int(planned.get("usable_bytes") or 0),
        deviation=format_deviation(peak, planned_peak) if peak else "n/a",
        remark=_memory_remark(peak, planned_peak),
        instant=str(row.get("instant") or ""),
    )


def _memory_remark(peak: int, planned: int) -> str:
    if planned and peak > (1 + DRIFT_FRACTION) * planned:
        return f"{format_bytes(peak - planned)} above plan: is every planned optimization active?"
    return ""


@dataclass(slots=True)
class MemoryHistory:
    """The newest row and the highest peak of each rank, fed with rows of memory.jsonl."""

    latest: dict[int, dict[str, Any]]

    def extend(self, rows: Iterable[Mapping[str, Any]]) -> int:
        count = 0
        for row in rows:
            count += 1
            rank = int(row.get("rank") or 0)
            peak = max(int(row.get("peak_bytes") or 0), int(self.latest.get(rank, {}).get("peak_bytes") or 0))
            self.latest[rank] = {**row, "peak_bytes": peak}
        return count


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
            return f"supervisor started, pid {data.get('pid')}"
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
        case "worker_exit":
            how = f"signal {data['signal']}" if data.get("signal") else f"exit code {data.get('code')}"
            return f"rank {data.get('rank')} ended, {how}"
        case "resumed":
            exact = data.get("exact")
            return f"resumed at step {data.get('step')}" + ("" if exact is not False else " (not bit-exact)")
        case "finished":
            return f"finished: {data.get('status')}" + (f" ({data['kind']})" if data.get("kind") else "")
    return f"{event.type} {dict(data)}" if data else event.type


def failure_text(state: RunState, postmortem: Mapping[str, Any] | None = None, *, width: int = 78) -> str:
    """The post-mortem in words: what failed, the message, what was known, what to do. Empty while nothing failed."""
    if state.status not in ("failed", "lost"):
        return ""
    view = status_view(state)
    lines = [f"{view.word}: {view.detail}, step {state.step:,} of {state.total_steps:,}"]
    if state.failure_message:
        lines += ["", *_wrapped(state.failure_message, width)]
    for key, value in (postmortem or {}).items():
        if key in ("kind", "message", "schema") or value in (None, "", [], {}):
            continue
        label = key.replace("_", " ")
        if isinstance(value, list | tuple):
            lines += ["", f"{label}:"]
            lines += [line for item in value for line in _wrapped(str(item), width)]
        elif isinstance(value, Mapping):
            lines += ["", f"{label}:"]
            lines += [f"  {name}: {item}" for name, item in value.items()]
        else:
            lines += _wrapped(f"{label}: {value}", width)
    if state.last_checkpoint:
        lines += ["", f"Resume continues from {state.last_checkpoint}."]
    return "\n".join(lines)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines kept as they are, long ones folded; a traceback stays readable."""
    return [piece for line in text.splitlines() or [""] for piece in (textwrap.wrap(line, width) or [""])]
