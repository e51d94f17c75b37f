"""The panel of the Plan tab that takes a command or configuration of another tool. Built and wired by plan_tab.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.gui import paste_actions
from app.gui.messages import shown_to_the_user
from app.gui.plan_form import inputs_from_form
from app.services.presets import preset_names


@dataclass(frozen=True, slots=True, kw_only=True)
class PastePanel:
    text: gr.Textbox
    name: gr.Textbox
    save: gr.Button


def build_paste_panel() -> PastePanel:
    """Lay it out in the current Blocks context; what is pasted is read at once, and saved on a click."""
    with gr.Accordion("Paste the command you have", open=False, elem_id="paste"):
        text = gr.Textbox(
            label="a swift sft line, a YAML of axolotl, LLaMA-Factory or TRL, a script", lines=5, max_lines=14,
            elem_id="paste-text",
        )  # fmt: skip
        with gr.Row(elem_classes="launch"):
            name = gr.Textbox(label="name of the preset", elem_id="paste-name", scale=1, min_width=240)
            save = gr.Button(
                "Save and load", variant="primary", interactive=False, elem_id="paste-save", scale=0, min_width=160
            )
        findings = gr.HTML(elem_id="paste-findings")
    text.change(
        show_paste, text, [findings, name, save], trigger_mode="always_last", show_progress="hidden", api_name="import"
    )
    return PastePanel(text=text, name=name, save=save)


def show_paste(text: str) -> list[Any]:
    view = paste_actions.view_paste(text or "")
    return [view.findings, view.name, gr.update(interactive=bool(view.name))]


def save_paste(text: str, name: str) -> list[Any]:
    """Inputs of the form, its list of presets with the new one in it."""
    with shown_to_the_user():
        preset, *others = inputs_from_form(paste_actions.save_paste(text or "", name or ""))
        return [gr.update(choices=list(preset_names()), value=preset), *others]
