"""The Run screen: state, progress, loss, memory against plan, log and events of one run; stop, resume, mend, detach."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.css.query import NoMatches
from textual.message import Message
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Footer

from app.tui.feed import RunFeed
from app.tui.screens.dialogs import AskScreen, ConfirmScreen, TextScreen
from app.tui.screens.launching import Launched
from app.tui.screens.mending import ask_to_mend, plan_mended
from app.tui.services import Services
from app.tui.widgets.log_view import LogView
from app.tui.widgets.loss_plot import LossPlot
from app.tui.widgets.memory_panel import MemoryPanel
from app.tui.widgets.narrow import PaneTabs
from app.tui.widgets.plain import Plain, visible
from app.tui.widgets.progress_line import ProgressLine
from app.tui.widgets.top_bar import TopBar
from app.views.format import format_path
from app.views.memory_view import drift_alarms
from app.views.parts import combination_words
from app.views.run_view import (
    checkpoint_text,
    event_lines,
    failure_text,
    loss_note,
    progress_view,
    rate_rows,
    status_view,
)
from planner.errors import LongfitError

POLL_SECONDS = 0.5


@dataclass
class Polled(Message):
    """The feed has taken in what was new; ``problem`` is what went wrong, if anything."""

    problem: str
    has_more: bool = False


class RunScreen(Screen[None]):
    """Reads only; a command is one file put into the run's control folder by the services."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "stop", "stop+save", tooltip="save a checkpoint and stop; again: stop harder"),
        Binding("X", "kill", "kill", tooltip="kill every process of the run now"),
        Binding("r", "resume", "resume", tooltip="go on from the last checkpoint"),
        Binding("d", "detach", "detach", tooltip="leave; the run goes on"),
        Binding("t", "next_pane", "log/events", tooltip="log, events, settings in turn"),
        Binding("slash", "search", "search", key_display="/", tooltip="search the log"),
        Binding("l", "log_scale", "log scale", show=False, tooltip="loss on a logarithmic scale"),
        Binding("g", "next_axis", "x axis", show=False, tooltip="loss by steps, tokens, time of training"),
        Binding("f", "follow", "follow", show=False, tooltip="follow the end of the log"),
        Binding("n", "next_hit(1)", "next hit", show=False, tooltip="next hit of the search"),
        Binding("N", "next_hit(-1)", "hit before", show=False, tooltip="hit of the search before"),
        Binding("w", "wrap", "wrap", show=False, tooltip="wrap long lines of the log"),
        Binding("v", "severity", "severity", show=False, tooltip="every line of the log, warnings, errors in turn"),
        Binding("c", "copy_command", "copy command", show=False, tooltip="copy the exact command of this run"),
        Binding("k", "checkpoints", "checkpoints", show=False, tooltip="checkpoints, and which of them are sound"),
        Binding("e", "explain", "explain", show=False, tooltip="the whole post-mortem of a failed run"),
        Binding("a", "apply_fix", "apply fix", show=False, tooltip="launch again with the first change that fits"),
        Binding("p", "plan_fix", "plan", show=False, tooltip="its preset on the Plan screen, with the fix applied"),
    ]
    PANES = (("loss-pane", "Loss"), ("memory", "Memory"), ("lower", "Log"))
    LOWER = ("log", "events", "settings")

    def __init__(self, services: Services, run_dir: Path, *, exit_when_final: bool = False) -> None:
        super().__init__()
        self.services = services
        self.feed = RunFeed(run_dir)
        self._exit_when_final = exit_when_final
        self._is_polling = False
        self._was_final = False
        self._num_event_lines = 0
        self._has_warned = False
        self.is_drawn = False  # what the files held at the first look is on the screen

    def compose(self) -> ComposeResult:
        yield TopBar("run")
        yield Plain(id="status")
        yield Plain(id="alarm")
        yield ProgressLine()
        yield PaneTabs(self.PANES)
        with Horizontal(id="upper"):
            with ContentSwitcher(id="loss-pane", initial="loss"):
                yield LossPlot(id="loss")
                with VerticalScroll(id="failure", can_focus=True) as failure:
                    failure.border_title = "Why it failed"
                    failure.border_subtitle = "e all  a mend  p plan  r resume"
                    yield Plain(id="failure-text")
            yield MemoryPanel()
        yield Plain(id="rates")
        with ContentSwitcher(id="lower", initial="log"):
            yield LogView(id="log")
            with VerticalScroll(id="events", can_focus=True) as events:
                events.border_title = "Events"
                yield Plain(id="events-text")
            with VerticalScroll(id="settings", can_focus=True) as settings:
                settings.border_title = "Settings of this run"
                yield Plain(self._settings_text(), id="settings-text")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        log = self.query_one(LogView)
        log.log_file = self.feed.log
        log.focus()
        self.query_one(TopBar).show(self.feed.run.id)
        self.set_interval(POLL_SECONDS, self._poll)
        self._poll()

    # --- following -----------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        if not self._is_polling:
            self._is_polling = True
            self.run_worker(self._read, thread=True, group="feed")

    def _read(self) -> None:
        try:
            message = Polled("", has_more=self.feed.poll())
        except LongfitError as error:
            message = Polled(str(error))
        finally:
            self._is_polling = False
        self.post_message(message)  # unlike a call into the app, harmless when the app is leaving

    def on_polled(self, message: Polled) -> None:
        with suppress(NoMatches):  # the app is leaving: parts of the screen are gone before the screen is
            self._draw(message)

    def _draw(self, message: Polled) -> None:
        feed, problem = self.feed, message.problem
        status = status_view(
            feed.state, now=self.services.now(), last_output=feed.log.changed_at,
            seconds_per_step=feed.loss.seconds_per_step,
        )  # fmt: skip
        progress = progress_view(feed.state, feed.loss)
        words = problem or f"{status.detail}{'; ' if status.detail else ''}{progress.words}"
        line = self.query_one("#status", Plain)
        line.show_line(Content.assemble((f" {status.word} ", "reverse bold"), f" {words}"))
        line.set_classes(f"-{status.color_role}")
        self.query_one(ProgressLine).show(progress.fraction)
        with self.app.batch_update():
            if not (feed.is_sampled and self.is_drawn):  # a sample stays as it is until all rows have been read
                self._draw_loss()
                self.query_one(MemoryPanel).show(feed.memory, feed.plan)
                self._draw_alarm()
            self._draw_lower()
        if status.is_final and not self._was_final and self._exit_when_final:
            self.set_timer(POLL_SECONDS, self.app.exit)
        self._was_final = status.is_final
        self.is_drawn = True
        if message.has_more:
            self._poll()

    def _draw_alarm(self) -> None:
        """What a person should look into although the run goes on; memory above plan is also told once."""
        drifts = drift_alarms(self.feed.memory, self.feed.plan)
        fallbacks = [f"fallback: {fallback}" for fallback in self.feed.state.fallbacks]
        words = "; ".join([*drifts, *fallbacks])
        alarm = self.query_one("#alarm", Plain)
        alarm.display = bool(words)
        alarm.set_class(bool(drifts), "-drift")
        alarm.show_line(f" ! {visible(words)}" if words else "")
        if drifts and not self._has_warned:
            self._has_warned = True
            self.notify(drifts[0], title="Memory above plan", severity="warning", timeout=10, markup=False)

    def _draw_loss(self) -> None:
        feed = self.feed
        note = loss_note(feed.loss, logging_steps=feed.config.logging_steps)
        self.query_one(LossPlot).show(feed.loss, note=note)
        rates = dict(rate_rows(feed.loss, feed.plan))
        speed = rates.pop("speed")
        self.query_one("#rates", Plain).show_line(
            "  ".join([*(f"{name} {value}" for name, value in rates.items()), speed])
        )
        failure = failure_text(feed.state, feed.postmortem, width=max(20, self.query_one("#loss-pane").size.width - 3))
        switcher = self.query_one("#loss-pane", ContentSwitcher)
        switcher.current = "failure" if failure else "loss"
        self.set_class(bool(failure), "-failed")
        if failure:
            self.query_one("#failure-text", Plain).update("\n".join(map(visible, failure.splitlines())))

    def _draw_lower(self) -> None:
        self.query_one(LogView).grown()
        lines = event_lines(self.feed.events)
        if len(lines) != self._num_event_lines:
            self._num_event_lines = len(lines)
            self.query_one("#events-text", Plain).update("\n".join(map(visible, reversed(lines))))

    def _settings_text(self) -> str:
        run, config = self.feed.run, self.feed.config
        return (
            f"{config.name}: {config.model}, length {config.max_length:,}\n"
            f"{combination_words(config.optimizations)}\n\n"
            f"folder   {format_path(run.path)}\ncommand  {format_path(run.command)}\n\n{run.config.read_text('utf-8')}"
        )

    # --- actions -------------------------------------------------------------------------------------------------

    def action_next_pane(self) -> None:
        switcher = self.query_one("#lower", ContentSwitcher)
        current = self.LOWER.index(switcher.current or "log")
        switcher.current = self.LOWER[(current + 1) % len(self.LOWER)]
        self.query_one(f"#{switcher.current}").focus()

    def action_stop(self) -> None:
        """First press: save and stop. A second press skips a rung of the ladder, as the supervisor defines it."""
        if self._refuse_when_final("stop"):
            return
        self._command("save", "Asked to save and stop.")

    def action_kill(self) -> None:
        if self._refuse_when_final("kill"):
            return

        def go(answer: bool | None) -> None:
            if answer:
                self._command("kill", "Asked to kill every process of the run.")

        text = "Every process of this run is killed now. Steps after the last checkpoint are lost."
        self.app.push_screen(ConfirmScreen("Kill?", text, yes="y kill"), go)

    def _command(self, mode: str, words: str) -> None:
        try:
            self.services.stop(self.feed.run, mode)
        except LongfitError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.notify(words, markup=False)

    def _refuse_when_final(self, verb: str) -> bool:
        status = status_view(self.feed.state)
        if status.is_final:
            self.notify(f"Nothing to {verb}: the run is {status.word}.", markup=False)
        return status.is_final

    def action_resume(self) -> None:
        try:
            self.services.resume(self.feed.run)
        except LongfitError as error:
            self.notify(str(error), severity="error", timeout=10, markup=False)
            return
        self.notify(f"Resuming from {self.feed.state.last_checkpoint or 'the beginning'}.", markup=False)

    def action_detach(self) -> None:
        """Leave; the run goes on."""
        self.app.run_worker(self.app.action_quit())

    @property
    def farewell(self) -> str:
        """What to say on the terminal once the screen is gone; empty when nothing goes on."""
        if status_view(self.feed.state).is_final:
            return ""
        return f"The run goes on. `longfit attach {self.feed.run.id}` shows it again."

    def action_search(self) -> None:
        def search(needle: str | None) -> None:
            if needle and not self.query_one(LogView).search(needle):
                self.notify(f"Not found: {needle}", markup=False)

        self.query_one("#lower", ContentSwitcher).current = "log"
        self.app.push_screen(AskScreen("Search the log", "Text to find, upper and lower case alike."), search)

    def action_log_scale(self) -> None:
        self.query_one(LossPlot).action_log_scale()

    def action_next_axis(self) -> None:
        self.query_one(LossPlot).action_next_axis()

    def action_follow(self) -> None:
        self.query_one(LogView).action_follow()

    def action_next_hit(self, direction: int) -> None:
        self.query_one(LogView).action_next(direction)

    def action_wrap(self) -> None:
        self.query_one(LogView).action_wrap()

    def action_severity(self) -> None:
        self.query_one("#lower", ContentSwitcher).current = "log"
        self.query_one(LogView).action_severity()

    def action_copy_command(self) -> None:
        """To the clipboard, which a terminal may refuse without a word: so the file is named too."""
        path = self.feed.run.command
        self.app.copy_to_clipboard(path.read_text(encoding="utf-8"))
        self.notify(f"Copied; it is also in {format_path(path)}", markup=False)

    def action_checkpoints(self) -> None:
        """Every byte is read to tell which are sound: in a thread."""
        self.notify("Reading the checkpoints.", markup=False)
        self.run_worker(self._check_checkpoints, thread=True, group="checkpoints", exclusive=True)

    def _check_checkpoints(self) -> None:
        text = checkpoint_text(self.services.checkpoints(self.feed.run))
        self.app.call_from_thread(self.app.push_screen, TextScreen("Checkpoints", text))

    def action_explain(self) -> None:
        text = failure_text(self.feed.state, self.feed.postmortem, width=94)
        if text:
            self.app.push_screen(TextScreen("Why it failed", "\n".join(map(visible, text.splitlines()))))
        else:
            self.notify("The run has not failed.", markup=False)

    def action_apply_fix(self) -> None:
        ask_to_mend(self, self.services, self.feed.run)

    def action_plan_fix(self) -> None:
        plan_mended(self, self.services, self.feed.run)

    def on_launched(self, message: Launched) -> None:
        """The mended run has a folder: look at it."""
        if message.run_dir is None:
            self.notify(message.problem, severity="error", timeout=12, markup=False)
        else:
            self.app.open_run(message.run_dir)  # type: ignore[attr-defined]
