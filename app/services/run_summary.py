"""What came of a run, from its files: losses, speed, memory against plan. Printed at the end of train and attach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from app.services.runs import RunSnapshot
from core.run.jsonl import JsonlTail


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    rank: int
    measured_bytes: int  # most bytes held by tensors, at any instant
    planned_bytes: int | None
    instant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Losses are None where no row has one."""

    id: str
    path: str
    status: str
    failure_kind: str
    failure_message: str
    attempt: int
    step: int
    total_steps: int
    first_loss: float | None
    last_loss: float | None
    first_eval_loss: float | None
    last_eval_loss: float | None
    tokens: int
    seconds: float
    tokens_per_second: float | None
    planned_tokens_per_second: float | None
    peaks: tuple[RankPeak, ...]
    last_checkpoint: str

    def to_dict(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}


def summarize(run: RunSnapshot, *, up_to_step: int | None = None) -> RunSummary:
    """``up_to_step``: losses, tokens and speed as they were when this step was done."""
    losses: list[float] = []
    evaluations: list[float] = []
    tokens, seconds = 0, 0.0
    for row in _rows(JsonlTail(run.paths.metrics)):
        if up_to_step is not None and int(row.get("step") or 0) > up_to_step:
            continue
        _keep_ends(losses, row.get("loss"))
        _keep_ends(evaluations, row.get("eval_loss"))
        tokens += int(row.get("tokens") or 0)
        seconds += float(row.get("seconds") or 0.0)
    state, planned_speed = run.state, run.plan.get("tokens_per_second")
    return RunSummary(
        id=run.id, path=str(run.paths.path), status=state.status, failure_kind=state.failure_kind,
        failure_message=state.failure_message, attempt=state.attempt, step=state.step, total_steps=state.total_steps,
        first_loss=losses[0] if losses else None, last_loss=losses[-1] if losses else None,
        first_eval_loss=evaluations[0] if evaluations else None,
        last_eval_loss=evaluations[-1] if evaluations else None,
        tokens=tokens, seconds=seconds, tokens_per_second=tokens / seconds if seconds > 0 else None,
        planned_tokens_per_second=float(planned_speed) if planned_speed else None,
        peaks=_peaks(run), last_checkpoint=state.last_checkpoint,
    )  # fmt: skip


def last_train_row(run: RunSnapshot, *, tail_bytes: int = 16 << 10) -> Mapping[str, Any]:
    """The newest row with a loss, from the end of metrics.jsonl; {} when there is none."""
    try:
        start = max(0, run.paths.metrics.stat().st_size - tail_bytes)
    except FileNotFoundError:
        return {}
    rows = [row for row in _rows(JsonlTail(run.paths.metrics, offset=start)) if row.get("loss") is not None]
    return rows[-1] if rows else {}


def _peaks(run: RunSnapshot) -> tuple[RankPeak, ...]:
    highest: dict[int, Mapping[str, Any]] = {}
    for row in _rows(JsonlTail(run.paths.memory)):
        if "rank" in row and int(row["allocated_bytes"]) >= int(highest.get(row["rank"], {}).get("allocated_bytes", 0)):
            highest[row["rank"]] = row
    gpus = run.plan.get("gpus") or []
    return tuple(
        RankPeak(
            rank=rank, measured_bytes=int(row["allocated_bytes"]), instant=str(row.get("instant") or ""),
            planned_bytes=int(gpus[rank]["peak"]["allocated_bytes"]) if rank < len(gpus) else None,
        )
        for rank, row in sorted(highest.items())
    )  # fmt: skip


def _rows(tail: JsonlTail) -> Iterator[Mapping[str, Any]]:
    while rows := tail.read():
        yield from rows


def _keep_ends(values: list[float], value: Any) -> None:
    if isinstance(value, int | float):
        values[1:] = [float(value)]
