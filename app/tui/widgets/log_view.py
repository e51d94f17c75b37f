"""The log of a run: follows its end, scrolls through any size, searches. Text is never interpreted, only shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import chop_cells
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.tui.log_file import SEVERITIES, LogFile, Severity, severity_of
from app.tui.widgets.plain import visible

# Bold for what failed, italic for what warns: not by colour alone.
_STYLES = {"error": Style(bold=True), "warning": Style(italic=True), None: Style()}
_SHOWN_WORDS = {None: "", "error": ", errors only", "warning": ", warnings and errors"}


class LogView(ScrollView, can_focus=True):
    """Lines are read when they come into view, each view once. Scrolling up stops following; End, or ``f``, follows.

    A row of the scrolled area is a line of the file (of those that ``severity`` lets through), also when lines are
    wrapped: then the first line in view decides, and at the end the last one.
    """

    follow = reactive(True)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "follow", "follow", show=False),
        Binding("n", "next(1)", "next hit", show=False),
        Binding("N", "next(-1)", "hit before", show=False),
        Binding("w", "wrap", "wrap", show=False),
        Binding("v", "severity", "severity", show=False),
    ]

    @dataclass
    class Scanned(Message):
        """The lines of this severity are known."""

        severity: Severity

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.log_file: LogFile | None = None
        self.needle = ""
        self.hit: int | None = None  # a line of the file
        self.wrap = False
        self.severity: Severity | None = None  # None: every line
        self._generation = 0
        self._view: tuple[tuple[int, str, Style], ...] = ()  # (line, text, style) of every row in view
        self._view_key: tuple[object, ...] = ()

    def grown(self) -> None:
        """Redraw after the file's index has grown (a thread may have done that)."""
        if self.log_file is None:
            return
        if self.log_file.generation != self._generation:
            self._generation, self.hit = self.log_file.generation, None
        self.virtual_size = Size(max(1, self.size.width), self._num_lines())
        if self.follow:  # set, not scrolled to: that would wait for a scroll bar, which a first look does not have yet
            self.scroll_y = self.scroll_target_y = self.max_scroll_y
            self.vertical_scrollbar.position = self.scroll_y
        self.refresh()
        self._title()

    def on_resize(self) -> None:
        """Shown for the first time, or in another size: the end is elsewhere now."""
        self.grown()

    def _filtered(self) -> Sequence[int] | None:
        """The lines that are let through; None when all are."""
        return None if self.severity is None or self.log_file is None else self.log_file.severe(self.severity)

    def _num_lines(self) -> int:
        filtered = self._filtered()
        return len(self.log_file or ()) if filtered is None else len(filtered)

    def _title(self) -> None:
        count = len(self.log_file) if self.log_file is not None else 0
        words = f"Log, {count:,} lines{_SHOWN_WORDS[self.severity]}, " + ("following" if self.follow else "f follows")
        self.border_title = words + (", wrapped" if self.wrap else "")
        hint = f"search {self.needle!r}: n next, N before" if self.needle else "/ search  v severity  w wrap"
        self.border_subtitle = Content(hint)

    # --- moving --------------------------------------------------------------------------------------------------

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value and new_value < self.max_scroll_y:
            self.follow = False
        elif new_value >= self.max_scroll_y:
            self.follow = True
        self._title()

    def action_scroll_up(self) -> None:
        self._leave_the_end()
        super().action_scroll_up()

    def action_page_up(self) -> None:
        self._leave_the_end()
        super().action_page_up()

    def action_scroll_home(self) -> None:
        self._leave_the_end()
        super().action_scroll_home()

    def _leave_the_end(self) -> None:
        """At once, not with the first frame of the animation: lines that come in between would pull back to the end."""
        if self.max_scroll_y > 0:
            self.follow = False

    def action_follow(self) -> None:
        self.follow = True
        self.scroll_end(animate=False)

    def action_wrap(self) -> None:
        self.wrap = not self.wrap
        self.refresh()
        self._title()

    # --- severity ------------------------------------------------------------------------------------------------

    def action_severity(self) -> None:
        """Every line, then warnings and errors, then errors."""
        order: tuple[Severity | None, ...] = (None, *reversed(SEVERITIES))
        wanted = order[(order.index(self.severity) + 1) % len(order)]
        if wanted is None:
            self._show_only(None)
            return
        self.run_worker(lambda: self._scan(wanted), thread=True, group="severity", exclusive=True)

    def _scan(self, severity: Severity) -> None:
        if self.log_file is not None:
            self.log_file.severe(severity)
            self.post_message(self.Scanned(severity))

    def on_log_view_scanned(self, message: Scanned) -> None:
        message.stop()
        self._show_only(message.severity)

    def _show_only(self, severity: Severity | None) -> None:
        self.severity, self.follow = severity, True
        self.grown()

    # --- search --------------------------------------------------------------------------------------------------

    def search(self, needle: str) -> bool:
        """Jump to the nearest hit above the end of what is shown, among all lines; False when there is none."""
        if self.severity is not None:
            self._show_only(None)
        self.needle, self.hit = needle, None
        return self._jump(-1, start=int(self.scroll_y) + self.size.height - 1)

    def action_next(self, direction: int) -> None:
        if self.needle:
            start = (self.hit if self.hit is not None else int(self.scroll_y)) + direction
            if not self._jump(direction, start=start):
                self.notify(f"Not found: {self.needle}", markup=False)

    def _jump(self, direction: int, *, start: int) -> bool:
        if self.log_file is None:
            return False
        self.hit = self.log_file.find(self.needle, start, backwards=direction < 0)
        if self.hit is None:
            return False
        self.follow = False
        self.scroll_to(y=max(0, self.hit - self.size.height // 2), animate=False)
        self.refresh()
        self._title()
        return True

    # --- drawing -------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        width, base = self.size.width, self.rich_style
        view = self._rows_in_view()
        if y >= len(view) or width <= 0:
            return Strip.blank(width, base)
        line, text, style = view[y]
        style = base + style + (Style(reverse=True) if line == self.hit else Style())
        return Strip([Segment(text, style)]).adjust_cell_length(width, base)

    def _rows_in_view(self) -> tuple[tuple[int, str, Style], ...]:
        """Read once for all rows of a view, and again only when the view or the end of the file moved."""
        log, width, height = self.log_file, self.size.width, self.size.height
        if log is None or width <= 0 or height <= 0:
            return ()
        top, count = int(self.scroll_y), self._num_lines()
        bottom = min(top + height, count)
        size = log.size if bottom >= count else 0  # an unfinished last line grows
        key = (top, bottom, width, height, self.wrap, self.severity, log.generation, size)
        if key != self._view_key:
            at_end = self.wrap and bottom >= count
            rows = [row for line, text in self._texts(top, bottom) for row in self._pieces(line, text, width)]
            self._view = tuple(rows[-height:] if at_end else rows[:height])
            self._view_key = key
        return self._view

    def _texts(self, top: int, bottom: int) -> list[tuple[int, str]]:
        assert self.log_file is not None
        filtered = self._filtered()
        if filtered is None:
            return list(zip(range(top, bottom), self.log_file.lines(top, bottom), strict=False))
        return [(line, self.log_file.lines(line, line + 1)[0]) for line in filtered[top:bottom]]

    def _pieces(self, line: int, raw: str, width: int) -> list[tuple[int, str, Style]]:
        text, style = visible(raw), _STYLES[severity_of(raw)]
        if self.wrap:
            return [(line, piece, style) for piece in chop_cells(text, width) or [""]]
        # rich measures cells: wide characters count two, joiners none
        cropped = Text(text, no_wrap=True)
        cropped.truncate(width, overflow="crop")
        return [(line, cropped.plain, style)]
