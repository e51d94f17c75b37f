"""The output folder of another trainer: its loss and its log, followed while it grows. Opened from the Runs screen."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from textual.app import ComposeResult
from textual.content import Content
from textual.css.query import NoMatches
from textual.message import Message
from textual.widgets import Footer

from app.services.foreign_runs import open_foreign
from app.tui.log_file import LogFile
from app.tui.screens.followed import FollowedScreen
from app.tui.widgets.log_view import LogView
from app.tui.widgets.loss_plot import LossPlot
from app.tui.widgets.plain import Plain, visible
from app.tui.widgets.top_bar import TopBar
from app.views.format import format_path
from app.views.run_view import rate_rows
from app.views.series import LossHistory


@dataclass
class Grown(Message):
    """What was new has been taken in."""


class ForeignScreen(FollowedScreen):
    """Reads only: whoever started this run stops it. Raises: RunNotFound, ConfigError for what cannot be read."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.run = open_foreign(folder)
        self.loss = LossHistory()
        self._log = None if self.run.log is None else LogFile(self.run.log)

    def compose(self) -> ComposeResult:
        yield TopBar("runs")
        yield Plain(id="foreign-status")
        yield LossPlot(id="foreign-loss")
        yield Plain(id="foreign-rates")
        yield LogView(id="foreign-log")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        log = self.query_one(LogView)
        log.log_file = self._log
        log.display = self._log is not None
        (log if self._log is not None else self.query_one(LossPlot)).focus()
        self.query_one(TopBar).show(self.run.folder.name)
        self.follow()

    def take_in(self) -> Grown:
        while rows := self.run.read():
            self.loss.extend(rows)
        if self._log is not None:
            self._log.refresh()
        return Grown()

    def on_grown(self, message: Grown) -> None:
        with suppress(NoMatches):  # parts of a screen that is left are gone before it is
            run, total = self.run, f" of {self.run.total_steps:,}" if self.run.total_steps else ""
            words = f" {run.trainer}: step {run.step:,}{total}, {visible(format_path(run.folder))}"
            self.query_one("#foreign-status", Plain).show_line(Content(words))
            rates = "  ".join(f"{name} {value}" for name, value in rate_rows(self.loss) if value != "n/a")
            self.query_one("#foreign-rates", Plain).show_line(rates)
            self.query_one(LossPlot).show(self.loss, note="no loss has been logged yet")
            self.query_one(LogView).grown()
