"""A plan as HTML fragments for the Plan tab: verdict, bar, parts with their terms, facts, issues, recommendations.

Pure functions; words and numbers come from app/views, so that they are those of the CLI and the TUI.
"""

from __future__ import annotations

from html import escape

from app.gui.fit_bar import distinct, fit_bar_svg, swatch_svg
from app.views.footprint import Segment, footprint_of
from app.views.format import ByteUnit, column_unit, format_bytes, format_count, format_share, format_short_count
from app.views.parts import BASIS_MEANING
from app.views.plan_view import (
    AlternativeRow,
    batch_words,
    cluster_words,
    combination_of,
    device_word,
    footprints,
    instant_rows,
    issue_lines,
    peak_words,
    readings,
    speed_words,
    term_label,
    verdict_view,
)
from planner.types import Plan

_SEVERITY_WORDS = {"error": "Error", "warning": "Warning", "info": "Note"}


def verdict_html(plan: Plan) -> str:
    """The verdict in a word and a sentence; announced by screen readers when it changes."""
    view = verdict_view(plan)
    return (
        f'<div role="status" class="verdict role-{view.color_role}"><strong class="word">{view.word}</strong> '
        f"<span>{escape(view.sentence)}; {escape(peak_words(plan))}</span></div>"
    )


def bar_html(plan: Plan) -> str:
    view = verdict_view(plan)
    summary = f"{view.word}: {view.sentence}"
    prints = footprints(plan)
    shown = distinct(prints)
    drawing = fit_bar_svg(shown, device=device_word(plan), summary=summary)
    if len(shown) == 1 < len(prints):
        drawing += f'<p class="aside">All {len(prints)} hold the same.</p>'
    return drawing


def parts_html(plan: Plan) -> str:
    """The table behind the bar. Each part opens to its terms: formula, basis and source of every number."""
    gpu = plan.worst_gpu
    unit = column_unit(gpu.used_bytes)
    rows = "".join(_part_row(segment, gpu.used_bytes, unit) for segment in footprint_of(gpu).segments)
    totals = "".join(
        f'<tr><td></td><td>{words}</td><td class="number">{unit.format(size)}</td><td></td><td></td></tr>'
        for words, size in (("used at the peak", gpu.used_bytes), ("usable", gpu.usable_bytes))
    )
    return (
        f'<table class="parts"><caption>What {device_word(plan)} {gpu.index} holds at its peak. '
        "Open a part to see where its number comes from.</caption>"
        f'<thead><tr><th></th><th scope="col">part</th><th scope="col" class="number">{unit.name}</th>'
        '<th scope="col" class="number">share</th><th scope="col">basis</th></tr></thead>'
        f"<tbody>{rows}</tbody><tfoot>{totals}</tfoot></table>"
    )


def _part_row(segment: Segment, used_bytes: int, unit: ByteUnit) -> str:
    terms = "".join(
        f"<dt>{escape(term_label(term.key))}: {format_bytes(term.bytes)} ({term.basis})</dt>"
        f"<dd><code>{escape(term.formula)}</code>{_source(term.source)}</dd>"
        for term in segment.terms
    )
    return (
        f'<tr data-part="{segment.style.part}" data-bytes="{segment.bytes}"><td>{swatch_svg(segment.style.part)}</td>'
        f"<td><details><summary>{escape(segment.style.label)}</summary>"
        f"<p>{escape(segment.style.meaning)}</p><dl>{terms}</dl></details></td>"
        f'<td class="number">{unit.format(segment.bytes)}</td>'
        f'<td class="number">{format_share(segment.bytes / used_bytes)}</td>'
        f'<td><span title="{escape(BASIS_MEANING[segment.basis])}">{segment.basis}</span></td></tr>'
    )


def _source(source: str) -> str:
    return f'<br><span class="aside">{escape(source)}</span>' if source else ""


def facts_html(plan: Plan) -> str:
    """What is planned, in words, and the readings that are never mixed."""
    gpu = plan.worst_gpu
    model = f"{plan.model.name}, {format_short_count(plan.model.num_parameters)} parameters, {plan.config.dtype}"
    facts = [
        ("model", model),
        ("length", f"{format_count(plan.config.max_length)} tokens "
                   f"(native {format_count(plan.model.max_position_embeddings)})"),
        ("hardware", cluster_words(plan)),
        ("optimizations", combination_of(plan)),
        ("speed", speed_words(plan)),
        ("batch", batch_words(plan)),
        ("memory", ", ".join(f"{name} {format_bytes(size)}" for name, size in readings(gpu))),
        ("host and disk", f"host {format_bytes(plan.host_bytes)} ({plan.host_verdict}), "
                          f"disk {format_bytes(plan.disk_bytes)} ({plan.disk_verdict})"),
    ]  # fmt: skip
    rows = "".join(f'<tr><th scope="row">{name}</th><td>{escape(words)}</td></tr>' for name, words in facts)
    return f'<table class="facts"><tbody>{rows}</tbody></table>{_instants(plan)}'


def _instants(plan: Plan) -> str:
    rows = instant_rows(plan.worst_gpu)
    highest = max((row.bytes for row in rows), default=1)
    unit = column_unit(plan.worst_gpu.used_bytes)
    lines = "".join(
        f'<tr><th scope="row">{escape(row.label)}{" (peak)" if row.is_peak else ""}</th>'
        f'<td class="number">{unit.format(row.bytes)}</td>'
        f'<td class="meter"><span style="width:{100 * row.bytes / highest:.1f}%"></span></td></tr>'
        for row in rows
    )
    return (
        f'<details class="instants"><summary>Allocated over a step, {unit.name}</summary>'
        f'<table class="facts"><tbody>{lines}</tbody></table></details>'
    )


def issues_html(plan: Plan) -> str:
    return "".join(
        f'<p class="issue {severity}"><strong>{_SEVERITY_WORDS[severity]}:</strong> {escape(words)}</p>'
        for severity, words in issue_lines(plan.issues)
    )


def refusal_html(refusal: str) -> str:
    """Why Launch is disabled."""
    return f'<p class="refusal">{escape(refusal)}</p>' if refusal else ""


def alternative_html(row: AlternativeRow) -> str:
    """One recommendation; its Apply button stands beside it."""
    return (
        f'<div class="alternative"><strong>{row.rank}. {escape(row.combination)}</strong> '
        f'<span class="badge">{row.verdict}</span> {format_bytes(row.used_bytes)}, speed {escape(row.speed)}'
        f'<br><span class="aside">{escape(row.changes_words)}{". " + escape(row.why) if row.why else ""}</span></div>'
    )
