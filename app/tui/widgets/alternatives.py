"""The recommendation table of the Plan screen: the configuration at hand, then what would be better, and why."""

from __future__ import annotations

from textual.widgets import DataTable

from app.tui.widgets.plain import cell
from app.views.format import format_gib, format_tokens_per_second
from app.views.parts import VERDICT_WORDS
from app.views.plan_view import AlternativeRow, alternative_rows, combination_of
from planner.types import Alternative, Plan

COLUMNS = ("rank", "gib", "verdict", "speed", "change", "why")
_HEADS = {"rank": "#", "gib": "   GiB"}


class AlternativesTable(DataTable):
    """``show_current`` draws at once, ``show_found`` when the search is done."""

    def __init__(self) -> None:
        super().__init__(id="alternatives", cursor_type="row", cell_padding=1)
        self.border_title = "Recommended"
        self.found: tuple[AlternativeRow, ...] = ()

    def on_mount(self) -> None:
        for key in COLUMNS:
            self.add_column(_HEADS.get(key, key), key=key)

    def show_current(self, plan: Plan) -> None:
        """The first row: what is set now, to compare with. Older findings stay until new ones come."""
        if "now" not in {key.value for key in self.rows}:
            self.clear()
            self.add_row(*[""] * len(COLUMNS), key="now")
        gib, rate = format_gib(plan.worst_gpu.used_bytes), format_tokens_per_second(plan.tokens_per_second)
        self._write("now", ("now", f"{gib:>6}", VERDICT_WORDS[plan.verdict], "1.00x", combination_of(plan), rate))

    def show_found(self, plan: Plan, alternatives: tuple[Alternative, ...]) -> None:
        """Everything but the configuration at hand, which is the first row already."""
        self.found = alternative_rows(plan, [found for found in alternatives if found.changes])
        cursor = self.cursor_row
        self.clear()
        self.show_current(plan)
        for row in self.found:
            key = str(row.rank)
            self.add_row(*[""] * len(COLUMNS), key=key)
            gib = f"{format_gib(row.used_bytes):>6}"
            self._write(key, (key, gib, row.verdict, row.speed, row.difference, row.why))
        self.move_cursor(row=min(cursor, self.row_count - 1))

    def _write(self, key: str, texts: tuple[str, ...]) -> None:
        for column, text in zip(COLUMNS, texts, strict=True):
            self.update_cell(key, column, cell(text), update_width=True)

    @property
    def selected(self) -> AlternativeRow | None:
        """The highlighted alternative; None on the row of the configuration at hand."""
        index = self.cursor_row - 1
        return self.found[index] if 0 <= index < len(self.found) else None
