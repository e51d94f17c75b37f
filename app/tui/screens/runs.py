"""The Runs screen: every run in the runs folder, also those started elsewhere; open, compare, resume, stop, keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import DataTable, Footer

from app.tui.screens.compare import CompareScreen
from app.tui.screens.dialogs import AskScreen
from app.tui.screens.filtered import FilteredScreen
from app.tui.screens.foreign import ForeignScreen
from app.tui.services import Services
from app.tui.widgets.plain import Plain, visible
from app.tui.widgets.plain_table import PlainTable
from app.tui.widgets.top_bar import TopBar
from app.views.format import format_date, format_duration, format_loss, format_path, format_share
from app.views.parts import combination_words
from app.views.run_view import status_view
from core.run.config_file import FILE_NAME as RUN_FILE
from planner.errors import LongfitError

if TYPE_CHECKING:
    from app.services.run_facts import RunFacts
    from app.services.runs import RunList, RunSnapshot

REFRESH_SECONDS = 2.0


@dataclass
class Listed(Message):
    found: RunList
    facts: dict[str, RunFacts]


COLUMNS = ("state", "run", "step", "loss", "of plan", "length", "last sign", "started", "host")


class RunsScreen(FilteredScreen):
    """The list is read in a thread; rows are updated in place, so that the cursor stays where it is."""

    NOUN = "run"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", tooltip="look at this run"),
        Binding("equals_sign", "compare", "compare", key_display="=", tooltip="compare: once on each of two runs"),
        Binding("r", "resume", "resume", tooltip="go on from its last checkpoint"),
        Binding("x", "stop", "stop+save", tooltip="save a checkpoint and stop"),
        Binding("P", "promote", "keep as preset", tooltip="save its preset under a name, with what was measured"),
        Binding("slash", "filter", "filter", key_display="/", tooltip="only runs whose line has these words"),
        Binding(
            "o",
            "open_folder",
            "open a folder",
            show=False,
            tooltip="a run by its folder, also one of LLaMA-Factory, ms-swift or a Hugging Face Trainer",
        ),
        Binding("escape", "clear", "all", show=False, tooltip="every run again, nothing marked"),
    ]

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.services = services
        self._found: RunList | None = None
        self._facts: dict[str, RunFacts] = {}

    def compose(self) -> ComposeResult:
        yield TopBar("runs")
        yield self.filter_field()
        yield PlainTable(COLUMNS, id="runs", title="Runs", subtitle="Enter opens one")
        yield Plain(id="run-details")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.set_interval(REFRESH_SECONDS, self._look)

    def on_screen_resume(self) -> None:
        self._look()

    # --- the list ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self.is_current:
            self.run_worker(self._read, thread=True, group="runs", exclusive=True)

    def _read(self) -> None:
        found = self.services.runs()
        facts = {}
        for run in found.runs:
            try:
                facts[run.id] = self.services.run_facts(run)
            except LongfitError:  # a record of the run is damaged: its line stays without them
                continue
        self.post_message(Listed(found, facts))

    def on_listed(self, message: Listed) -> None:
        self._found, self._facts = message.found, message.facts
        self.show_rows()

    def show_rows(self) -> None:
        if self._found is None:
            return
        now = self.services.now()
        rows = [(run.id, _texts(run, self._facts.get(run.id), now, marked=self.marked)) for run in self._found.runs]
        self.show_filtered(rows, title="Runs", subtitle="Enter opens one")
        self._show_details()

    def _show_details(self) -> None:
        run = self._selected()
        if run is None:
            words = (
                "No run has these words." if self.words else "No runs here yet: plan something, then launch it with L."
            )
        else:
            words = "\n".join(_detail_lines(run, self._facts.get(run.id)))
        unread = [f"{path.name}: {why}" for path, why in self._found.unreadable] if self._found is not None else []
        self.query_one("#run-details", Plain).update("\n".join(map(visible, "\n".join([words, *unread]).splitlines())))

    def on_data_table_row_highlighted(self, message: DataTable.RowHighlighted) -> None:
        self._show_details()

    def on_data_table_row_selected(self, message: DataTable.RowSelected) -> None:
        self.action_open()

    def _selected(self) -> RunSnapshot | None:
        return self._run(self.query_one(PlainTable).selected_key or "")

    def _run(self, run_id: str) -> RunSnapshot | None:
        runs = self._found.runs if self._found is not None else ()
        return next((run for run in runs if run.id == run_id), None)

    # --- actions -------------------------------------------------------------------------------------------------

    def action_open(self) -> None:
        run = self._selected()
        if run is not None:
            self.app.open_run(run.paths.path)  # type: ignore[attr-defined]

    def action_open_folder(self) -> None:
        def show(typed: str | None) -> None:
            if not typed:
                return
            folder = Path(typed).expanduser()
            try:
                if (folder / RUN_FILE).is_file():
                    self.app.open_run(folder)  # type: ignore[attr-defined]
                else:
                    self.app.push_screen(ForeignScreen(folder))
            except (LongfitError, OSError, ValueError) as error:
                self.notify(str(error), severity="error", timeout=10)

        text = "The folder of a run, or what LLaMA-Factory, ms-swift or a Hugging Face Trainer wrote to (output_dir)."
        self.app.push_screen(AskScreen("Open a folder", text), show)

    def action_compare(self) -> None:
        """The first press marks a run, the second on another one shows both; on the same one takes the mark away."""
        run, marked = self._selected(), self._run(self.marked)
        if run is None:
            return
        if marked is None or marked.id == run.id:
            self.marked = "" if marked is not None else run.id
            self.show_rows()
            return
        self.marked = ""
        self.show_rows()
        try:
            self.app.push_screen(CompareScreen(marked.paths.path, run.paths.path))
        except LongfitError as error:
            self.notify(str(error), severity="error", timeout=10, markup=False)

    def action_resume(self) -> None:
        run = self._selected()
        where = (run.state.last_checkpoint if run is not None else "") or "the beginning"
        self._command(lambda run: self.services.resume(run.paths), f"Resuming from {where}.")

    def action_stop(self) -> None:
        self._command(lambda run: self.services.stop(run.paths, "save"), "Asked to save and stop.")

    def action_promote(self) -> None:
        run = self._selected()
        if run is None:
            return

        def save(name: str | None) -> None:
            if not name:
                return
            try:
                path = self.services.promote(run, name)
            except LongfitError as error:
                self.notify(str(error), severity="error", timeout=10, markup=False)
                return
            self.notify(f"Saved as {format_path(path)}", markup=False)

        text = f"The preset of {run.id}, with its losses, speed and memory as measured facts. Its name:"
        self.app.push_screen(AskScreen("Keep as a preset", text, value=run.config.name), save)

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


def _texts(run: RunSnapshot, facts: RunFacts | None, now: float, *, marked: str) -> tuple[str, ...]:
    state = run.state
    steps = f"{state.step:,}/{state.total_steps:,}" if state.total_steps else "-"
    ago = f"{format_duration(now - state.updated_at)} ago" if state.updated_at else "-"
    started = format_date(state.created_at) if state.created_at else "-"
    share = format_share(facts.peak_bytes / facts.planned_peak_bytes) if facts and facts.planned_peak_bytes else "-"
    loss = format_loss(facts.last_loss) if facts else "-"
    name = visible(f"= {run.id}" if run.id == marked else run.id)
    host = visible(facts.host) if facts else ""
    return (
        status_view(state).word, name, steps, loss, share if facts and facts.peak_bytes else "-",
        f"{run.config.max_length:,}", ago, started, host,
    )  # fmt: skip


def _detail_lines(run: RunSnapshot, facts: RunFacts | None) -> list[str]:
    """What the line has no room for; whether r would resume it, and if not, why."""
    state, view = run.state, status_view(run.state)
    lines = [
        f"{view.word}: {view.detail}. {combination_words(run.config.optimizations)}. {format_path(run.paths.path)}"
    ]
    if state.failure_message:
        lines.append(state.failure_message.splitlines()[0])
    if facts is not None and view.is_final:
        checkpoint = state.last_checkpoint or "the beginning: there is no checkpoint"
        lines.append(f"No resume: {facts.obstacle}" if facts.obstacle else f"r resumes from {checkpoint}.")
    return lines
