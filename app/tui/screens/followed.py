"""A screen that reads files in a thread, again and again, and shows what they have become: comparison, foreign runs."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from app.tui.widgets.loss_plot import LossPlot

REFRESH_SECONDS = 1.0


class FollowedScreen(Screen[None]):
    """It has one LossPlot. A subclass calls ``follow`` once it is mounted and shows what ``take_in`` answered."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "back", "back", key_display="Esc", tooltip="back to the runs"),
        Binding("l", "log_scale", "log scale", tooltip="loss on a logarithmic scale"),
        Binding("g", "next_axis", "x axis", tooltip="loss by steps, tokens, time of training"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._is_reading = False

    def take_in(self) -> Message:
        """Read what is new, in a thread; the message is posted to this screen."""
        raise NotImplementedError

    def follow(self) -> None:
        self.set_interval(REFRESH_SECONDS, self._poll)
        self._poll()

    def _poll(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.run_worker(self._read, thread=True, group="followed")

    def _read(self) -> None:
        try:
            message = self.take_in()
        finally:
            self._is_reading = False
        self.post_message(message)

    def action_back(self) -> None:
        self.dismiss(None)

    def action_log_scale(self) -> None:
        self.query_one(LossPlot).action_log_scale()

    def action_next_axis(self) -> None:
        self.query_one(LossPlot).action_next_axis()
