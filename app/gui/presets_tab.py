"""The Presets tab: every preset with its verdicts, one of them as a file or in the words of a tool. Built by page.py.

Widgets and wiring only; what they do is in presets_actions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from app.gui import presets_actions as actions
from app.gui.clicks import clickable_html, clicked
from app.gui.messages import error_html
from app.gui.plan_form import PlanForm, form_from_inputs
from app.services.presets import preset_names
from planner.errors import LongfitError

_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
# on a phone the chosen one stands above the list that was tapped
_SHOW_DETAIL = """() => {
    if (matchMedia('(max-width: 640px)').matches) document.getElementById('preset-detail').scrollIntoView();
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetsTab:
    """What page.py wires further."""

    table: gr.HTML
    chosen: gr.Dropdown
    target: gr.Radio
    shown: tuple[gr.components.Component, ...]  # outputs of ``show``
    address: gr.Textbox
    message: gr.HTML
    name: gr.Textbox  # for a copy
    copy: gr.Button
    keep_plan: gr.Button
    open: gr.Button

    def restore(self, request: gr.Request) -> list[Any]:
        """What the address shows; the list of presets is read anew."""
        name, target = actions.shown_in(str(request.query_params))
        return [gr.update(choices=list(preset_names()), value=name), target]

    def restore_on(self, page: gr.Blocks) -> gr.events.Dependency:
        """After that the list is drawn too, where the address names this tab."""
        restored = self._show_after(page.load(self.restore, None, [self.chosen, self.target], **_QUIET))
        for with_verdicts in (False, True):
            restored = restored.then(_table_if_wanted(with_verdicts), None, self.table, **_QUIET)
        return restored

    def list_after(self, event: gr.events.Dependency) -> gr.events.Dependency:
        """First the list, then the same with verdicts."""
        for with_verdicts in (False, True):
            event = event.then(_table(with_verdicts), None, self.table, **_QUIET)
        return event

    def wire(self, form: PlanForm) -> tuple[gr.events.Dependency, ...]:
        """Returns the events after which the address may have changed."""
        picked = self._show_after(self.table.click(_pick, None, self.chosen, **_QUIET))
        picked.then(None, None, None, js=_SHOW_DETAIL, **_QUIET)
        chosen = gr.on([self.chosen.input, self.target.input], show, [self.chosen, self.target], list(self.shown),
                       show_progress="hidden", trigger_mode="always_last", api_name="preset")  # fmt: skip
        outputs = [self.message, self.chosen, form.preset]
        copied = self.copy.click(_saver(actions.save_copy), [self.chosen, self.name], outputs, api_name="preset_copy")
        kept = self.keep_plan.click(
            _saver(lambda *given: actions.save_plan(form_from_inputs(*given[:-1]), given[-1])),
            [*form.inputs, self.name], outputs, api_name="preset_save",
        )  # fmt: skip
        saved = tuple(self._show_after(event) for event in (copied, kept))
        for event in saved:
            self.list_after(event)
        return (picked, chosen, *saved)

    def _show_after(self, event: gr.events.Dependency) -> gr.events.Dependency:
        return event.then(show, [self.chosen, self.target], list(self.shown), **_QUIET)


def build_presets_tab() -> PresetsTab:
    """Lay the tab out in the current Blocks context."""
    # The chosen one comes first, so that on a phone it stands above the long list; wide pages put it to the right.
    with gr.Row(elem_classes="presets"):
        with gr.Column(scale=2, min_width=320, elem_id="preset-detail"):
            with gr.Row(elem_classes="launch"):
                chosen = gr.Dropdown(list(preset_names()), label="Preset", elem_id="presets-chosen", min_width=200)
                open_button = gr.Button(
                    "Open in Plan", variant="primary", elem_id="presets-open", size="md", scale=0, min_width=150
                )
            about = gr.HTML(elem_id="presets-about")
            titles = [(title, name) for name, title in actions.TARGET_TITLES.items()]
            target = gr.Radio(titles, value=actions.YAML, label="in the words of", elem_id="presets-target")
            text = gr.Code(
                language="yaml", label="As a file", interactive=False, lines=6, max_lines=24, wrap_lines=True,
                show_line_numbers=False, buttons=["copy", "download"], elem_id="presets-text",
            )  # fmt: skip
            findings = gr.HTML(elem_id="presets-findings")
            name = gr.Textbox(label="save under the name", elem_id="presets-name")
            with gr.Row():
                copy = gr.Button("Save a copy", size="md", elem_id="presets-copy", min_width=120)
                keep = gr.Button("Save what Plan shows", size="md", elem_id="presets-keep", min_width=160)
            message = gr.HTML(elem_id="presets-message")
        with gr.Column(scale=3, min_width=320):
            table = clickable_html("presets-table")
    address = gr.Textbox(visible="hidden", elem_id="presets-address")
    return PresetsTab(
        table=table, chosen=chosen, target=target, shown=(about, text, findings, name, address), address=address,
        message=message, name=name, copy=copy, keep_plan=keep, open=open_button,
    )  # fmt: skip


def show(name: str, target: str) -> list[Any]:
    """Values for ``PresetsTab.shown``."""
    view = actions.view_preset(name or "", target or "")
    text = gr.update(value=view.text, language="shell" if view.is_command else "yaml")
    return [view.about, text, view.findings, view.proposal, actions.address_of(name or "", target or "")]


def _pick(event: gr.EventData) -> Any:
    act, name = clicked(event)
    return name if act == "show" else gr.skip()


def _table(with_verdicts: bool) -> Callable[[], str]:
    return lambda: actions.table(with_verdicts=with_verdicts)


def _table_if_wanted(with_verdicts: bool) -> Callable[[gr.Request], Any]:
    def draw(request: gr.Request) -> Any:
        wanted = request.query_params.get("tab") == actions.TAB
        return actions.table(with_verdicts=with_verdicts) if wanted else gr.skip()

    return draw


def _saver(save: Callable[..., str]) -> Callable[..., list[Any]]:
    """Save, say what came of it, and offer the new preset in both lists of presets."""

    def act(*given: Any) -> list[Any]:
        try:
            words = save(*given)
        except LongfitError as error:
            return [error_html(error, word="NOT SAVED"), gr.skip(), gr.skip()]
        names = list(preset_names())
        told = f'<p role="status">{escape(words)}</p>'
        return [told, gr.update(choices=names, value=given[-1].strip()), gr.update(choices=names)]

    return act
