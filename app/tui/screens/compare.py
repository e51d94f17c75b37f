"""Two runs side by side: settings that differ, what came of them, and the losses laid over each other."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.css.query import NoMatches
from textual.message import Message
from textual.widgets import Footer

from app.tui.feed import RunFeed
from app.tui.screens.followed import FollowedScreen
from app.tui.widgets.loss_plot import LossPlot
from app.tui.widgets.narrow import PaneTabs
from app.tui.widgets.plain import Plain, visible
from app.tui.widgets.plain_table import PlainTable
from app.tui.widgets.top_bar import TopBar
from app.views.compare import Row, result_rows, setting_rows
from planner.errors import LongfitError

_COLUMNS = ("what", "first", "second")


@dataclass
class Compared(Message):
    """Both feeds have taken in what was new; ``problem`` is what went wrong, if anything."""

    problem: str
    has_more: bool


class CompareScreen(FollowedScreen):
    """Both runs are followed: one that is live moves. Raises: RunNotFound, ConfigError for what is no run."""

    PANES = (("compare-loss", "Loss"), ("compare-results", "Results"), ("compare-settings", "Settings"))

    def __init__(self, first: Path, second: Path) -> None:
        super().__init__()
        self.feeds = (RunFeed(first), RunFeed(second))

    def compose(self) -> ComposeResult:
        yield TopBar("runs")
        yield Plain(id="compare-names")
        yield PaneTabs(self.PANES)
        yield LossPlot(id="compare-loss")
        with Horizontal(id="compare-tables"):
            yield PlainTable(_COLUMNS, id="compare-results", title="Results", heads={"what": "figure"})
            yield PlainTable(_COLUMNS, id="compare-settings", title="Settings that differ", heads={"what": "setting"})
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        first, second = (feed.run.id for feed in self.feeds)
        self.query_one("#compare-names", Plain).update(
            Content(f" first   {visible(first)}\n second  {visible(second)}")
        )
        rows = setting_rows(self.feeds[0].config, self.feeds[1].config)
        self._show("#compare-settings", rows or (("none", "", ""),))
        self.query_one("#compare-results").focus()
        self.follow()

    def take_in(self) -> Compared:
        try:
            more = [feed.poll() for feed in self.feeds]
        except LongfitError as error:
            return Compared(str(error), has_more=False)
        return Compared("", has_more=any(more))

    def on_compared(self, message: Compared) -> None:
        if message.problem:
            self.notify(message.problem, severity="error", markup=False)
            return
        first, second = self.feeds
        with suppress(NoMatches), self.app.batch_update():  # parts of a screen that is left are gone before it is
            self.query_one(LossPlot).show(first.loss, second.loss)
            self._show("#compare-results", result_rows(first, second))
        if message.has_more:
            self._poll()

    def _show(self, table: str, rows: tuple[Row, ...]) -> None:
        self.query_one(table, PlainTable).show_rows((row[0], tuple(map(visible, row))) for row in rows)
