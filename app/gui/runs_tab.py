"""The Runs tab: every run of the folder with what can be done now, and two of them side by side. Built by page.py.

Widgets and wiring only; what they do is in runs_actions.py. The list is read while the tab is in front, and no longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from app.gui.clicks import clickable_html, clicked
from app.gui.messages import error_html
from app.gui.runs_actions import RunsActions, address_of, with_mark
from planner.errors import LongfitError

TICK_SECONDS = 2.0
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}

Drawn = tuple[str, str]  # list and comparison as they were drawn last in this browser


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsTab:
    """What page.py wires further."""

    actions: RunsActions
    table: gr.HTML
    comparison: gr.HTML
    message: gr.HTML
    address: gr.Textbox
    opened: gr.Textbox  # the run whose name was clicked
    timer: gr.Timer
    drawn: gr.State

    def show(self, address: str, drawn: Drawn | None) -> list[Any]:
        """Values for list, comparison and ``drawn``; what did not change is not sent again."""
        now: Drawn = (self.actions.table(address), self.actions.comparison(address))
        changed = [new if drawn is None or new != old else gr.skip() for new, old in zip(now, drawn or now)]
        return [*changed, now]

    def show_after(self, event: gr.events.Dependency) -> gr.events.Dependency:
        return event.then(self.show, *self._reading, **_QUIET)

    def act(self, address: str, event: gr.EventData) -> list[Any]:
        """What a click in the list does. Values for message, address and ``opened``."""
        act, run_id = clicked(event)
        match act:
            case "open":
                return ["", gr.skip(), run_id]
            case "compare":
                return ["", with_mark(address, run_id), ""]
        try:
            return [f'<p role="status">{escape(self.actions.command(act, run_id))}</p>', gr.skip(), ""]
        except LongfitError as error:
            return [error_html(error, word="NOT DONE"), gr.skip(), ""]

    @property
    def _reading(self) -> tuple[list[gr.components.Component], list[gr.components.Component]]:
        return [self.address, self.drawn], [self.table, self.comparison, self.drawn]

    def wire(self) -> gr.events.Dependency:
        """Returns the event of a click, for what a page does about it."""
        self.timer.tick(self.show, *self._reading, concurrency_limit=None, **_QUIET)
        # queue=False: a command never waits behind the polls of other pages
        return self.show_after(
            self.table.click(self.act, self.address, [self.message, self.address, self.opened], queue=False, **_QUIET)
        )


def build_runs_tab(actions: RunsActions) -> RunsTab:
    """Lay the tab out in the current Blocks context."""
    message = gr.HTML(elem_id="runs-message")
    table = clickable_html("runs-table")
    comparison = gr.HTML(elem_id="runs-comparison")
    return RunsTab(
        actions=actions, table=table, comparison=comparison, message=message,
        address=gr.Textbox(address_of(), visible="hidden", elem_id="runs-address"),
        opened=gr.Textbox(visible="hidden", elem_id="runs-opened"),
        timer=gr.Timer(TICK_SECONDS, active=False), drawn=gr.State(None),
    )  # fmt: skip
