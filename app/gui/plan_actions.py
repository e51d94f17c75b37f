"""What the Plan tab does, without widgets: from the form to a plan in HTML, to recommendations, to a launch.

Every function takes the whole form and keeps nothing: a page that was reloaded, or served by a restarted server,
answers the same. Called by plan_tab.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

from app.gui import plan_html
from app.gui.form import Field, draft_of, form_fields, form_of
from app.gui.messages import error_html
from app.services.draft import Draft
from app.services.hardware import find_gpu, parse_cluster
from app.services.planning import longest_length_for, plan_resolved, recommend_for
from app.services.presets import load_preset, parse_override, preset_names
from app.services.resolve import Resolved, resolve
from app.views.parts import value_words
from app.views.plan_view import AlternativeRow, alternative_rows, cluster_words, command_text
from core.optimizations import REGISTRY
from planner.errors import ConfigError, LongfitError
from planner.types import Plan, Preset

FIELDS: tuple[Field, ...] = form_fields(REGISTRY)
HERE = "here"
NUM_RECOMMENDATIONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """All that a person can choose on the Plan tab."""

    preset: str
    gpu: str  # a catalog name, "cpu" or "here"
    count: int
    values: tuple[Any, ...]  # of FIELDS


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """What the right half of the tab shows."""

    verdict: str
    bar: str = ""
    parts: str = ""
    facts: str = ""
    issues: str = ""
    command: str = ""
    has_suggestions: bool = False  # some issue says which keys would mend it
    refusal: str = ""  # why Launch is disabled; empty when it is not
    address: str = ""  # query string that leads back here


def load_form(preset_name: str, *, hardware: str = "", overrides: Mapping[str, Any] | None = None) -> Form:
    """The form of a preset, with the hardware it is meant for unless ``hardware`` ("2xA10") names other."""
    preset = known_preset(preset_name)
    gpu, count = _split_hardware(hardware) if hardware else _preset_hardware(preset)
    draft = Draft.of(preset).apply((overrides or {}).items())
    return Form(preset=preset.name, gpu=gpu, count=count, values=tuple(form_of(draft, FIELDS, REGISTRY)))


def known_preset(name: str) -> Preset:
    """Only presets by name: a path would have any file of the account read through the page."""
    if name not in preset_names():
        raise ConfigError(f"There is no preset named {name!r}.", fix="Choose one of the list.")
    return load_preset(name)


def view_plan(form: Form) -> PlanView:
    """Plan the form. What is wrong with it stands where the verdict would."""
    try:
        resolved, draft = resolve_form(form)
        plan = plan_resolved(resolved)
    except LongfitError as error:
        return PlanView(verdict=error_html(error, word="NO PLAN"), refusal="There is no plan to launch.")
    return PlanView(
        verdict=plan_html.verdict_html(plan),
        bar=plan_html.bar_html(plan),
        parts=plan_html.parts_html(plan),
        facts=plan_html.facts_html(plan),
        issues=plan_html.issues_html(plan),
        has_suggestions=any(issue.suggestion for issue in plan.issues),
        command=command_of(form, draft, plan),
        refusal=launch_refusal(plan),
        address=address_of(form, draft),
    )


def resolve_form(form: Form) -> tuple[Resolved, Draft]:
    """Raises: ConfigError."""
    preset = known_preset(form.preset)
    draft = draft_of(preset, FIELDS, form.values, REGISTRY)
    hardware = _hardware(form, preset)
    return resolve(preset, draft.overrides, cluster=parse_cluster(hardware) if hardware else None), draft


def launch_refusal(plan: Plan) -> str:
    """Why this plan cannot be launched from here; empty when it can."""
    errors = [issue for issue in plan.issues if issue.severity == "error"]
    if errors:
        return f"The plan has an error: {errors[0].what}"
    if plan.verdict == "over":
        return "It does not fit. Apply a recommendation, or change the form, until it does."
    if plan.cluster.source == "assumed":
        return f"This is a plan for {cluster_words(plan)}. To launch here, choose this machine as hardware."
    return ""


def recommendations(form: Form) -> tuple[AlternativeRow, ...]:
    """The fastest combinations that fit; none when the form is wrong."""
    try:
        resolved, _ = resolve_form(form)
        plan = plan_resolved(resolved)
        return alternative_rows(plan, recommend_for(resolved, limit=NUM_RECOMMENDATIONS))
    except LongfitError:
        return ()


def apply_recommendation(form: Form, rank: int) -> Form:
    """The form after the changes of the recommendation of that rank (from 1).

    Raises: ConfigError when there is none of that rank any more.
    """
    row = next((row for row in recommendations(form) if row.rank == rank), None)
    if row is None:
        raise ConfigError("This recommendation does not hold any more.", fix="Choose one of the new list.")
    return _applied(form, dict(row.changes))


def apply_suggestions(form: Form) -> Form:
    """The form after what the plan's issues suggest. Raises: ConfigError."""
    resolved, _ = resolve_form(form)
    changes = {key: value for issue in plan_resolved(resolved).issues for key, value in issue.suggestion}
    return _applied(form, changes)


def scale_length(form: Form, factor: float) -> Form:
    """Half or twice the length, at least one token."""
    resolved, _ = resolve_form(form)
    return _applied(form, {"max_length": max(1, round(resolved.config.max_length * factor))})


def with_longest_length(form: Form) -> Form:
    """The form with the longest row that still fits. Raises: ConfigError when none does."""
    resolved, _ = resolve_form(form)
    longest = longest_length_for(resolved)
    if longest <= 0:
        raise ConfigError("No length fits with these optimizations.", fix="Apply a recommendation first.")
    return _applied(form, {"max_length": longest})


def _applied(form: Form, changes: Mapping[str, Any]) -> Form:
    draft = draft_of(known_preset(form.preset), FIELDS, form.values, REGISTRY).apply(changes.items())
    return Form(
        preset=form.preset, gpu=form.gpu, count=form.count, values=tuple(form_of(draft, FIELDS, REGISTRY))
    )  # fmt: skip


def command_of(form: Form, draft: Draft, plan: Plan) -> str:
    """The command that does what Launch would; for imagined hardware, the one that shows this plan."""
    verb = "plan" if plan.cluster.source == "assumed" else "train"
    return command_text(form.preset, draft.overrides, verb=verb, hardware=_hardware(form, draft.preset))


def address_of(form: Form, draft: Draft) -> str:
    """A query string with everything that differs from the preset, for bookmarks and the reload button."""
    query = [("preset", form.preset)]
    if hardware := _hardware(form, draft.preset):
        query.append(("gpu", hardware))
    query += [("set", f"{key}={value_words(value)}") for key, value in draft.overrides.items()]
    return "?" + urlencode(query)


def form_of_query(query: str) -> Form:
    """The inverse of ``address_of``; what an address has wrong is left out, the page must open."""
    fields = parse_qs(query.removeprefix("?"))
    name = fields.get("preset", [""])[0]
    with contextlib.suppress(LongfitError):
        overrides = dict(parse_override(text) for text in fields.get("set", ()))
        return load_form(name, hardware=fields.get("gpu", [""])[0], overrides=overrides)
    with contextlib.suppress(LongfitError):
        return load_form(name)
    known = preset_names()
    for first in sorted(known, key=lambda name: known[name][0] == "built-in"):  # a person's own before those that ship
        with contextlib.suppress(LongfitError):
            return load_form(first)
    raise ConfigError("No preset can be read.", fix="`longfit preset list` says what is wrong with each.")


def _hardware(form: Form, preset: Preset) -> str:
    """What ``--gpu`` would say; empty when the preset's own hardware is meant."""
    return "" if (form.gpu, form.count) == _preset_hardware(preset) else f"{form.count}x{form.gpu}"


def _preset_hardware(preset: Preset) -> tuple[str, int]:
    """(GPU by its catalog name, how many); what the preset has wrong is left to the resolver's message."""
    gpu, count = str(preset.hardware.get("gpu") or HERE), preset.hardware.get("count")
    with contextlib.suppress(ConfigError):
        gpu = gpu if gpu.lower() in (HERE, "cpu") else find_gpu(gpu).name
    return gpu, count if isinstance(count, int) and count > 0 else 1


def _split_hardware(text: str) -> tuple[str, int]:
    count, separator, gpu = text.partition("x")
    return (gpu, int(count)) if separator and count.isdigit() else (text, 1)
