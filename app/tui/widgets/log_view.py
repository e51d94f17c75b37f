"""The log of a run: follows its end, scrolls through any size, searches. Text is never interpreted, only shown."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.tui.log_file import LogFile
from app.tui.widgets.plain import visible

_ALARMS = ("error", "traceback", "exception", "out of memory")
_WARNINGS = ("warning", "warn:")


class LogView(ScrollView, can_focus=True):
    """Lines are read when they come into view. Scrolling up stops following; End, or ``f``, follows again."""

    follow = reactive(True)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "follow", "follow", show=False),
        Binding("n", "next(1)", "next hit", show=False),
        Binding("N", "next(-1)", "hit before", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.log_file: LogFile | None = None
        self.needle = ""
        self.hit: int | None = None
        self._generation = 0

    def open(self, path: Path) -> None:
        self.log_file = LogFile(path)
        self.needle, self.hit, self._generation = "", None, 0
        self.follow = True
        self.pump()

    def pump(self) -> None:
        """Take in what was appended. Cheap when nothing was."""
        if self.log_file is None or not self.log_file.refresh():
            self._title()
            return
        self.grown()

    def grown(self) -> None:
        """Redraw after the file's index has grown (a thread may have done that)."""
        if self.log_file is None:
            return
        if self.log_file.generation != self._generation:
            self._generation, self.hit = self.log_file.generation, None
        self.virtual_size = Size(max(1, self.size.width), len(self.log_file))
        if self.follow:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
        self.refresh()
        self._title()

    def on_resize(self) -> None:
        """Shown for the first time, or in another size: the end is elsewhere now."""
        self.grown()

    def _title(self) -> None:
        count = len(self.log_file) if self.log_file is not None else 0
        self.border_title = f"Log, {count:,} lines, " + ("following" if self.follow else "f follows")
        self.border_subtitle = (
            f"search {self.needle!r}: n next, N before".replace("[", "\\[") if self.needle else "/ search"
        )

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

    def search(self, needle: str) -> bool:
        """Jump to the nearest hit above the end of what is shown; False when there is none."""
        self.needle, self.hit = needle, None
        return self._jump(-1, start=int(self.scroll_y) + self.size.height - 1)

    def action_next(self, direction: int) -> None:
        if self.needle:
            start = (self.hit if self.hit is not None else int(self.scroll_y)) + direction
            if not self._jump(direction, start=start):
                self.notify(f"Not found: {self.needle}", markup=False)

    def _jump(self, direction: int, *, start: int) -> bool:
        assert self.log_file is not None
        self.hit = self.log_file.find(self.needle, start, backwards=direction < 0)
        if self.hit is None:
            return False
        self.follow = False
        self.scroll_to(y=max(0, self.hit - self.size.height // 2), animate=False)
        self.refresh()
        self._title()
        return True

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        base = self.rich_style
        index = int(self.scroll_y) + y
        if self.log_file is None or index >= len(self.log_file) or width <= 0:
            return Strip.blank(width, base)
        text = visible(self.log_file.lines(index, index + 1)[0])
        style = base + _severity_style(text)
        if index == self.hit:
            style += Style(reverse=True)
        # rich measures cells: wide characters count two, joiners none
        line = Text(text, no_wrap=True)
        line.truncate(width, overflow="crop")
        return Strip([Segment(line.plain, style)]).adjust_cell_length(width, base)


def _severity_style(text: str) -> Style:
    """Bold for what failed: not by colour alone."""
    lowered = text.lower()
    if any(word in lowered for word in _ALARMS):
        return Style(bold=True, underline=False)
    return Style(italic=True) if any(word in lowered for word in _WARNINGS) else Style()
