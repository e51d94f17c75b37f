"""A list whose lines a filter narrows and one of whose lines can be marked: the Presets and the Runs screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.screen import Screen
from textual.widgets import Input

from app.tui.widgets.plain_table import PlainTable


class FilteredScreen(Screen[None]):
    """Its one table is a PlainTable. A subclass binds ``filter`` and ``clear``, and shows its rows in ``show_rows``."""

    NOUN: ClassVar[str]  # of one line: "run"

    def __init__(self) -> None:
        super().__init__()
        self.marked = ""  # key of the first of two to compare
        self.words = ""  # the filter

    def filter_field(self) -> Input:
        """Hidden until ``/`` is pressed."""
        words = "words that a line must have; Enter goes to the list"
        return Input(id=f"{self.NOUN}-filter", compact=True, placeholder=words)

    def show_rows(self) -> None:
        """Once more, after the filter or the mark changed."""
        raise NotImplementedError

    def show_filtered(self, rows: Sequence[tuple[str, tuple[str, ...]]], *, title: str, subtitle: str) -> None:
        """(key, texts) of every line; ``subtitle`` while nothing is marked."""
        wanted = self.words.lower().split()
        shown = [(key, texts) for key, texts in rows if all(word in " ".join(texts).lower() for word in wanted)]
        table = self.query_one(PlainTable)
        table.show_rows(shown)
        table.border_title = title if len(shown) == len(rows) else f"{title}, {len(shown)} of {len(rows)}"
        table.border_subtitle = f"= on a second {self.NOUN} compares" if self.marked else subtitle

    def on_mount(self) -> None:
        self.query_one(PlainTable).focus()

    def action_filter(self) -> None:
        field = self.query_one(f"#{self.NOUN}-filter", Input)
        field.display = True
        field.focus()

    def on_input_changed(self, message: Input.Changed) -> None:
        self.words = message.value
        self.show_rows()

    def on_input_submitted(self) -> None:
        self.query_one(PlainTable).focus()

    def action_clear(self) -> None:
        field = self.query_one(f"#{self.NOUN}-filter", Input)
        field.value, field.display, self.marked = "", False, ""
        self.query_one(PlainTable).focus()
        self.show_rows()
