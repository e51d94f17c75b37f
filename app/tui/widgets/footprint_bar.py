"""The footprint bar as a widget: one line a GPU, patterns and colours from app/views/footprint.py."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from app.views.footprint import Footprint, bar_cells, bar_scale
from app.views.format import format_bytes


class FootprintBars(Widget):
    """Bars of the distinct GPUs of a plan, all on one scale. A ghost (the pinned plan) is drawn under them."""

    class Opened(Message):
        """Clicked: explain the part under the mouse, or all of it."""

    LABEL_WIDTH = 9

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: tuple[tuple[str, Footprint], ...] = ()

    def show(self, prints: tuple[Footprint, ...], *, device: str, ghost: Footprint | None = None) -> None:
        """``device`` is "GPU" or "process"; ranks that hold the same share a line."""
        groups: dict[tuple[int, int], list[Footprint]] = {}
        for footprint in prints:
            groups.setdefault((footprint.used_bytes, footprint.usable_bytes), []).append(footprint)
        short = "GPU" if device == "GPU" else "rank"
        lines = [(_group_label(short, group), group[0]) for group in groups.values()]
        if ghost is not None:
            lines.append(("pinned", ghost))
        if len(lines) != len(self._lines):
            self.styles.height = max(1, len(lines))
        self._lines = tuple(lines)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        base = self.rich_style
        if y >= len(self._lines) or width <= 0:
            return Strip.blank(width, base)
        label, footprint = self._lines[y]
        amount = format_bytes(footprint.used_bytes)
        bar_width = width - self.LABEL_WIDTH - len(amount) - 2
        scale = bar_scale(tuple(footprint for _, footprint in self._lines))
        ascii_only = bool(getattr(self.app, "ascii_only", False))
        segments = [Segment(f"{label:<{self.LABEL_WIDTH}}", base)]
        for cell in bar_cells(footprint, width=max(1, bar_width), scale_bytes=scale, ascii_only=ascii_only):
            style = base + Style(color=cell.color) if cell.color else base
            segments.append(Segment(cell.text, style + Style(bold=True) if cell.kind in ("limit", "over") else style))
        segments.append(Segment(f"  {amount}", base))
        return Strip(segments).adjust_cell_length(width, base)

    def on_click(self) -> None:
        self.post_message(self.Opened())


def _group_label(short: str, group: list[Footprint]) -> str:
    first, last = group[0].gpu_index, group[-1].gpu_index
    return f"{short} {first}" if first == last else f"{short} {first}-{last}"[: FootprintBars.LABEL_WIDTH - 1]
