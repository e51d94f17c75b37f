"""The widgets of the Plan tab's form, generated from form.py's fields. Built by plan_tab.py."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from app.gui.form import ADAPTER_HEAD, Field
from app.gui.plan_actions import FIELDS, HERE, Form
from app.services.presets import preset_names
from planner.catalog.gpus import GPUS
from planner.catalog.models import MODELS

_ACCORDIONS = {"adapters": "Adapters", "training": "Training", "data": "Model and data"}
_INDEX = {field.key: index for index, field in enumerate(FIELDS)}
# Inputs that only mean something when another one is on; the others are always shown.
_CONDITIONAL = [
    field
    for field in FIELDS
    if field.key.startswith(ADAPTER_HEAD) or ("." in field.key and field.key.partition(".")[0] in _INDEX)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanForm:
    preset: gr.Dropdown
    gpu: gr.Dropdown
    count: gr.Number
    fields: tuple[gr.components.Component, ...]  # in the order of FIELDS
    adapters: gr.Accordion
    halve: gr.Button
    double: gr.Button
    longest: gr.Button

    @property
    def inputs(self) -> list[gr.components.Component]:
        """What every action receives, in the order of ``form_from_inputs``."""
        return [self.preset, self.gpu, self.count, *self.fields]

    @property
    def conditional(self) -> list[gr.blocks.Block]:
        return [self.adapters, *(self.fields[_INDEX[field.key]] for field in _CONDITIONAL)]


def form_from_inputs(preset: str, gpu: str, count: float | None, *values: Any) -> Form:
    """Number widgets hold None while they are being typed into."""
    return Form(preset=preset or "", gpu=gpu or HERE, count=int(count or 1), values=values)


def inputs_from_form(form: Form) -> list[Any]:
    return [form.preset, form.gpu, form.count, *form.values]


def visibility(form: Form) -> list[dict[str, Any]]:
    """Updates for ``PlanForm.conditional``: knobs of something that is off are not offered."""
    method = form.values[_INDEX["method"]]
    shown = [method != "full"]
    for field in _CONDITIONAL:
        if field.key.startswith(ADAPTER_HEAD):
            shown.append(method == "qlora" or field.key != ADAPTER_HEAD + "double_quant")
        else:
            shown.append(bool(form.values[_INDEX[field.key.partition(".")[0]]]))
    return [gr.update(visible=is_shown) for is_shown in shown]


def build_plan_form() -> PlanForm:
    preset = gr.Dropdown(list(preset_names()), label="Preset", elem_id="preset")
    with gr.Row():
        gpus = [("this machine", HERE), ("CPU processes", "cpu"), *((name, name) for name in GPUS)]
        gpu = gr.Dropdown(gpus, label="Hardware", elem_id="gpu", allow_custom_value=True, scale=3, min_width=140)
        count = gr.Number(1, label="How many", precision=0, elem_id="count", scale=1, min_width=70)
    fields: dict[str, gr.components.Component] = {}
    method, length, *batch = _of_group("main")
    with gr.Row():
        fields |= {field.key: _widget(field, compact=True) for field in (method, length)}
    with gr.Row(elem_classes="length-buttons"):
        halve = gr.Button("length ÷ 2", size="sm", elem_id="halve", min_width=60)
        double = gr.Button("length × 2", size="sm", elem_id="double", min_width=60)
        longest = gr.Button("longest that fits", size="sm", elem_id="longest", min_width=60)
    with gr.Row():
        fields |= {field.key: _widget(field, compact=True) for field in batch}
    with gr.Group():
        fields |= {field.key: _widget(field, compact=True) for field in _of_group("switches")}
    with gr.Row():
        fields |= {field.key: _widget(field, compact=True) for field in _of_group("degrees")}
    gr.HTML(_glossary(), elem_id="glossary")
    accordions: dict[str, gr.Accordion] = {}
    for group, title in _ACCORDIONS.items():
        with gr.Accordion(title, open=False, elem_id=f"group-{group}") as accordions[group]:
            fields |= {field.key: _widget(field) for field in _of_group(group)}
    return PlanForm(
        preset=preset, gpu=gpu, count=count, fields=tuple(fields[field.key] for field in FIELDS),
        adapters=accordions["adapters"], halve=halve, double=double, longest=longest,
    )  # fmt: skip


def _glossary() -> str:
    """What the compact inputs mean, in one place that can be opened."""
    shown = (field for group in ("main", "switches", "degrees") for field in _of_group(group))
    lines = "".join(f"<dt>{escape(field.label)}</dt><dd>{escape(field.help)}</dd>" for field in shown)
    return f"<details><summary>What do these mean?</summary><dl>{lines}</dl></details>"


def _of_group(group: str) -> list[Field]:
    return [field for field in FIELDS if field.group == group]


def _widget(field: Field, *, compact: bool = False) -> gr.components.Component:
    """``compact`` inputs are explained in the glossary instead of one by one."""
    elem_id = "field-" + field.key.replace(".", "-").replace("_", "-")
    common: dict[str, Any] = {"label": field.label, "elem_id": elem_id}
    if compact:
        common["min_width"] = 64
    else:
        common["info"] = field.help or None
    match field.kind:
        case "bool":
            return gr.Checkbox(**common)
        case "int":
            return gr.Number(precision=0, **common)
        case "float":
            return gr.Number(**common)
        case "choice":
            # a preset may hold what is no choice: the planner's message says so, the widget must not
            choices = [str(choice) for choice in field.choices]
            return gr.Dropdown(choices, allow_custom_value=field.key != "method", **common)
        case "optional_bool":
            return gr.Dropdown(["auto", "true", "false"], **common)
        case "texts":
            return gr.Textbox(lines=2, **common)
    if field.key == "model":
        return gr.Dropdown(list(MODELS), allow_custom_value=True, **common)
    return gr.Textbox(**common)
