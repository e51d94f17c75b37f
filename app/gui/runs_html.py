"""The list of runs and two runs side by side as HTML for the Runs tab. Pure; words come from app/views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from app.gui.chart import Series, line_chart_svg
from app.gui.clicks import button_html, link_html
from app.gui.list_html import list_html, text_table_html
from app.views.compare import SeenRun, result_rows, setting_rows
from app.views.format import format_date, format_loss, format_path, format_tokens_per_second
from app.views.run_view import status_view

if TYPE_CHECKING:
    from app.services.run_facts import RunFacts
    from app.services.runs import RunList, RunSnapshot

_COLUMNS = ("name", "state", "step", "loss", "speed", "started", "folder", "do")


def runs_html(found: RunList, facts: Mapping[str, RunFacts], *, root: Path, marked: Sequence[str], now: float) -> str:
    """``marked``: ids of the runs that are compared, or wait for another one."""
    if not found.runs and not found.unreadable:
        return (
            f'<p>No run in {escape(format_path(root))} yet. Choose a preset on the <a href="?">Plan tab</a> and press '
            "Launch, or start one with <code>longfit train PRESET</code>.</p>"
        )
    rows = [_row(run, facts.get(run.id), is_marked=run.id in marked, now=now) for run in found.runs]
    table = list_html(_COLUMNS, rows, caption=f"Newest first, in {format_path(root)}", kind="runs") if rows else ""
    return table + "".join(
        f'<p class="issue error"><strong>{escape(path.name)}</strong> cannot be read: {escape(why)}</p>'
        for path, why in found.unreadable
    )


def _row(run: RunSnapshot, facts: RunFacts | None, *, is_marked: bool, now: float) -> tuple[str, ...]:
    state, view = run.state, status_view(run.state, now=now)
    steps = f"{state.step:,} of {state.total_steps:,}" if state.total_steps else "-"
    speed = facts.last_speed if facts else None
    folder = f'<code title="{escape(str(run.paths.path))}">{escape(run.id)}</code>'
    name = link_html(
        run.config.name, act="open", of=run.id, href="?" + urlencode({"run": run.id}), says=f"open {run.id}"
    )
    word = f'<strong class="state role-{view.color_role}">{view.word}</strong> <span>{escape(view.detail)}</span>'
    return (
        name, word, steps, format_loss(facts.last_loss if facts else None),
        format_tokens_per_second(speed) if speed is not None else "n/a",
        format_date(state.created_at) if state.created_at else "-", folder,
        _buttons(run, facts, is_final=view.is_final, is_marked=is_marked),
    )  # fmt: skip


def _buttons(run: RunSnapshot, facts: RunFacts | None, *, is_final: bool, is_marked: bool) -> str:
    """Only what can be done now; why a run that ended cannot be resumed stands in its place."""
    buttons = []
    if run.is_live:
        words = "Stop now" if run.state.status == "stopping" else "Save and stop"
        buttons.append(button_html(words, act="stop", of=run.id, says=f"{words}: {run.id}"))
    elif is_final and run.state.status != "done" and facts is not None:
        if facts.obstacle:
            buttons.append(f'<span class="aside">no resume: {escape(facts.obstacle)}</span>')
        else:
            where = run.state.last_checkpoint or "the beginning"
            buttons.append(button_html("Resume", act="resume", of=run.id, says=f"resume {run.id} from {where}"))
    says = f"{'do not ' if is_marked else ''}compare {run.id}"
    buttons.append(button_html("Compare", act="compare", of=run.id, says=says, is_pressed=is_marked))
    return f'<div class="buttons">{"".join(buttons)}</div>'


def waiting_html(run_id: str) -> str:
    return f'<p role="status">Compare {escape(run_id)} with: press Compare of another run.</p>'


def comparison_html(first: SeenRun, second: SeenRun, *, ids: tuple[str, str]) -> str:
    """Losses laid over each other, results, and the settings that differ. Runs go by the last four letters there."""
    names = tuple(f"{place} {run_id[-4:]}" for place, run_id in zip(("first", "second"), ids, strict=True))
    chart = line_chart_svg(
        [
            Series(name=name, points=[(point.step, point.mean) for point in run.loss.smooth.visible()], index=index)
            for index, (name, run) in enumerate(zip(names, (first, second), strict=True))
        ],
        x_label="step", y_label="loss, smoothed",
    )  # fmt: skip
    different = setting_rows(first.config, second.config)
    settings = text_table_html(("setting", *names), different, caption="Settings that differ")
    return (
        f"<h3>{escape(ids[0])} and {escape(ids[1])}</h3>"
        f'<div class="side-by-side"><div class="wide">{chart or "<p>Neither run has logged a loss yet.</p>"}</div>'
        f"{text_table_html(('figure', *names), result_rows(first, second), caption='Results')}"
        f"{settings if different else '<p>All settings are the same.</p>'}</div>"
    )
