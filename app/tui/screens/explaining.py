"""Why?: what the Plan screen opens for the thing that has the focus, and the list of every number of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.tui.screens.dialogs import PickerScreen, TextScreen
from app.tui.widgets.alternatives import AlternativesTable
from app.tui.widgets.plan_panel import PlanPanel
from app.tui.widgets.setup_form import SetupForm
from app.views.number_view import number_rows, number_text
from app.views.plan_view import AlternativeRow

if TYPE_CHECKING:
    from textual.screen import Screen

    from planner.types import Plan


def explain_focused(screen: Screen, plan: Plan | None) -> None:
    """The help of a field, the reason of a recommendation, the terms of a part; the verdict when it is none of them."""
    focused, form = screen.focused, screen.query_one(SetupForm)
    key = form.focused_key()
    if key is not None:
        screen.app.push_screen(TextScreen(form.spec(key).label, form.help(key)))
    elif plan is None:
        return
    elif isinstance(focused, AlternativesTable) and focused.selected is not None:
        screen.app.push_screen(TextScreen(f"Recommendation {focused.selected.rank}", _reason(focused.selected)))
    else:
        part = screen.query_one(PlanPanel).selected_part if focused is not None and focused.id == "parts" else None
        explain(screen, plan, part or "verdict")


def explain(screen: Screen, plan: Plan, name: str) -> None:
    screen.app.push_screen(TextScreen(name, number_text(plan, name)))


def pick_number(screen: Screen, plan: Plan) -> None:
    """Any number of the plan, by typing a part of its name."""
    names = {row.label: row.name for row in number_rows(plan)}

    def show(label: str | None) -> None:
        if label is not None:
            explain(screen, plan, names[label])

    screen.app.push_screen(PickerScreen("Where does it come from?", tuple(names), ""), show)


def _reason(row: AlternativeRow) -> str:
    return f"{row.combination}\n\nwhy: {row.why}\n\nchanges: {row.changes_words}\n\n{row.verdict}, {row.speed}"
