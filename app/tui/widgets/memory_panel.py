"""Memory of a run against its plan: a bar a rank with the planned peak as a mark, and the peaks in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.strip import Strip
from textual.widget import Widget

from app.tui.widgets.plain import Plain
from app.views.format import ByteUnit, column_unit, format_bytes
from app.views.memory_view import (
    MemoryHistory,
    MemoryRow,
    host_words,
    instant_memory_rows,
    memory_rows,
)


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
    """``show`` draws a history against the content of plan.json: ranks with their GPUs, the host, the instants of the
    rank that holds most, and its way over the run. What stands first is seen in a small terminal without scrolling."""

    def __init__(self) -> None:
        super().__init__(id="memory")
        self.border_title = "Memory against plan"

    def compose(self) -> ComposeResult:
        yield MemoryBar()
        yield Plain(id="memory-numbers")

    def show(self, history: MemoryHistory, plan: Mapping[str, Any]) -> None:
        rows = memory_rows(history, plan)
        self.query_one(MemoryBar).show(rows)
        unit = column_unit(_scale(rows))
        gpus = {gpu.get("index"): gpu for gpu in history.gpus}
        lines = [f"{unit.name}{'peak':>6}{'plan':>7}{'off by':>8}" + (" busy   C    W" if gpus else "")]
        for row in rows:
            peak, planned = unit.format(row.peak_bytes), unit.format(row.planned_peak_bytes)
            gpu = _gpu_columns(gpus.get(row.rank, {})) if gpus else ""
            lines.append(f"{row.rank:>2}{peak:>7}{planned:>7}{row.deviation:>8}{gpu}".rstrip())
            if row.remark:
                lines.append(f"  ! {row.remark}")
        lines += [*(str(gpu["problem"]) for gpu in history.gpus if gpu.get("problem")), *host_words(history)]
        lines += _instant_lines(rows, history, plan, unit)
        lines += ["", *(_device_words(gpu) for gpu in history.gpus)]
        text = "\n".join(lines)
        self.query_one("#memory-numbers", Plain).update(text.rstrip())


def _device_words(gpu: Mapping[str, Any]) -> str:
    """All processes on the card, ours and others."""
    used, total = gpu.get("used_bytes"), gpu.get("total_bytes")
    if used is None or not total:
        return f"GPU {gpu.get('index')}: memory n/a"
    return f"GPU {gpu.get('index')}: {format_bytes(used)} of {format_bytes(total)} used"


def _gpu_columns(gpu: Mapping[str, Any]) -> str:
    """Busy percent, degrees, watts; n/a for what the driver does not tell."""
    busy, degrees, watts = gpu.get("utilization"), gpu.get("temperature"), gpu.get("power_watts")
    return (
        ("  n/a" if busy is None else f"{busy:>4}%")
        + (" n/a" if degrees is None else f"{degrees:>4}")
        + ("  n/a" if watts is None else f"{watts:>5.0f}")
    )


def _instant_lines(
    rows: tuple[MemoryRow, ...], history: MemoryHistory, plan: Mapping[str, Any], unit: ByteUnit
) -> list[str]:
    """Each instant of the rank that holds most, the highest marked."""
    worst = max(rows, key=lambda row: row.peak_bytes, default=None)
    if worst is None or worst.rank not in history.ranks:
        return []
    gpus = plan.get("gpus") or ()
    planned = gpus[worst.rank] if worst.rank < len(gpus) else None
    lines = ["", f"rank {worst.rank}, at each instant"]
    for row in instant_memory_rows(history.ranks[worst.rank], planned):
        measured, expected = unit.format(row.measured_bytes), unit.format(row.planned_bytes)
        mark = " <-" if row.instant == worst.peak_instant else ""
        lines.append(f"{row.instant:<10}{measured:>7}{expected:>7}{row.deviation:>8}{mark}")
    return lines
