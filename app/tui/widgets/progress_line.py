"""One line of progress, drawn in whole and half cells; a number is written beside it."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget


class ProgressLine(Widget):
    def __init__(self) -> None:
        super().__init__()
        self._fraction = 0.0

    def show(self, fraction: float) -> None:
        if fraction != self._fraction:
            self._fraction = fraction
            self.refresh()

    def render_line(self, y: int) -> Strip:
        width, base = self.size.width, self.rich_style
        text = f" {100 * self._fraction:3.0f} % "
        room = max(0, width - len(text))
        done = round(room * self._fraction)
        full, rest = ("#", "-") if getattr(self.app, "ascii_only", False) else ("━", "─")
        return Strip(
            [
                Segment(text, base),
                Segment(full * done, base + Style(color="#29B78E", bold=True)),
                Segment(rest * (room - done), base + Style(dim=True)),
            ]
        ).adjust_cell_length(width, base)
