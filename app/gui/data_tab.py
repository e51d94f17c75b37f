"""The Data tab: what becomes of each row of the plan's data before a GPU is touched. Built by page.py.

Its three inputs are those of the Plan tab once more: what is typed in one is in the other. Widgets and wiring only;
what they do is in data_actions.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.gui.data_actions import TAB, DataActions, DataView, field_index, inputs_of, with_inputs
from app.gui.messages import error_html
from app.gui.plan_actions import Form
from app.gui.plan_form import PlanForm, form_from_inputs
from planner.catalog.models import MODELS
from planner.errors import LongfitError

TICK_SECONDS = 1.0
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
_NUM_OWN = 3  # inputs of the tab, behind those of the form


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTab:
    """What page.py wires further. ``own`` are sources, model and length."""

    actions: DataActions
    form: PlanForm
    own: tuple[gr.components.Component, ...]
    read_button: gr.Button
    shown: tuple[gr.blocks.Block, ...]  # outputs of ``show``
    address: gr.Textbox
    timer: gr.Timer
    drawn: gr.State  # the report that was drawn last in this browser

    def show(self, *given: Any) -> list[Any]:
        """Values for ``shown``, from every input; a report that did not change is not sent again."""
        *inputs, drawn = given
        return self._values(self.actions.view(_form(inputs)), drawn)

    def _values(self, view: DataView, drawn: str) -> list[Any]:
        return [
            view.status, gr.skip() if view.report == drawn else view.report, gr.update(interactive=view.can_read),
            view.address, gr.Timer(active=view.is_reading), view.report,
        ]  # fmt: skip

    def read(self, *given: Any) -> list[Any]:
        """Begin to read; what hinders it stands where the state would."""
        *inputs, drawn = given
        form = _form(inputs)
        try:
            self.actions.read(form)
        except LongfitError as error:
            return [error_html(error, word="NOT READ"), *self._values(self.actions.view(form), drawn)[1:]]
        return self._values(self.actions.view(form), drawn)

    def fill_after(self, event: gr.events.Dependency) -> gr.events.Dependency:
        """Take the plan's settings over, and show what is known of them."""
        filled = event.then(
            lambda *inputs: inputs_of(form_from_inputs(*inputs)), self.form.inputs, list(self.own), **_QUIET
        )
        return filled.then(self.show, self._given, list(self.shown), **_QUIET)

    def wire(self) -> tuple[gr.events.Dependency, gr.events.Dependency]:
        """Returns (what changes the form, what may change the address)."""
        self.timer.tick(self.show, self._given, list(self.shown), concurrency_limit=None, **_QUIET)
        begun = self.read_button.click(
            self.read, self._given, list(self.shown), queue=False, show_progress="hidden", api_name="data"
        )
        fields = [self.form.fields[field_index(key)] for key in ("data.train", "model", "max_length")]
        sources, *others = self.own
        # what is pasted with the mouse is no input for Gradio: leaving the field counts too
        edits = [sources.input, sources.blur, *(widget.input for widget in others)]  # type: ignore[attr-defined]
        edited = gr.on(edits, lambda *own: list(own), list(self.own), fields, trigger_mode="always_last", **_QUIET)
        shown = edited.then(self.show, self._given, list(self.shown), **_QUIET)
        return shown, begun

    @property
    def _given(self) -> list[gr.components.Component]:
        return [*self.form.inputs, *self.own, self.drawn]


def build_data_tab(actions: DataActions, form: PlanForm) -> DataTab:
    """Lay the tab out in the current Blocks context. ``form`` is the Plan tab's."""
    with gr.Row(elem_classes="data-head"):
        sources = gr.Textbox(label="data, one a line: files, folders, globs, file#500, hub ids", lines=2,
                             elem_id="data-sources", scale=3, min_width=280)  # fmt: skip
        model = gr.Dropdown(list(MODELS), label="rows of the model", allow_custom_value=True, elem_id="data-model",
                            scale=2, min_width=200)  # fmt: skip
        length = gr.Number(label="length, tokens", precision=0, elem_id="data-length", scale=1, min_width=100)
        read = gr.Button("Read", variant="primary", elem_id="data-read", size="md", scale=0, min_width=110)
    status, report = gr.HTML(elem_id="data-status"), gr.HTML(elem_id="data-report")
    address = gr.Textbox(f"?tab={TAB}", visible="hidden", elem_id="data-address")
    timer, drawn = gr.Timer(TICK_SECONDS, active=False), gr.State("")
    return DataTab(
        actions=actions, form=form, own=(sources, model, length), read_button=read, address=address, timer=timer,
        drawn=drawn, shown=(status, report, read, address, timer, drawn),
    )  # fmt: skip


def _form(inputs: list[Any]) -> Form:
    """The Plan tab's form with the inputs of this tab laid over it: a click may come before the form follows."""
    return with_inputs(form_from_inputs(*inputs[:-_NUM_OWN]), tuple(inputs[-_NUM_OWN:]))
