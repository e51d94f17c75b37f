"""A line chart as inline SVG: solid, dashed and marked series with words, ticks at round numbers. Used by run_html.py.

Drawn by the server from bounded series, so that it looks the same on every browser, from the first point on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

_WIDTH = 720
_HEIGHT = 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 26, 34
_MAX_POINTS = 600  # of a series: more than one a pixel shows nothing new

SeriesLook = Literal["faint", "bold", "marks", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """``look``: faint thin line, bold line, diamonds without a line, or a plain line (dashed by ``index``)."""

    name: str
    points: Sequence[tuple[float, float]]  # ascending in x, finite
    look: SeriesLook = "plain"
    index: int = 0  # tells plain lines apart: colour and dashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A horizontal line with a name: a plan, a limit."""

    name: str
    y: float


def line_chart_svg(
    series: Sequence[Series], *, x_label: str, y_label: str, levels: Sequence[Level] = (), log_y: bool = False,
    from_zero: bool = False,
) -> str:  # fmt: skip
    """The chart; an empty string when there is no point at all. ``log_y`` leaves out values that are not positive."""
    shown = [_thinned(s, log_y) for s in series]
    shown = [s for s in shown if s.points]
    if not shown:
        return ""
    xs = [x for s in shown for x, _ in s.points]
    ys = [y for s in shown for _, y in s.points] + [level.y for level in levels]
    lowest = 0.0 if from_zero else min(ys)
    axes = _Axes(x=_span(min(xs), max(xs)), y=_y_span(lowest, max(ys), log_y), log_y=log_y)
    body = _grid(axes, x_label, y_label) + "".join(_level(axes, level) for level in levels)
    body += "".join(_line(axes, s) for s in shown)
    summary = f"{y_label} by {x_label}: " + "; ".join(f"{s.name}, last {_number(s.points[-1][1])}" for s in shown)
    return (
        f'<svg class="chart" role="img" aria-label="{escape(summary)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(summary)}</title>{body}{_legend(shown)}</svg>'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    x: tuple[float, float]
    y: tuple[float, float]
    log_y: bool

    def at(self, x: float, y: float) -> tuple[float, float]:
        return self.column(x), self.row(y)

    def column(self, x: float) -> float:
        low, high = self.x
        return _LEFT + (x - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def row(self, y: float) -> float:
        low, high, value = (*self.y, y)
        if self.log_y:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)


def _thinned(series: Series, log_y: bool) -> Series:
    """At most _MAX_POINTS, the last one kept."""
    points = [point for point in series.points if not log_y or point[1] > 0]
    stride = -(-len(points) // _MAX_POINTS) if points else 1
    kept = points[:-1][::stride] + points[-1:]
    return Series(name=series.name, points=kept, look=series.look, index=series.index)


def _span(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 1, high + 1)


def _y_span(low: float, high: float, log_y: bool) -> tuple[float, float]:
    """A little air above and below, without crossing zero."""
    if log_y:
        return (low / 1.1, high * 1.1)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return (max(0.0, low - margin) if low >= 0 else low - margin, high + margin)


def _grid(axes: _Axes, x_label: str, y_label: str) -> str:
    lines = []
    for y in _log_ticks(*axes.y) if axes.log_y else _ticks(*axes.y, count=5):
        row = axes.row(y)
        lines.append(f'<path d="M{_LEFT} {row:.1f}H{_WIDTH - _RIGHT}" class="grid"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{row + 4:.1f}" text-anchor="end">{_number(y)}</text>')
    for x in _ticks(*axes.x, count=8, least=1.0):  # steps are whole
        lines.append(
            f'<text x="{axes.column(x):.1f}" y="{_HEIGHT - _BOTTOM + 15}" text-anchor="middle">{_number(x)}</text>'
        )
    lines.append(f'<path d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}" class="axis"/>')
    lines.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">{escape(x_label)}</text>')
    lines.append(f'<text x="4" y="12" class="axis-name">{escape(y_label)}</text>')
    return "".join(lines)


def _line(axes: _Axes, series: Series) -> str:
    places = [axes.at(x, y) for x, y in series.points]
    marks = ""
    if series.look == "marks":
        marks = "".join(
            f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"><title>{escape(series.name)} {_number(value)} at '
            f"{_number(step)}</title></path>"
            for (x, y), (step, value) in zip(places, series.points)
        )
        return f'<g class="{_classes(series)}">{marks}</g>'
    if len(places) == 1:
        x, y = places[0]
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="{_classes(series)} single"/>'
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return f'<path d="{path}" class="{_classes(series)}"/>'


def _classes(series: Series) -> str:
    return f"series {series.look} series-{series.index % 4}"


def _level(axes: _Axes, level: Level) -> str:
    row = axes.row(level.y)
    return (
        f'<path d="M{_LEFT} {row:.1f}H{_WIDTH - _RIGHT}" class="level"/>'
        f'<text x="{_WIDTH - _RIGHT - 4}" y="{row - 5:.1f}" class="level-name">{escape(level.name)}</text>'
    )


def _legend(series: Sequence[Series]) -> str:
    parts, x = [], float(_LEFT) + 90
    for entry in series:
        if entry.look == "marks":
            sign = f'<path d="M{x + 9:.0f} 4l5 5l-5 5l-5 -5z" class="{_classes(entry)}"/>'
        else:
            sign = f'<path d="M{x:.0f} 9h18" class="{_classes(entry)}"/>'
        parts.append(f'{sign}<text x="{x + 24:.0f}" y="13">{escape(entry.name)}</text>')
        x += 44 + 7.4 * len(entry.name)
    return "".join(parts)


def _ticks(low: float, high: float, *, count: int, least: float = 0.0) -> list[float]:
    """About ``count`` round numbers (1, 2 or 5 times a power of ten), at least ``least`` apart, between two values."""
    raw = max(least, (high - low) / count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten with their 2s and 5s; linear ticks when the range is too narrow for two of them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [factor * 10.0**power for power in powers for factor in (1, 2, 5) if low <= factor * 10.0**power <= high]
    return found if len(found) > 1 else _ticks(low, high, count=4)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
