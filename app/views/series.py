"""Growing series of a run in bounded memory: loss raw, smoothed and evaluated. Fed with rows of metrics.jsonl.

A run of a million steps is kept as at most ``capacity`` points: when full, neighbours are merged and each point then
stands for twice as many rows. The extremes of a merged point are kept, so that a spike never disappears.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

EMA_WEIGHT = 0.9  # of the past, bias-corrected; what TensorBoard and W&B users know as smoothing


@dataclass(frozen=True, slots=True)
class Point:
    """Mean, lowest and highest value of the rows from ``step`` on."""

    step: int
    mean: float
    low: float
    high: float


@dataclass(slots=True)
class DecimatedSeries:
    capacity: int = 2048
    stride: int = 1  # rows a point stands for
    points: list[Point] = field(default_factory=list)
    _pending: list[tuple[int, float]] = field(default_factory=list)

    def append(self, step: int, value: float) -> None:
        self._pending.append((step, value))
        if len(self._pending) < self.stride:
            return
        values = [value for _, value in self._pending]
        self.points.append(Point(self._pending[0][0], sum(values) / len(values), min(values), max(values)))
        self._pending.clear()
        if len(self.points) >= self.capacity:
            self.points = [_merge(a, b) for a, b in zip(self.points[::2], self.points[1::2], strict=True)]
            self.stride *= 2

    def visible(self) -> list[Point]:
        """All points, the unfinished last one included: the newest row is always shown."""
        if not self._pending:
            return list(self.points)
        values = [value for _, value in self._pending]
        return [*self.points, Point(self._pending[0][0], sum(values) / len(values), min(values), max(values))]


def _merge(a: Point, b: Point) -> Point:
    return Point(a.step, (a.mean + b.mean) / 2, min(a.low, b.low), max(a.high, b.high))


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

    def _add(self, row: Mapping[str, Any]) -> None:
        step = int(row.get("step") or 0)
        if "eval_loss" in row:
            value = _number(row["eval_loss"])
            if value is None:
                self.num_nonfinite += 1
            else:
                self.evaluation.append(step, value)
                self.last_evaluation = value
                if self.first_evaluation is None:
                    self.first_evaluation = value
        if "loss" in row:
            self.last = row
            self.tokens_seen += int(row.get("tokens") or 0)
            value = _number(row["loss"])
            if value is None:
                self.num_nonfinite += 1
                return
            self._ema = EMA_WEIGHT * self._ema + (1 - EMA_WEIGHT) * value
            self._ema_steps += 1
            self.raw.append(step, value)
            self.smooth.append(step, self._ema / (1 - EMA_WEIGHT**self._ema_steps))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
