"""A plan as plain text for `longfit plan`: no colour, at most ``width`` columns for the bars, readable by a pipe."""

from __future__ import annotations

import textwrap

from app.views.footprint import bar_cells, bar_scale
from app.views.format import column_unit, format_bytes, format_share, format_short_count
from app.views.parts import PART_STYLES
from app.views.plan_view import (
    alternative_rows,
    batch_words,
    cluster_words,
    combination_of,
    cost_words,
    device_word,
    footprints,
    instant_rows,
    issue_lines,
    part_rows,
    peak_words,
    readings,
    speed_words,
    term_rows,
    trust_words,
    verdict_view,
)
from planner.types import Plan


def plan_text(
    plan: Plan, *, width: int = 80, ascii_only: bool = False, explain: bool = False, goal: str = "fastest"
) -> str:  # fmt: skip
    """The whole plan. ``goal`` is what its alternatives were ranked by, ``explain`` adds every term with its formula.

    Ends without a newline.
    """
    blocks = [
        _head(plan),
        _verdict(plan, width),
        _bars(plan, width, ascii_only),
        _parts(plan, ascii_only),
        _instants(plan),
    ]
    if explain:
        blocks.append(_terms(plan, width))
    blocks += [_rest(plan, width), _issues(plan, width), _alternatives(plan, width, goal)]
    return "\n\n".join(block for block in blocks if block)


def _head(plan: Plan) -> str:
    model = f"{plan.model.name} ({format_short_count(plan.model.num_parameters)} parameters)"
    return "\n".join(
        (
            f"{plan.config.name}: {model}, {plan.config.dtype}, length {plan.config.max_length:,}",
            f"on {cluster_words(plan)}; {combination_of(plan)}",
        )
    )


def _verdict(plan: Plan, width: int) -> str:
    view = verdict_view(plan)
    trust = trust_words(plan)
    trust = f" {trust[0].upper()}{trust[1:]}." if trust else ""
    return textwrap.fill(f"{view.word}: {view.sentence}; {peak_words(plan)}.{trust}", width)


def _bars(plan: Plan, width: int, ascii_only: bool) -> str:
    prints = footprints(plan)
    scale = bar_scale(prints)
    name = device_word(plan)
    lines = []
    for footprint in _distinct(prints):
        label = f"{name} {footprint.gpu_index}"
        bar = "".join(
            cell.text
            for cell in bar_cells(footprint, width=max(10, width - 22), scale_bytes=scale, ascii_only=ascii_only)
        )
        lines.append(f"{label:<10}{bar} {format_bytes(footprint.used_bytes):>10}")
    return "\n".join(lines)


def _distinct(prints: tuple) -> tuple:
    """Ranks that hold the same are shown once: the first of each kind."""
    seen: set[tuple[int, int]] = set()
    kept = []
    for footprint in prints:
        key = (footprint.used_bytes, footprint.usable_bytes)
        if key not in seen:
            seen.add(key)
            kept.append(footprint)
    return tuple(kept)


def _parts(plan: Plan, ascii_only: bool) -> str:
    gpu = plan.worst_gpu
    unit = column_unit(gpu.used_bytes)
    lines = [f"    {'at the peak':<16}{unit.name:>9}{'share':>8}  {'basis':<9} mostly"]
    for row in part_rows(gpu):
        mark = row.letter if ascii_only else row.fill
        size, share = unit.format(row.bytes), format_share(row.share)
        lines.append(f"  {mark} {row.label:<16}{size:>9}{share:>8}  {row.basis:<9} {row.note}")
    for name, size in readings(gpu):
        lines.append(f"    {name:<16}{unit.format(size):>9}")
    return "\n".join(lines)


def _instants(plan: Plan) -> str:
    unit = column_unit(plan.worst_gpu.used_bytes)
    lines = [f"    {'allocated at':<28}{unit.name:>9}"]
    for row in instant_rows(plan.worst_gpu):
        lines.append(f"    {row.label:<28}{unit.format(row.bytes):>9}{'  <- peak' if row.is_peak else ''}")
    return "\n".join(lines)


def _terms(plan: Plan, width: int) -> str:
    unit = column_unit(plan.worst_gpu.used_bytes)
    lines = ["Terms at the peak"]
    for row in term_rows(plan.worst_gpu):
        lines.append(f"  {unit.format(row.bytes):>8} {unit.name}  {row.basis:<9} {row.label} ({row.part})")
        lines += textwrap.wrap(f"= {row.formula}", width, initial_indent=" " * 15, subsequent_indent=" " * 17)
        if row.source:
            lines += textwrap.wrap(row.source, width, initial_indent=" " * 15, subsequent_indent=" " * 15)
    return "\n".join(lines)


def _rest(plan: Plan, width: int) -> str:
    lines = [
        f"host memory {format_bytes(plan.host_bytes)} ({plan.host_verdict}), "
        f"disk {format_bytes(plan.disk_bytes)} ({plan.disk_verdict})",
        f"speed: {speed_words(plan)}",
        *([f"cost: {cost_words(plan)}"] if cost_words(plan) else []),
        *textwrap.wrap(f"batch: {batch_words(plan)}", width, subsequent_indent="  "),
    ]
    return "\n".join(lines)


def _issues(plan: Plan, width: int) -> str:
    return "\n".join(
        textwrap.fill(f"{severity}: {words}", width, subsequent_indent="  ")
        for severity, words in issue_lines(plan.issues)
    )


def _alternatives(plan: Plan, width: int, goal: str) -> str:
    rows = alternative_rows(plan)
    if not rows:
        return ""
    unit = column_unit(max(row.used_bytes for row in rows))
    lines = [f"Recommended, {goal} first", f"  {'#':>2} {unit.name:>8}  {'verdict':<10} {'speed':>7}  combination"]
    for row in rows:
        lines.append(
            f"  {row.rank:>2} {unit.format(row.used_bytes):>8}  {row.verdict:<10} {row.speed:>7}  {row.combination}"
        )
        detail = f"{row.changes_words}. {row.why}" if row.why else row.changes_words
        detail += f"; {row.cost}" if goal == "cheapest" and row.cost else ""
        lines += textwrap.wrap(detail, width, initial_indent=" " * 34, subsequent_indent=" " * 34)
    return "\n".join(lines)


def legend_text(*, ascii_only: bool = False) -> str:
    """What the patterns and marks of a bar mean, one line each."""
    parts = [
        f"{style.letter if ascii_only else style.fill} {style.label}: {style.meaning}" for style in PART_STYLES.values()
    ]
    band = "-" if ascii_only else "─"
    return "\n".join([*parts, f"{band} up to the upper end of the band", "| what is usable", "X beyond it"])
