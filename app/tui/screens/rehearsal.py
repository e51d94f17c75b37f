"""The rehearsal dialog: `longfit rehearse` on the draft in a process of its own, its table when it is done.

Opened by the Plan screen. Closing the dialog ends the process.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import ProgressBar

from app.services.draft import Draft
from app.services.rehearsal_process import Ended, RehearsalProcess
from app.tui.screens.launching import ask_with_plan
from app.tui.services import Services
from app.tui.widgets.plain import Plain
from app.views.format import format_duration
from planner.errors import LongfitError

if TYPE_CHECKING:
    from textual.screen import Screen


@dataclass
class Rehearsed(Message):
    ended: Ended


def start_rehearsal(screen: Screen, services: Services, draft: Draft) -> None:
    """Ask with the plan for this machine, then rehearse it here."""
    try:
        plan = services.plan_for_launch(draft.preset, draft.overrides, cpu=draft.gpu == "cpu")
    except LongfitError as error:
        screen.notify(str(error), severity="error", timeout=12, markup=False)
        return

    def go() -> None:
        screen.app.push_screen(RehearsalScreen(services.rehearse(draft)))

    ask_with_plan(screen, draft, plan, verb="rehearse", word="rehearse", go=go)


class RehearsalScreen(ModalScreen[None]):
    """Says how long it has been at it; then the table of planned against measured, or what went wrong."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "leave")]

    def __init__(self, process: RehearsalProcess) -> None:
        super().__init__()
        self._process = process
        self._started = time.monotonic()
        self.ended: Ended | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="rehearsal") as box:
            box.border_title = "Rehearsal: true shapes, random weights, the longest row, three steps"
            box.border_subtitle = "Esc ends it"
            yield Plain(id="rehearsal-status")
            yield ProgressBar(show_percentage=False, show_eta=False, id="rehearsal-bar")
            with VerticalScroll(classes="dialog-text", can_focus=True):
                yield Plain(id="rehearsal-text")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self._tick()
        self._clock = self.set_interval(1, self._tick)
        threading.Thread(target=lambda: self.post_message(Rehearsed(self._process.wait())), daemon=True).start()

    def _tick(self) -> None:
        self.query_one("#rehearsal-status", Plain).show_line(f"at work for {self._elapsed}")

    @property
    def _elapsed(self) -> str:
        return format_duration(time.monotonic() - self._started)

    def on_rehearsed(self, message: Rehearsed) -> None:
        self.ended = message.ended
        self._clock.stop()
        self.query_one(ProgressBar).display = False
        self.query_one("#rehearsal-status", Plain).show_line(f"{_outcome(message.ended)} after {self._elapsed}")
        self.query_one("#rehearsal-text", Plain).update(message.ended.answer or message.ended.talk)
        self.query_one("#rehearsal").border_subtitle = "Esc closes"

    def action_leave(self) -> None:
        self.dismiss(None)

    def on_unmount(self) -> None:
        """Closed, or the app is left: the GPU is given back."""
        if self.ended is None:
            self._process.end()


def _outcome(ended: Ended) -> str:
    if ended.was_ended:
        return "ENDED from outside"
    return {0: "IT RUNS", 4: "OUT OF MEMORY"}.get(ended.exit_code, f"IT DID NOT RUN (exit {ended.exit_code})")
