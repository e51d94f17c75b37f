"""The Runs screen: every run in the runs folder, also those started elsewhere; open, resume, stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Footer

from app.tui.services import Services
from app.tui.widgets.plain import Plain
from app.tui.widgets.plain_table import PlainTable
from app.tui.widgets.top_bar import TopBar
from app.views.format import format_date, format_duration
from app.views.parts import combination_words
from app.views.run_view import status_view
from planner.errors import LongfitError

if TYPE_CHECKING:
    from app.services.runs import RunList, RunSnapshot

REFRESH_SECONDS = 2.0


@dataclass
class Listed(Message):
    found: RunList


COLUMNS = ("state", "run", "step", "length", "last sign", "started")


class RunsScreen(Screen[None]):
    """The list is read in a thread; rows are updated in place, so that the cursor stays where it is."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open"),
        Binding("r", "resume", "resume"),
        Binding("x", "stop", "stop+save"),
    ]

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.services = services
        self._runs: dict[str, RunSnapshot] = {}

    def compose(self) -> ComposeResult:
        yield TopBar("runs")
        yield PlainTable(COLUMNS, id="runs", title="Runs", subtitle="Enter opens one")
        yield Plain(id="run-details")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.query_one(PlainTable).focus()
        self.set_interval(REFRESH_SECONDS, self._look)

    def on_screen_resume(self) -> None:
        self._look()

    def _look(self) -> None:
        if self.is_current:
            self.run_worker(self._read, thread=True, group="runs", exclusive=True)

    def _read(self) -> None:
        self.post_message(Listed(self.services.runs()))

    def on_listed(self, message: Listed) -> None:
        found = message.found
        self._runs = {run.id: run for run in found.runs}
        now = time.time()
        self.query_one(PlainTable).show_rows((run.id, _texts(run, now)) for run in found.runs)
        unread = "".join(f"\n{path.name}: {why}" for path, why in found.unreadable)
        self._show_details(unread)

    def _show_details(self, unread: str = "") -> None:
        run = self._selected()
        if run is None:
            words = "No runs here yet: plan something, then launch it with L."
        else:
            view = status_view(run.state)
            words = f"{view.word}: {view.detail}. {combination_words(run.config.optimizations)}. {run.paths.path}"
            if run.state.failure_message:
                words += f"\n{run.state.failure_message.splitlines()[0]}"
        self.query_one("#run-details", Plain).update(words + unread)

    def on_data_table_row_highlighted(self, message: DataTable.RowHighlighted) -> None:
        self._show_details()

    def on_data_table_row_selected(self, message: DataTable.RowSelected) -> None:
        self.action_open()

    def _selected(self) -> RunSnapshot | None:
        return self._runs.get(self.query_one(PlainTable).selected_key or "")

    def action_open(self) -> None:
        run = self._selected()
        if run is not None:
            self.app.open_run(run.paths.path)  # type: ignore[attr-defined]

    def action_resume(self) -> None:
        self._command(lambda run: self.services.resume(run.paths), "Resuming.")

    def action_stop(self) -> None:
        self._command(lambda run: self.services.stop(run.paths, "save"), "Asked to save and stop.")

    def _command(self, do: Callable[[RunSnapshot], None], words: str) -> None:
        run = self._selected()
        if run is None:
            return
        try:
            do(run)
        except LongfitError as error:
            self.notify(str(error), severity="error", timeout=10, markup=False)
            return
        self.notify(words, markup=False)
        self._look()


def _texts(run: RunSnapshot, now: float) -> tuple[str, ...]:
    state = run.state
    steps = f"{state.step:,}/{state.total_steps:,}" if state.total_steps else "-"
    ago = f"{format_duration(now - state.updated_at)} ago" if state.updated_at else "-"
    started = format_date(state.created_at) if state.created_at else "-"
    return (status_view(state).word, run.id, steps, f"{run.config.max_length:,}", ago, started)
