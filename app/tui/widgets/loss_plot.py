"""The loss: every row faint, smoothed bold, evaluations as marks; linear or logarithmic; by step, tokens or time.

Own drawing on a braille canvas: no plotting package, no numpy, and it works at ten by three cells. Two runs can be laid
over each other: then each is its smoothed curve, the second one dotted.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.strip import Strip
from textual.widget import Widget

from app.tui.braille import Canvas
from app.views.format import format_duration, format_short_count
from app.views.series import AXES, Axis, LossHistory, Point

_AXIS_WIDTH = 7
_STYLES = {
    "raw": Style(color="#7A8691"),
    "smooth": Style(color="#56B4E9", bold=True),
    "second": Style(color="#CC79A7", bold=True),
    "evaluation": Style(color="#E69F00", bold=True),
}
_AXIS_WORDS: dict[Axis, str] = {"step": "", "tokens": ", by tokens", "seconds": ", by time of training"}


class LossPlot(Widget, can_focus=True):
    """``show`` draws one or two histories; ``note`` stands in place of a curve while there is none."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "log_scale", "log scale"),
        Binding("g", "next_axis", "x axis"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "Loss"
        self.is_log = False
        self.axis: Axis = "step"
        self._histories: tuple[LossHistory, ...] = (LossHistory(),)
        self._note = ""
        self._rows: list[Strip] = []

    def show(self, *histories: LossHistory, note: str = "") -> None:
        self._histories, self._note = histories, note
        self._redraw()

    def action_log_scale(self) -> None:
        self.is_log = not self.is_log
        self._redraw()

    def action_next_axis(self) -> None:
        """Steps, tokens seen, time of training."""
        self.axis = AXES[(AXES.index(self.axis) + 1) % len(AXES)]
        self._redraw()

    def on_resize(self) -> None:
        self._redraw()

    def _redraw(self) -> None:
        self._rows = self._draw()
        self.border_title = "Loss" + (", log scale" if self.is_log else "") + _AXIS_WORDS[self.axis]
        self.border_subtitle = Content(self._legend())
        self.refresh()

    def _legend(self) -> str:
        if len(self._histories) > 1:
            return "first solid  second dotted"
        if self._note and self._histories[0].last:
            return self._note
        return "raw faint  mean bold  o eval" if self._histories[0].evaluation.visible() else ""

    def render_line(self, y: int) -> Strip:
        base = self.rich_style  # applied here and not in the drawing: a theme may change in between
        return self._rows[y].apply_style(base) if y < len(self._rows) else Strip.blank(self.size.width, base)

    def _draw(self) -> list[Strip]:
        width, height = self.size.width, self.size.height
        if width < 1 or height < 1:
            return []
        shown = [point for history in self._histories for point in self._points(history)]
        if not shown:
            lines = textwrap.wrap(self._note or "no loss yet", width)
            return [Strip([Segment(line)]).adjust_cell_length(width) for line in lines]
        scale = _log if self.is_log else float
        axis = _AXIS_WIDTH if width > 3 * _AXIS_WIDTH else 0
        ascii_only = bool(getattr(self.app, "ascii_only", False))
        canvas = Canvas(width - axis, height - 1 if height > 3 else height, ascii_only=ascii_only)
        place = _Placement(canvas, shown, self.axis, scale)
        if len(self._histories) == 1:
            self._draw_one(canvas, place, self._histories[0])
        else:
            for history, layer in zip(self._histories, ("smooth", "second"), strict=True):
                points = [place(p, p.mean) for p in history.smooth.visible()]
                canvas.line(points, layer, dotted=layer == "second")
        return self._with_axes(canvas, place, axis, ascii_only=ascii_only)

    def _points(self, history: LossHistory) -> list[Point]:
        """What decides the ranges of the axes."""
        if len(self._histories) > 1:
            return history.smooth.visible()
        return [*history.raw.visible(), *history.evaluation.visible()]

    def _draw_one(self, canvas: Canvas, place: _Placement, history: LossHistory) -> None:
        raw = history.raw.visible()
        for point in raw:  # a merged point is drawn as the span that it stands for
            canvas.line([place(point, point.low), place(point, point.high)], "raw")
        canvas.line([place(p, p.mean) for p in raw], "raw")
        canvas.line([place(p, p.mean) for p in history.smooth.visible()], "smooth")
        for point in history.evaluation.visible():
            canvas.mark(*place(point, point.mean), "o", "evaluation")

    def _with_axes(self, canvas: Canvas, place: _Placement, axis: int, *, ascii_only: bool) -> list[Strip]:
        width, height, dim = self.size.width, self.size.height, Style(dim=True)
        strips = []
        for index, cells in enumerate(canvas.rows()):
            label = ""
            if axis and (index in (0, canvas.height - 1) or index == canvas.height // 2):
                label = f"{place.value_at(index):.3g}"
            tick = "+" if ascii_only else "┤"
            segments = [Segment(f"{label:>{axis - 2}} {tick}"[-axis:] if axis and label else " " * axis, dim)]
            segments += [Segment(text, _STYLES.get(layer)) for text, layer in cells]
            strips.append(Strip(segments).adjust_cell_length(width))
        if len(strips) < height:
            left, right = _axis_value(place.first, self.axis), _axis_value(place.last, self.axis, is_last=True)
            room = width - axis - len(left) - len(right)
            text = " " * axis + (left + " " * room + right if room > 0 else right[: max(0, width - axis)])
            strips.append(Strip([Segment(text, dim)]).adjust_cell_length(width))
        return strips


class _Placement:
    """From a point and one of its values to a dot, with a little room above and below a flat curve."""

    def __init__(self, canvas: Canvas, points: Sequence[Point], axis: Axis, scale: Callable[[float], float]) -> None:
        low, high = min(scale(p.low) for p in points), max(scale(p.high) for p in points)
        if high - low < 1e-9:
            low, high = low - 0.05 * (abs(low) or 1), high + 0.05 * (abs(high) or 1)
        self.first, self.last = min(p.at(axis) for p in points), max(p.at(axis) for p in points)
        self._canvas, self._low, self._high, self._axis, self._scale = canvas, low, high, axis, scale

    def __call__(self, point: Point, value: float) -> tuple[int, int]:
        span = (self.last - self.first) or 1
        x = (point.at(self._axis) - self.first) / span * (self._canvas.dot_width - 1)
        y = (self._scale(value) - self._low) / (self._high - self._low) * (self._canvas.dot_height - 1)
        return round(x), round(y)

    def value_at(self, row: int) -> float:
        """The value in the middle of a row of cells."""
        height = self._canvas.height
        share = 1 - row / (height - 1) if height > 1 else 0.5
        value = self._low + share * (self._high - self._low)
        return 10**value if self._scale is _log else value


def _axis_value(value: float, axis: Axis, *, is_last: bool = False) -> str:
    if axis == "seconds":
        return format_duration(value)
    if axis == "tokens":
        return format_short_count(value) + (" tokens" if is_last else "")
    return f"step {value:,.0f}" if is_last else f"{value:,.0f}"


def _log(value: float) -> float:
    return math.log10(max(value, 1e-12))
