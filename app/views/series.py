"""Growing series of a run in bounded memory: loss raw, smoothed and evaluated. Fed with rows of metrics.jsonl.

A run of a million steps is kept as at most ``capacity`` points: when full, neighbours are merged and each point then
stands for twice as many rows. The extremes of a merged point are kept, so that a spike never disappears.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

_RECENT_ROWS = 20  # that the time of a step is told from
EMA_WEIGHT = 0.9  # of the past, bias-corrected; what TensorBoard and W&B users know as smoothing
Axis = Literal["step", "tokens", "seconds"]
AXES: tuple[Axis, ...] = ("step", "tokens", "seconds")


@dataclass(frozen=True, slots=True)
class Point:
    """Mean, lowest and highest value of the rows from ``step`` on, with ``tokens`` and ``seconds`` trained by then."""

    step: int
    mean: float
    low: float
    high: float
    tokens: int = 0
    seconds: float = 0.0

    def at(self, axis: Axis) -> float:
        return self.step if axis == "step" else self.tokens if axis == "tokens" else self.seconds


@dataclass(slots=True)
class DecimatedSeries:
    capacity: int = 2048
    stride: int = 1  # rows a point stands for
    points: list[Point] = field(default_factory=list)
    _pending: list[tuple[float, int, int, float]] = field(default_factory=list)  # value, step, tokens, seconds

    def append(self, step: int, value: float, *, tokens: int = 0, seconds: float = 0.0) -> None:
        self._pending.append((value, step, tokens, seconds))
        if len(self._pending) < self.stride:
            return
        self.points.append(_point(self._pending))
        self._pending.clear()
        if len(self.points) >= self.capacity:
            self.points = [_merge(a, b) for a, b in zip(self.points[::2], self.points[1::2], strict=True)]
            self.stride *= 2

    def visible(self) -> list[Point]:
        """All points, the unfinished last one included: the newest row is always shown."""
        return [*self.points, _point(self._pending)] if self._pending else list(self.points)


def _point(rows: list[tuple[float, int, int, float]]) -> Point:
    values = [row[0] for row in rows]
    _, step, tokens, seconds = rows[0]
    return Point(step, sum(values) / len(values), min(values), max(values), tokens, seconds)


def _merge(a: Point, b: Point) -> Point:
    return Point(a.step, (a.mean + b.mean) / 2, min(a.low, b.low), max(a.high, b.high), a.tokens, a.seconds)


@dataclass(slots=True)
class LossHistory:
    """What the loss plot shows. Values that are not finite are counted and left out of the curves.

    When metrics.jsonl is replaced (a resumed run sets rows aside) a reader begins with a new history.
    """

    raw: DecimatedSeries = field(default_factory=DecimatedSeries)
    smooth: DecimatedSeries = field(default_factory=DecimatedSeries)
    evaluation: DecimatedSeries = field(default_factory=DecimatedSeries)
    num_nonfinite: int = 0
    last: Mapping[str, Any] = field(default_factory=dict)  # the newest training row
    last_evaluation: float | None = None
    first_evaluation: float | None = None
    num_rows: int = 0
    tokens_seen: int = 0
    seconds: float = 0.0  # of training, without evaluations and pauses
    _recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_RECENT_ROWS))  # steps, seconds
    _previous_step: int = 0
    _ema: float = 0.0
    _ema_steps: int = 0

    def extend(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Take in rows of metrics.jsonl; returns how many there were."""
        count = 0
        for row in rows:
            count += 1
            self._add(row)
        self.num_rows += count
        return count

    @property
    def seconds_per_step(self) -> float | None:
        """Of the newest rows; a row stands for all steps since the one before."""
        steps, seconds = sum(steps for steps, _ in self._recent), sum(seconds for _, seconds in self._recent)
        return seconds / steps if steps > 0 and seconds > 0 else None

    def skip_to(self, step: int, *, logging_steps: int) -> None:
        """Rows up to ``step`` were not read (a sample of a long run): they count as rows like the newest."""
        self._previous_step = step - logging_steps
        num_rows = (step - int(self.last.get("step") or 0)) // max(1, logging_steps) - 1
        if self.last and num_rows > 0:
            self.num_rows += num_rows
            self.tokens_seen += num_rows * int(self.last.get("tokens") or 0)
            self.seconds += num_rows * float(self.last.get("seconds") or 0.0)

    def _add(self, row: Mapping[str, Any]) -> None:
        step = int(row.get("step") or 0)
        if "eval_loss" in row:
            value = _number(row["eval_loss"])
            if value is None:
                self.num_nonfinite += 1
            else:
                self.evaluation.append(step, value, tokens=self.tokens_seen, seconds=self.seconds)
                self.last_evaluation = value
                if self.first_evaluation is None:
                    self.first_evaluation = value
        if "loss" in row:
            self.last = row
            self.tokens_seen += int(row.get("tokens") or 0)
            seconds = float(row.get("seconds") or 0.0)
            self.seconds += seconds
            self._recent.append((step - self._previous_step, seconds))
            self._previous_step = step
            value = _number(row["loss"])
            if value is None:
                self.num_nonfinite += 1
                return
            self._ema = EMA_WEIGHT * self._ema + (1 - EMA_WEIGHT) * value
            self._ema_steps += 1
            smooth = self._ema / (1 - EMA_WEIGHT**self._ema_steps)
            self.raw.append(step, value, tokens=self.tokens_seen, seconds=self.seconds)
            self.smooth.append(step, smooth, tokens=self.tokens_seen, seconds=self.seconds)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
