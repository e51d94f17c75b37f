"""Rows written in place: the cursor stays on its row, and a column that grows is never painted cut."""

from textual.app import App

from app.tui.widgets.plain_table import PlainTable
from tests.app.tui.conftest import screen_text


class Tabled(App[None]):
    def compose(self):
        yield PlainTable(("key", "what"), id="table")


async def test_the_cursor_stays_on_its_row():
    app = Tabled()
    async with app.run_test(size=(40, 8)) as pilot:
        table = app.query_one(PlainTable)
        table.show_rows([(key, (key, "-")) for key in "abc"])
        table.move_cursor(row=2)
        table.show_rows([(key, (key, "-")) for key in "xca"])
        await pilot.pause()
        assert table.selected_key == "c"


async def test_lines_painted_before_a_column_grew_are_painted_anew():
    app = Tabled()
    async with app.run_test(size=(40, 8)) as pilot:
        table = app.query_one(PlainTable)
        table.show_rows([("a", ("a", "word"))])
        await pilot.pause()
        table.write("a", ("a", "a longer word"))
        for line in range(table.size.height):  # as a slow terminal would, before widths are measured
            table.render_line(line)
        await pilot.pause()
        assert "a longer word" in screen_text(app)


class Filled(App[None]):
    def compose(self):
        yield PlainTable(("key", "what", "why"), id="table", fills=("what", "why"))


async def test_the_last_columns_share_the_room_and_longer_texts_end_in_an_ellipsis():
    app = Filled()
    async with app.run_test(size=(100, 8)) as pilot:
        app.query_one(PlainTable).show_rows([("a", ("a", "long " * 30, "reason " * 30))])
        await pilot.pause()
        line = next(line for line in screen_text(app).splitlines() if "long" in line)
        assert len(line) == 100
        assert line.count("…") == 2
        await pilot.resize_terminal(50, 8)
        await pilot.pause()
        assert "reason" not in screen_text(app)


async def test_markup_in_a_cell_is_text():
    app = Tabled()
    async with app.run_test(size=(40, 8)) as pilot:
        app.query_one(PlainTable).show_rows([("a", ("a", "[red]x[/red]"))])
        await pilot.pause()
        assert "[red]x[/red]" in screen_text(app)
