"""The recommendation table of the Plan screen: the configuration at hand, then what would be better, and why."""

from __future__ import annotations

from app.tui.widgets.plain_table import PlainTable
from app.views.format import format_bytes, format_tokens_per_second
from app.views.parts import VERDICT_WORDS
from app.views.plan_view import AlternativeRow, alternative_rows, combination_of
from planner.types import Alternative, Plan

COLUMNS = ("rank", "used", "verdict", "speed", "change", "why")
NOW = "now"


class AlternativesTable(PlainTable):
    """``show_current`` draws at once, ``show_found`` when the search is done."""

    def __init__(self) -> None:
        super().__init__(
            COLUMNS, id="alternatives", title="Recommended", heads={"rank": "#", "used": "    used"},
            fills=("change", "why"),
        )  # fmt: skip
        self.found: tuple[AlternativeRow, ...] = ()

    def show_current(self, plan: Plan) -> None:
        """The first row: what is set now, to compare with. Older findings stay until new ones come."""
        if self.row_count:
            self.write(NOW, _current(plan))
        else:
            self.show_rows([(NOW, _current(plan))])

    def show_found(self, plan: Plan, alternatives: tuple[Alternative, ...]) -> None:
        """Everything but the configuration at hand, which is the first row already."""
        self.found = alternative_rows(plan, [found for found in alternatives if found.changes])
        self.show_rows([(NOW, _current(plan)), *((str(row.rank), _texts(row)) for row in self.found)])

    @property
    def selected(self) -> AlternativeRow | None:
        """The highlighted alternative; None on the row of the configuration at hand."""
        index = self.cursor_row - 1
        return self.found[index] if 0 <= index < len(self.found) else None


def _current(plan: Plan) -> tuple[str, ...]:
    rate = format_tokens_per_second(plan.tokens_per_second)
    return (
        NOW,
        f"{format_bytes(plan.worst_gpu.used_bytes):>8}",
        VERDICT_WORDS[plan.verdict],
        "1.00x",
        combination_of(plan),
        rate,
    )


def _texts(row: AlternativeRow) -> tuple[str, ...]:
    return (str(row.rank), f"{format_bytes(row.used_bytes):>8}", row.verdict, row.speed, row.difference, row.why)
