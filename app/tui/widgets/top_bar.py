"""The first line of every screen: the screens by number, and where we are. Clicking a name goes there."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.widget import Widget

from app.tui.widgets.plain import visible

SCREENS = (("plan", "1 Plan"), ("run", "2 Run"), ("runs", "3 Runs"), ("presets", "4 Presets"), ("data", "5 Data"))


class TopBar(Widget):
    """``place`` is free text on the right: host and hardware, or the run's name."""

    def __init__(self, current: str) -> None:
        super().__init__()
        self.current = current
        self.place = ""

    def show(self, place: str) -> None:
        if visible(place) != self.place:
            self.place = visible(place)
            self.refresh()

    def render(self) -> Content:
        left = Content(" ")
        for name, label in SCREENS:
            left += Content.styled(f" {label} ", "reverse bold" if name == self.current else "")
        room = self.size.width - left.cell_length - 1
        place = Content(visible(self.place))
        if place.cell_length > room:
            place = place.truncate(max(0, room), ellipsis=not getattr(self.app, "ascii_only", False))
        return left + " " * max(0, room - place.cell_length) + place

    def on_click(self, event: events.Click) -> None:
        position = 1
        for name, label in SCREENS:
            if position <= event.x < position + len(label) + 2:
                self.app.run_worker(self.app.run_action(f"app.show_screen('{name}')"))
                return
            position += len(label) + 2
