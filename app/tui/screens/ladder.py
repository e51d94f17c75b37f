"""The ladder: what each optimization changes, one after the other, and where it ends. Opened by the Plan screen."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable

from app.tui.services import Services
from app.tui.widgets.plain import Plain
from app.tui.widgets.plain_table import PlainTable
from app.views.format import format_bytes, format_count, format_signed_bytes
from app.views.ladder_view import NOT_RUNNABLE, LadderRow, floor_lines, ladder_rows
from planner.errors import LongfitError

if TYPE_CHECKING:
    from planner.ladder import Ladder, Rung

Changes = tuple[tuple[str, Any], ...]


@dataclass
class Climbed(Message):
    """None: ``problem`` says why there is no ladder."""

    ladder: Ladder | None
    measured: Mapping[str, int]
    problem: str = ""


class LadderScreen(ModalScreen[Changes | None]):
    """Answers with the preset keys that lead from the draft to the chosen rung, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,t", "leave", "leave")]

    def __init__(self, services: Services, resolved: Any) -> None:
        super().__init__()
        self.services = services
        self.resolved = resolved
        self._rungs: tuple[Rung, ...] = ()
        self._rows: tuple[LadderRow, ...] = ()

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="ladder") as box:
            box.border_title = "Step by step"
            box.border_subtitle = "Enter takes a step over, Esc leaves it"
            yield PlainTable(
                ("#", "used", "change", "verdict", "speed", "step"), id="rungs",
                heads={"used": "     used", "change": "   change", "speed": "tokens/s"}, fills=("step",),
            )  # fmt: skip
            with VerticalScroll(id="ladder-words", can_focus=True):
                yield Plain("working it out ...", id="ladder-text")

    def on_mount(self) -> None:
        self.query_one(PlainTable).focus()
        threading.Thread(target=self._climb, daemon=True).start()

    def _climb(self) -> None:
        try:
            ladder, measured = self.services.ladder(self.resolved)
        except LongfitError as error:
            self.post_message(Climbed(None, {}, str(error)))
            return
        self.post_message(Climbed(ladder, measured))

    def on_climbed(self, message: Climbed) -> None:
        if message.ladder is None:
            self.query_one("#ladder-text", Plain).update(message.problem)
            return
        self._ladder = message.ladder
        self._rungs, self._rows = message.ladder.rungs, ladder_rows(message.ladder, message.measured)
        self.query_one(PlainTable).show_rows(
            (str(number), _texts(number, row)) for number, row in enumerate(self._rows, start=1)
        )
        self._show_words()

    def on_data_table_row_highlighted(self) -> None:
        if self._rows:
            self._show_words()

    def _show_words(self) -> None:
        """What the highlighted step changed, then where the ladder ends."""
        row = self._rows[self.query_one(PlainTable).cursor_row]
        words = [f"{row.step}: {row.changed or 'the plainest form of this method'}; peak at: {row.peak}."]
        if row.measured_used_bytes is not None:
            words.append(f"A rehearsal of it used {format_bytes(row.measured_used_bytes)}.")
        if not row.runnable:
            words.append(f"It is {NOT_RUNNABLE}.")
        self.query_one("#ladder-text", Plain).update(
            Content("\n".join([" ".join(words), "", *floor_lines(self._ladder)]))
        )

    def on_data_table_row_selected(self, message: DataTable.RowSelected) -> None:
        if not self._rows:
            return
        row = self.query_one(PlainTable).cursor_row
        if self._rows[row].runnable:
            self.dismiss(self.services.changes_to(self.resolved, self._rungs[row]))
        else:
            self.notify(f"{self._rows[row].step}: {NOT_RUNNABLE}.", markup=False)

    def action_leave(self) -> None:
        self.dismiss(None)


def _texts(number: int, row: LadderRow) -> tuple[str, ...]:
    change = "" if number == 1 else format_signed_bytes(row.change_bytes)
    return (
        str(number), f"{format_bytes(row.used_bytes):>9}", f"{change:>9}", row.verdict,
        f"{format_count(row.tokens_per_second):>8}", row.step if row.runnable else f"{row.step} ({NOT_RUNNABLE})",
    )  # fmt: skip
