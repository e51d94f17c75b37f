"""A run as HTML fragments for the Run tab: state, progress, charts, memory against plan, events, post-mortem.

Pure functions; words and numbers come from app/views, so that they are those of the TUI.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from app.gui.chart import Level, Series, line_chart_svg
from app.views.format import GIB, MIB, format_bytes
from app.views.memory_view import MemoryHistory, gpu_words, memory_rows
from app.views.run_view import StatusView, event_lines, failure_text, loss_note, progress_view, rate_rows, status_view
from app.views.series import DecimatedSeries, LossHistory
from planner.types import RunEvent, RunState

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CLOCK_WIDTH = 8  # of "13:42:10", which event lines begin with


def status_html(status: StatusView) -> str:
    """The state in a word and a sentence; announced by screen readers when it changes."""
    detail = f" <span>{escape(status.detail)}</span>" if status.detail else ""
    return (
        f'<div role="status" class="verdict role-{status.color_role}"><strong class="word">{status.word}</strong>'
        f"{detail}</div>"
    )


def progress_html(state: RunState, history: LossHistory) -> str:
    progress = progress_view(state, history)
    percent = f"{100 * progress.fraction:.0f} %, " if progress.total_steps else ""
    return (
        f'<div class="progress"><progress max="1" value="{progress.fraction:.4f}" aria-label="steps done"></progress>'
        f"<span>{percent}{escape(progress.words)}</span></div>"
    )


def rates_html(history: LossHistory, plan: Mapping[str, Any]) -> str:
    pairs = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in rate_rows(history, plan))
    return f'<dl class="rates">{pairs}</dl>'


def loss_html(history: LossHistory, *, logging_steps: int, log_y: bool) -> str:
    """Loss of each step, smoothed, and of evaluations, from the first row on."""
    chart = line_chart_svg(
        [
            Series(name="train", points=_means(history.raw), look="faint"),
            Series(name="smoothed", points=_means(history.smooth), look="bold"),
            Series(name="evaluation", points=_means(history.evaluation), look="marks"),
        ],
        x_label="step", y_label="loss", log_y=log_y,
    )  # fmt: skip
    note = loss_note(history, logging_steps=logging_steps)
    return chart + (f'<p class="aside">{escape(note)}</p>' if note else "")


def memory_html(history: MemoryHistory, plan: Mapping[str, Any]) -> str:
    """What each rank allocated at most in each step, against the planned peak; then the numbers."""
    rows = memory_rows(history, plan)
    planned = max((row.planned_peak_bytes for row in rows), default=0)
    unit, unit_word = (GIB, "GiB") if max(planned, *(row.peak_bytes for row in rows), 0) >= GIB else (MIB, "MiB")
    chart = line_chart_svg(
        [
            Series(name=f"rank {rank}", points=_highest_by_step(memory.curve, unit), index=rank)
            for rank, memory in sorted(history.ranks.items())
        ],
        x_label="step", y_label=f"allocated, {unit_word}", from_zero=True,
        levels=[Level(name=f"plan {format_bytes(planned)}", y=planned / unit)] if planned else [],
    )  # fmt: skip
    lines = "".join(
        f'<tr><th scope="row">rank {row.rank}</th><td class="number">{format_bytes(row.peak_bytes)}</td>'
        f'<td class="number">{format_bytes(row.planned_peak_bytes)}</td><td class="number">{row.deviation}</td>'
        f'<td class="number">{format_bytes(row.used_bytes)}</td><td>{escape(row.remark)}</td></tr>'
        for row in rows
    )
    table = (
        '<table class="parts memory"><caption>Peak: the most a rank had allocated, above what it held before the '
        "model. Used: the whole process, now.</caption>"
        '<thead><tr><th></th><th class="number" scope="col">peak</th><th class="number" scope="col">planned</th>'
        '<th class="number" scope="col">off by</th><th class="number" scope="col">used</th><th></th></tr></thead>'
        f"<tbody>{lines}</tbody></table>"
    )
    host = history.host_available_bytes
    words = [*gpu_words(history), *([f"host: {format_bytes(host)} free"] if host is not None else [])]
    return chart + (table if rows else "") + (f'<p class="aside">{escape("; ".join(words))}</p>' if words else "")


def events_html(events: Iterable[RunEvent]) -> str:
    """Newest first: what happened last is seen without scrolling."""
    lines = reversed(event_lines(list(events)))
    items = "".join(
        f"<li><time>{line[:_CLOCK_WIDTH]}</time> {escape(line[_CLOCK_WIDTH:].strip())}</li>" for line in lines
    )
    return f'<ol class="events" tabindex="0" aria-label="events, newest first">{items}</ol>'


def log_html(lines: Iterable[str]) -> str:
    """The end of the log as plain text, without the colours of a terminal."""
    text = "\n".join(_ANSI.sub("", line) for line in lines)
    return f"<pre>{escape(text)}</pre>" if text else '<p class="aside">Nothing was written yet.</p>'


def failure_html(state: RunState, postmortem: Mapping[str, Any]) -> str:
    """The post-mortem as a card; empty while nothing failed."""
    text = failure_text(state, postmortem, width=110)
    if not text:
        return ""
    head, _, rest = text.partition("\n")
    return f'<section class="failure" role="alert"><h3>{escape(head)}</h3><pre>{escape(rest.strip())}</pre></section>'


def run_words(run_id: str, state: RunState) -> str:
    """A run in a list: ``20261129-134502-demo-a3f1  STOPPED 412/2000``. The steps of a live run would soon be wrong."""
    view = status_view(state)
    steps = f" {state.step:,}/{state.total_steps:,}" if view.is_final and state.total_steps else ""
    return f"{run_id}  {view.word}{steps}"


def _means(series: DecimatedSeries) -> list[tuple[float, float]]:
    return [(point.step, point.mean) for point in series.visible()]


def _highest_by_step(curve: DecimatedSeries, unit: int) -> list[tuple[float, float]]:
    """A step has a row for each of its instants; what it needed is the highest of them."""
    highest: dict[int, float] = {}
    for point in curve.visible():
        highest[point.step] = max(highest.get(point.step, 0.0), point.high)
    return [(step, size / unit) for step, size in sorted(highest.items())]
