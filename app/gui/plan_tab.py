"""The Plan tab: the form on the left, what it means for memory on the right. Built by page.py.

Widgets and wiring only; what they do is in plan_actions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.gui import plan_actions, plan_html
from app.gui.messages import shown_to_the_user
from app.gui.paste_panel import build_paste_panel, save_paste
from app.gui.plan_actions import NUM_RECOMMENDATIONS, Form
from app.gui.plan_form import PlanForm, build_plan_form, form_from_inputs, inputs_from_form, visibility
from app.services.presets import preset_names

# Keeps the address of the page in step, so that reload and bookmarks lead to the same plan. While the address names a
# run or another tab, that is in front and the plan waits for its turn.
_FOLLOW_PLAN = """(query) => {
    const shown = new URLSearchParams(location.search);
    if (query && !shown.has('run') && !shown.has('tab')) window.history.replaceState(null, '', query);
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTab:
    """What page.py wires further."""

    form: PlanForm
    results: tuple[gr.components.Component, ...]  # outputs of ``show_plan``
    recommendations: tuple[gr.blocks.Block, ...]  # outputs of ``show_recommendations``
    address: gr.Textbox
    launch: gr.Button
    refusal: gr.HTML  # why Launch is disabled; its place shows the progress of a launch

    def plan_after(self, event: gr.events.Dependency) -> gr.events.Dependency:
        """After the form has changed by program: plan it and search better combinations."""
        return self._then_recommend(event.then(show_plan, self.form.inputs, self._outputs, **_QUIET))

    def restore_on(self, page: gr.Blocks) -> gr.events.Dependency:
        """Returns the event after which the form is that of the address."""
        restored = page.load(restore, None, self.form.inputs, **_QUIET)
        self.plan_after(restored)
        return restored

    def plan_on_input(self) -> None:
        """Plan whenever a person changes the form; the last change wins."""
        edits = [widget.input for widget in self.form.inputs if widget is not self.form.preset]
        self._then_recommend(
            gr.on(edits, show_plan, self.form.inputs, self._outputs, trigger_mode="always_last",
                  show_progress="hidden", api_name="plan")
        )  # fmt: skip

    def _then_recommend(self, event: gr.events.Dependency) -> gr.events.Dependency:
        event = event.then(None, self.address, None, js=_FOLLOW_PLAN, **_QUIET)
        return event.then(show_recommendations, self.form.inputs, list(self.recommendations), **_QUIET)

    @property
    def _outputs(self) -> list[gr.blocks.Block]:
        return [*self.results, *self.form.conditional]


_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


def build_plan_tab() -> PlanTab:
    """Lay the tab out in the current Blocks context and wire everything that stays inside it."""
    paste = build_paste_panel()
    with gr.Row(elem_classes="plan"):
        with gr.Column(scale=2, min_width=300, elem_classes="form"):
            form = build_plan_form()
        with gr.Column(scale=5, min_width=480):
            verdict, bar = gr.HTML(elem_id="verdict"), gr.HTML(elem_id="bar")
            command = gr.Code(
                language="shell", label="Command", interactive=False, lines=1, wrap_lines=True,
                show_line_numbers=False, buttons=["copy"], elem_id="command",
            )  # fmt: skip
            with gr.Row(elem_classes="launch"):
                launch = gr.Button(
                    "Launch", variant="primary", interactive=False, elem_id="launch", scale=0, min_width=140
                )
                refusal = gr.HTML(elem_id="refusal")
            with gr.Row():
                with gr.Column(scale=1, min_width=340):
                    parts = gr.HTML(elem_id="parts")
                with gr.Column(scale=1, min_width=340):
                    facts = gr.HTML(elem_id="facts")
            issues = gr.HTML(elem_id="issues")
            mend = gr.Button("Apply what it suggests", size="sm", visible=False, elem_id="mend")
            gr.HTML("<h3>Combinations, best first</h3>", elem_id="recommendations-title")
            rows = _recommendation_rows()
            address = gr.Textbox(visible="hidden", elem_id="plan-address")
    tab = PlanTab(
        form=form, results=(verdict, bar, parts, facts, issues, mend, command, launch, refusal, address),
        recommendations=tuple(block for row in rows for block in row), address=address, launch=launch,
        refusal=refusal,
    )  # fmt: skip
    tab.plan_on_input()
    tab.plan_after(paste.save.click(save_paste, [paste.text, paste.name], form.inputs, api_name="import_save"))
    tab.plan_after(form.preset.input(load_preset, form.preset, form.inputs[1:], **_QUIET))
    edits: list[tuple[gr.Button, Callable[..., Any]]] = [
        (form.halve, halve_length), (form.double, double_length), (form.longest, longest_length),
        (mend, apply_suggestions),
        *((row[2], _applier(rank)) for rank, row in enumerate(rows, start=1)),
    ]  # fmt: skip
    for button, action in edits:
        tab.plan_after(button.click(action, form.inputs, form.inputs, **_QUIET))
    return tab


def _recommendation_rows() -> list[tuple[gr.Row, gr.HTML, gr.Button]]:
    rows = []
    for rank in range(1, NUM_RECOMMENDATIONS + 1):
        with gr.Row(visible=False, elem_classes="recommendation") as row:
            words = gr.HTML(elem_id=f"recommendation-{rank}")
            apply = gr.Button("Apply", size="sm", scale=0, min_width=80, elem_id=f"apply-{rank}")
        rows.append((row, words, apply))
    return rows


def show_plan(*inputs: Any) -> list[Any]:
    """Values for ``PlanTab.results`` and the visibility of knobs."""
    form = form_from_inputs(*inputs)
    view = plan_actions.view_plan(form)
    return [
        view.verdict, view.bar, view.parts, view.facts, view.issues, gr.update(visible=view.has_suggestions),
        view.command, gr.update(interactive=not view.refusal), plan_html.refusal_html(view.refusal), view.address,
        *visibility(form),
    ]  # fmt: skip


def show_recommendations(*inputs: Any) -> list[Any]:
    """Values for ``PlanTab.recommendations``: a row, its words and its button for each rank."""
    found = plan_actions.recommendations(form_from_inputs(*inputs))
    updates: list[Any] = []
    for rank in range(NUM_RECOMMENDATIONS):
        row = found[rank] if rank < len(found) else None
        updates += [
            gr.update(visible=row is not None),
            plan_html.alternative_html(row) if row else "",
            gr.update(interactive=row is not None and bool(row.changes)),
        ]
    return updates


def restore(request: gr.Request) -> list[Any]:
    """Inputs for a page that was opened or reloaded: what its address says, else the first preset.

    The list of presets is read anew: one that was saved since the server started is offered too.
    """
    preset, *others = inputs_from_form(plan_actions.form_of_query(str(request.query_params)))
    return [gr.update(choices=list(preset_names()), value=preset), *others]


def load_preset(name: str) -> list[Any]:
    with shown_to_the_user():
        return inputs_from_form(plan_actions.load_form(name))[1:]


def halve_length(*inputs: Any) -> list[Any]:
    return _edit(lambda form: plan_actions.scale_length(form, 0.5), inputs)


def double_length(*inputs: Any) -> list[Any]:
    return _edit(lambda form: plan_actions.scale_length(form, 2), inputs)


def longest_length(*inputs: Any) -> list[Any]:
    return _edit(plan_actions.with_longest_length, inputs)


def apply_suggestions(*inputs: Any) -> list[Any]:
    return _edit(plan_actions.apply_suggestions, inputs)


def _applier(rank: int) -> Callable[..., list[Any]]:
    return lambda *inputs: _edit(lambda form: plan_actions.apply_recommendation(form, rank), inputs)


def _edit(change: Callable[[Form], Form], inputs: tuple[Any, ...]) -> list[Any]:
    with shown_to_the_user():
        return inputs_from_form(change(form_from_inputs(*inputs)))
