"""The Run tab: one run, live or past, as its directory has it. Built by page.py.

Widgets and wiring only; what they do is in run_actions.py. A tick draws and does nothing else, so a page that sleeps,
or is closed, changes nothing for the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from app.gui.messages import error_html
from app.gui.run_actions import KILL_SECONDS, RunActions
from planner.errors import LongfitError

TICK_SECONDS = 2.0
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
_KILL_WORDS = "Kill"
_KILL_AGAIN_WORDS = f"Kill: click again within {KILL_SECONDS:.0f} s"

# what was drawn last in this browser: run, version of its files, log scale, state
Drawn = tuple[str, int, bool, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTab:
    """What page.py wires further."""

    actions: RunActions
    run: gr.Dropdown
    log_y: gr.Checkbox
    drawn: gr.State
    armed_at: gr.State  # when Kill was clicked once
    outputs: tuple[gr.blocks.Block, ...]
    address: gr.Textbox
    timer: gr.Timer

    def show(self, run_id: str, log_y: bool, drawn: Drawn | None, armed_at: float) -> list[Any]:
        """Values for ``outputs``; what did not change since ``drawn`` is not sent again."""
        view = self.actions.view(run_id, log_y=log_y)
        now: Drawn = (run_id, view.version, log_y, view.word)
        heavy = [view.loss, view.memory, view.events, view.log]
        choices = self.list_runs() if drawn is None or drawn[3] != view.word else gr.skip()
        kill_words = _KILL_AGAIN_WORDS if time.time() - armed_at < KILL_SECONDS else _KILL_WORDS
        return [
            view.status, view.progress, view.rates, view.failure,
            *([gr.skip()] * len(heavy) if now == drawn else heavy),
            gr.update(interactive=view.can_stop, value=view.stop_words),
            gr.update(interactive=view.can_kill, value=kill_words),
            gr.update(interactive=view.can_resume), view.resume_words, f"?run={run_id}" if run_id else "", now,
            choices,
        ]  # fmt: skip

    def show_after(self, event: gr.events.Dependency) -> gr.events.Dependency:
        return event.then(self.show, self._inputs, list(self.outputs), **_QUIET)

    @property
    def _inputs(self) -> list[gr.components.Component]:
        return [self.run, self.log_y, self.drawn, self.armed_at]

    def wire(self) -> None:
        outputs = list(self.outputs)
        self.timer.tick(self.show, self._inputs, outputs, concurrency_limit=None, **_QUIET)
        gr.on([self.run.input, self.log_y.input], self.show, self._inputs, outputs, show_progress="hidden",
              trigger_mode="always_last", api_name="run")  # fmt: skip
        self.run.focus(self.list_runs, None, self.run, **_QUIET)

    def list_runs(self, selected: str | None = None) -> Any:
        """An update of the list of runs; its words say how each is."""
        choices = [(choice.words, choice.id) for choice in self.actions.choices()]
        return gr.update(choices=choices) if selected is None else gr.update(choices=choices, value=selected)


def build_run_tab(actions: RunActions) -> RunTab:
    """Lay the tab out in the current Blocks context and wire everything that stays inside it."""
    with gr.Row(elem_classes="run-head"):
        run = gr.Dropdown([], label="Run", elem_id="run", scale=4, allow_custom_value=True)
        stop = gr.Button("Save and stop", elem_id="stop", interactive=False, size="md", min_width=120)
        kill = gr.Button(_KILL_WORDS, variant="stop", elem_id="kill", interactive=False, size="md", min_width=210)
        resume = gr.Button("Resume", elem_id="resume", interactive=False, size="md", min_width=120)
    message = gr.HTML(elem_id="run-message")
    status, progress = gr.HTML(elem_id="run-status"), gr.HTML(elem_id="run-progress")
    rates, failure = gr.HTML(elem_id="run-rates"), gr.HTML(elem_id="run-failure")
    with gr.Row():
        with gr.Column(min_width=420):
            loss = gr.HTML(elem_id="run-loss")
            log_y = gr.Checkbox(label="log scale", elem_id="log-y", container=False)
        with gr.Column(min_width=420):
            memory = gr.HTML(elem_id="run-memory")
    with gr.Row():
        with gr.Column(scale=3, min_width=420):
            gr.HTML("<h3>Log</h3>")
            log = gr.HTML(elem_id="run-log")
        with gr.Column(scale=2, min_width=320):
            gr.HTML("<h3>Events</h3>")
            events = gr.HTML(elem_id="run-events")
            resume_words = gr.HTML(elem_id="resume-words")
    address = gr.Textbox(visible="hidden", elem_id="run-address")
    drawn, armed_at = gr.State(None), gr.State(0.0)
    tab = RunTab(
        actions=actions, run=run, log_y=log_y, drawn=drawn, armed_at=armed_at, address=address,
        timer=gr.Timer(TICK_SECONDS),
        outputs=(status, progress, rates, failure, loss, memory, events, log, stop, kill, resume, resume_words, address,
                 drawn, run),
    )  # fmt: skip
    tab.wire()
    for button, act, name in ((stop, actions.stop, "stop"), (resume, actions.resume, "resume")):
        # queue=False: a command never waits behind the polls of other pages
        tab.show_after(button.click(_teller(act), run, message, queue=False, show_progress="hidden", api_name=name))
    tab.show_after(
        kill.click(
            _killer(actions), [run, armed_at], [message, armed_at], queue=False, show_progress="hidden", api_name="kill"
        )
    )
    run.input(lambda: "", None, message, **_QUIET)
    return tab


def _teller(act: Callable[[str], str]) -> Callable[[str], str]:
    """Do it, and say what came of it."""

    def tell(run_id: str) -> str:
        try:
            return f'<p role="status">{escape(act(run_id))}</p>'
        except LongfitError as error:
            return error_html(error, word="NOT DONE")

    return tell


def _killer(actions: RunActions) -> Callable[[str, float], tuple[str, float]]:
    kill_now = _teller(actions.kill)

    def kill(run_id: str, armed_at: float) -> tuple[str, float]:
        """The first click arms, the second within five seconds kills. Returns the words, and when it was armed."""
        now = time.time()
        return (kill_now(run_id), 0.0) if now - armed_at < KILL_SECONDS else ("", now)

    return kill
