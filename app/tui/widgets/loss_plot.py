"""The loss: every row faint, smoothed bold, evaluations as marks; linear or logarithmic; by step or by tokens.

Own drawing on a braille canvas: no plotting package, no numpy, and it works at ten by three cells.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.strip import Strip
from textual.widget import Widget

from app.tui.braille import Canvas
from app.views.series import LossHistory

_AXIS_WIDTH = 7
_STYLES = {
    "raw": Style(color="#7A8691"),
    "smooth": Style(color="#56B4E9", bold=True),
    "evaluation": Style(color="#E69F00", bold=True),
}


class LossPlot(Widget, can_focus=True):
    """``show`` draws a history; ``note`` stands in place of a curve while there is none."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("l", "log_scale", "log scale")]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "Loss"
        self.is_log = False
        self._history = LossHistory()
        self._note = ""
        self._rows: list[Strip] = []

    def show(self, history: LossHistory, note: str) -> None:
        self._history, self._note = history, note
        self._redraw()

    def action_log_scale(self) -> None:
        self.is_log = not self.is_log
        self._redraw()

    def on_resize(self) -> None:
        self._redraw()

    def _redraw(self) -> None:
        self._rows = self._draw()
        self.border_title = "Loss, log scale" if self.is_log else "Loss"
        self.border_subtitle = "raw .  smoothed bold  o evaluation" if self._history.evaluation.visible() else None
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        return self._rows[y] if y < len(self._rows) else Strip.blank(width, self.rich_style)

    def _draw(self) -> list[Strip]:
        width, height = self.size.width, self.size.height
        base = self.rich_style
        history = self._history
        raw, smooth, evaluation = (s.visible() for s in (history.raw, history.smooth, history.evaluation))
        if width < 1 or height < 1:
            return []
        if not raw and not evaluation:
            lines = textwrap.wrap(self._note or "no loss yet", width)
            return [Strip([Segment(line, base)]).adjust_cell_length(width, base) for line in lines]
        scale = _log if self.is_log else float
        axis = _AXIS_WIDTH if width > 3 * _AXIS_WIDTH else 0
        canvas_height = height - 1 if height > 3 else height
        ascii_only = bool(getattr(self.app, "ascii_only", False))
        canvas = Canvas(width - axis, canvas_height, ascii_only=ascii_only)
        steps = [p.step for p in (*raw, *evaluation)]
        values = [scale(v) for p in (*raw, *evaluation) for v in (p.low, p.high)]
        place = _Placement(canvas, min(steps), max(steps), min(values), max(values), scale)
        for point in raw:  # a merged point is drawn as the span that it stands for
            canvas.line([place(point.step, point.low), place(point.step, point.high)], "raw")
        canvas.line([place(p.step, p.mean) for p in raw], "raw")
        canvas.line([place(p.step, p.mean) for p in smooth], "smooth")
        for point in evaluation:
            canvas.mark(*place(point.step, point.mean), "o", "evaluation")
        return self._with_axes(canvas, place, axis, ascii_only=ascii_only)

    def _with_axes(self, canvas: Canvas, place: _Placement, axis: int, *, ascii_only: bool) -> list[Strip]:
        base, width, height = self.rich_style, self.size.width, self.size.height
        dim = base + Style(dim=True)
        strips = []
        for index, cells in enumerate(canvas.rows()):
            label = ""
            if axis and (index in (0, canvas.height - 1) or index == canvas.height // 2):
                label = f"{place.value_at(index):.3g}"
            tick = "+" if ascii_only else "┤"
            segments = [Segment(f"{label:>{axis - 2}} {tick}"[-axis:] if axis and label else " " * axis, dim)]
            segments += [Segment(text, base + _STYLES[layer] if layer else base) for text, layer in cells]
            strips.append(Strip(segments).adjust_cell_length(width, base))
        if len(strips) < height:
            left, right = f"{place.first:,}", f"step {place.last:,}"
            room = width - axis - len(left) - len(right)
            text = " " * axis + (left + " " * room + right if room > 0 else right[: max(0, width - axis)])
            strips.append(Strip([Segment(text, dim)]).adjust_cell_length(width, base))
        return strips


class _Placement:
    """From step and value to a dot, with a little room above and below a flat curve."""

    def __init__(
        self, canvas: Canvas, first: int, last: int, low: float, high: float, scale: Callable[[float], float]
    ) -> None:
        if high - low < 1e-9:
            low, high = low - 0.5 * (abs(low) or 1) * 0.1, high + 0.5 * (abs(high) or 1) * 0.1
        self.first, self.last = first, last
        self._canvas, self._low, self._high, self._scale = canvas, low, high, scale

    def __call__(self, step: int, value: float) -> tuple[int, int]:
        span = max(1, self.last - self.first)
        x = (step - self.first) / span * (self._canvas.dot_width - 1)
        y = (self._scale(value) - self._low) / (self._high - self._low) * (self._canvas.dot_height - 1)
        return round(x), round(y)

    def value_at(self, row: int) -> float:
        """The value in the middle of a row of cells."""
        height = self._canvas.height
        share = 1 - row / (height - 1) if height > 1 else 0.5
        value = self._low + share * (self._high - self._low)
        return 10**value if self._scale is _log else value


def _log(value: float) -> float:
    return math.log10(max(value, 1e-12))
