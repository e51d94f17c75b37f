"""What the Presets tab does, without widgets: list, verdicts, the text for a tool, save. Called by presets_tab.py.

Presets go by the name of their file. None is deleted from here: a preset is a file, and its folder is named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qs, urlencode

from app.gui import presets_html
from app.gui.form import draft_of
from app.gui.messages import error_html
from app.gui.plan_actions import FIELDS, Form, form_of_query, known_preset
from app.services.importing.export_targets import TARGETS
from app.services.importing.exported import export_preset
from app.services.planning import cluster_for_launch, plan_preset
from app.services.presets import list_presets, preset_names, preset_text, save_preset, unreadable_presets
from app.views.format import format_path
from app.views.plan_view import short_verdict
from core.optimizations import REGISTRY
from planner.errors import LongfitError
from planner.types import Plan, Preset

TAB = "presets"
YAML = "yaml"  # a preset as it is; the others are tools
TARGET_TITLES = {YAML: "YAML", **{name: target.title for name, target in TARGETS.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetView:
    """One preset in the words of one target."""

    about: str = ""
    text: str = ""
    is_command: bool = False  # of a shell; otherwise YAML
    findings: str = ""  # HTML
    proposal: str = ""  # a name for a copy


def table(*, with_verdicts: bool) -> str:
    """Two plans a preset take most of a second for all that ship: the list may be shown before."""
    presets = {Path(preset.path).stem: preset for preset in list_presets()}
    verdicts = {name: verdicts_of(preset) for name, preset in presets.items()} if with_verdicts else {}
    return presets_html.presets_html(presets, unreadable_presets(), verdicts=verdicts)


def verdicts_of(preset: Preset) -> tuple[str, str]:
    """(on this machine now, on the hardware it is meant for)."""
    here = _verdict(lambda: plan_preset(preset, cluster=cluster_for_launch(preset)).plan)
    return here, _verdict(lambda: plan_preset(preset).plan)


def _verdict(plan_of: Callable[[], Plan]) -> str:
    try:
        return short_verdict(plan_of())
    except LongfitError as error:
        return error.what


def view_preset(name: str, target: str) -> PresetView:
    """What cannot be read, or not be written for that tool, stands in place of its findings. Never raises."""
    try:
        preset = known_preset(name)
    except LongfitError as error:
        return PresetView(findings=error_html(error, word="NO PRESET"))
    about, proposal = presets_html.about_html(preset), f"{name}-copy"
    if target not in TARGETS:
        return PresetView(about=about, text=preset_text(preset), proposal=proposal)
    try:
        exported = export_preset(preset, target)
    except LongfitError as error:
        return PresetView(about=about, findings=error_html(error, word="NOT WRITTEN"), proposal=proposal)
    return PresetView(
        about=about, text=exported.text, is_command=TARGETS[target].is_command,
        findings=presets_html.lost_html(exported.findings), proposal=proposal,
    )  # fmt: skip


def save_copy(name: str, new_name: str) -> str:
    """A preset under another name among the user's; what came of it in words. Raises: LongfitError."""
    return _save(replace(known_preset(name), measured=()), new_name)


def save_plan(form: Form, new_name: str) -> str:
    """What the Plan tab has at hand, under a name among the user's. Raises: LongfitError."""
    return _save(draft_of(known_preset(form.preset), FIELDS, form.values, REGISTRY).as_preset(new_name), new_name)


def _save(preset: Preset, new_name: str) -> str:
    return f"Saved as {format_path(save_preset(replace(preset, name=new_name.strip())))}"


def address_of(name: str, target: str) -> str:
    return "?" + urlencode({"tab": TAB, "show": name, "as": target})


def shown_in(query: str) -> tuple[str, str]:
    """(preset, target) of an address; what it has wrong, or leaves out, is the first preset, and YAML."""
    found = parse_qs(query.removeprefix("?"))
    name, target = found.get("show", [""])[0], found.get("as", [""])[0]
    return (
        name if name in preset_names() else form_of_query("").preset, target if target in TARGET_TITLES else YAML
    )  # fmt: skip
