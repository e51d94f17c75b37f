"""A DataTable of plain text whose rows are written in place: only what changed is drawn again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import OverflowMethod
from rich.text import Text
from textual.widgets import DataTable
from textual.widgets._data_table import CellKey

from app.tui.widgets.plain import visible

ROOM = 30  # columns that are enough to read a sentence by


class PlainTable(DataTable):
    """Columns are named by their keys; ``heads`` gives those whose title differs. Cells are never markup.

    ``fills``: the last columns, one or two, which share what the others leave; what is longer ends in an ellipsis.
    """

    def __init__(
        self,
        columns: tuple[str, ...],
        *,
        id: str,
        title: str = "",
        subtitle: str = "",
        heads: Mapping[str, str] | None = None,
        fills: tuple[str, ...] = (),
    ) -> None:
        super().__init__(id=id, cursor_type="row", cell_padding=1)
        self.border_title = title or None
        self.border_subtitle = subtitle or None
        self.column_names = columns
        for key in columns:
            self.add_column((heads or {}).get(key, key), key=key, width=ROOM if key in fills else None)
        self._num_filling = len(fills)

    def show_rows(self, rows: Iterable[tuple[str, tuple[str | Text, ...]]]) -> None:
        """(key, texts) of every row. The cursor stays on its row as long as that row stays."""
        wanted = list(rows)
        if [key.value for key in self.rows] != [key for key, _ in wanted]:
            selected = self.selected_key
            self.clear()
            for key, _ in wanted:
                self.add_row(*[""] * len(self.column_names), key=key)
            keys = [key for key, _ in wanted]
            if selected in keys:
                self.move_cursor(row=keys.index(selected))
        for key, texts in wanted:
            self.write(key, texts)

    def write(self, key: str, texts: tuple[str | Text, ...]) -> None:
        for column, text in zip(self.ordered_columns, texts, strict=True):
            shown = text if isinstance(text, Text) else Text(visible(text), no_wrap=True, overflow=self._overflow)
            if self.get_cell(key, column.key) != shown:
                self.update_cell(key, column.key, shown, update_width=shown.cell_len > column.content_width)

    @property
    def _overflow(self) -> OverflowMethod:
        return "crop" if getattr(self.app, "ascii_only", False) else "ellipsis"

    def on_resize(self) -> None:
        self._fill()

    def _fill(self) -> None:
        """The first of two gets three fifths; the second nothing where that would be too little to read."""
        if not self._num_filling:
            return
        split = len(self.ordered_columns) - self._num_filling
        others, filling = self.ordered_columns[:split], self.ordered_columns[split:]
        room = self.scrollable_content_region.width - sum(column.get_render_width(self) for column in others)
        padding = 2 * self.cell_padding
        shared = room - len(filling) * padding
        shares = (
            [room - padding] if len(filling) == 1 or shared < 2 * ROOM else [shared * 3 // 5, shared - shared * 3 // 5]
        )
        for column, share in zip(filling, [*shares, ROOM]):
            column.width = max(1, share)
        self._require_update_dimensions = True
        self._update_count += 1
        self.refresh()

    def _update_column_widths(self, updated_cells: set[CellKey]) -> None:
        """Textual (8.2) keeps painted lines until a cell changes: those painted before a column grew would stay cut.

        Widths are measured when the app is idle, so this happens on a slow machine only. To be removed when DataTable
        counts new widths as a change.
        """
        super()._update_column_widths(updated_cells)
        self._fill()
        self._update_count += 1
        self.refresh()

    @property
    def selected_key(self) -> str | None:
        if not self.row_count:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value
