"""Memory of a run against its plan: a bar a rank with the planned peak as a mark, and the peaks in numbers."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.strip import Strip
from textual.widget import Widget

from app.tui.widgets.plain import Plain
from app.views.format import format_bytes, format_gib
from app.views.memory_view import MemoryRow


class MemoryBar(Widget):
    """``█`` now, ``░`` up to the measured peak, ``┊`` the planned peak. All ranks share one scale."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: tuple[MemoryRow, ...] = ()

    def show(self, rows: tuple[MemoryRow, ...]) -> None:
        if len(rows) != len(self._rows):
            self.styles.height = max(1, len(rows))
        self._rows = rows
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width, base = self.size.width, self.rich_style
        if y >= len(self._rows) or width <= 0:
            return Strip.blank(width, base)
        row = self._rows[y]
        label = f"{row.rank:>3} "
        bar = memory_cells(row, scale_bytes=_scale(self._rows), width=max(1, width - len(label) - 11),
                           ascii_only=bool(getattr(self.app, "ascii_only", False)))  # fmt: skip
        segments = [Segment(label, base)]
        segments += [Segment(text, base + _STYLES[text] if text in _STYLES else base) for text in bar]
        segments.append(Segment(f" {format_bytes(row.allocated_bytes):>10}", base))
        return Strip(segments).adjust_cell_length(width, base)


_STYLES = {
    "█": Style(color="#56B4E9"), "#": Style(color="#56B4E9"), "░": Style(color="#56B4E9"), "-": Style(color="#56B4E9"),
    "┊": Style(color="#E69F00", bold=True), "|": Style(color="#E69F00", bold=True),
    "X": Style(color="#D55E00", bold=True),
}  # fmt: skip


def _scale(rows: tuple[MemoryRow, ...]) -> int:
    return round(1.05 * max((max(r.planned_peak_bytes, r.peak_bytes, r.allocated_bytes) for r in rows), default=1)) or 1


def memory_cells(row: MemoryRow, *, scale_bytes: int, width: int, ascii_only: bool = False) -> list[str]:
    """The characters of one bar; what a peak exceeds its plan by is ``X``."""
    now = min(width, round(width * row.allocated_bytes / scale_bytes))
    peak = min(width, round(width * row.peak_bytes / scale_bytes))
    full, seen, mark = ("#", "-", "|") if ascii_only else ("█", "░", "┊")
    cells = [full] * now + [seen] * max(0, peak - now)
    cells += [" "] * (width - len(cells))
    if row.planned_peak_bytes:
        planned = min(width - 1, round(width * row.planned_peak_bytes / scale_bytes))
        for index in range(planned + 1, max(now, peak)):
            cells[index] = "X"
        cells[planned] = mark
    return cells


class MemoryPanel(VerticalScroll, can_focus=True):
    """``show`` draws the rows; ``extra`` are lines below them (instants, GPUs, host)."""

    def __init__(self) -> None:
        super().__init__(id="memory")
        self.border_title = "Memory against plan"

    def compose(self) -> ComposeResult:
        yield MemoryBar()
        yield Plain(id="memory-numbers")

    def show(self, rows: tuple[MemoryRow, ...], extra: tuple[str, ...] = ()) -> None:
        self.query_one(MemoryBar).show(rows)
        lines = [f"GiB{'peak':>7}{'plan':>7}"]
        for row in rows:
            peak, plan = format_gib(row.peak_bytes), format_gib(row.planned_peak_bytes)
            lines.append(f"{row.rank:>3}{peak:>7}{plan:>7} {row.deviation:>7} {row.peak_instant}")
            if row.remark:
                lines.append(f"  ! {row.remark}")
        self.query_one("#memory-numbers", Plain).update("\n".join([*lines, *extra]))
