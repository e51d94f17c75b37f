"""The mechanism of the snapshots itself: cells and styles as text, and a failure that shows what is other."""

import pytest
from textual.app import App
from textual.widgets import Static

from tests.snapshots.screen_check import check_screen
from tests.snapshots.screen_grid import screen_grid, text_rows


class OneLine(App[None]):
    def __init__(self, words):
        super().__init__()
        self.words = words

    def compose(self):
        yield Static(self.words)


async def grid_of(words):
    app = OneLine(words)
    async with app.run_test(size=(12, 2)) as pilot:
        await pilot.pause()
        return screen_grid(app)


async def test_a_grid_holds_every_cell_and_its_style():
    grid = await grid_of("ab [b]cd[/b]")
    assert text_rows(grid) == ["ab cd       ", " " * 12]
    styles, rows = grid.split("\nstyles\n")[1].split("rows\n")
    first, bold = styles.splitlines()[:2]
    assert bold.replace("  B", "  A").removesuffix(" bold") == first
    assert rows.splitlines()[0].startswith("  A3 B2 ")


async def test_wide_characters_count_two_cells():
    grid = await grid_of("表b")
    assert text_rows(grid)[0] == "表b" + " " * 9
    assert sum(int(run[1:]) for run in grid.splitlines()[-2].split()) == 12


async def test_a_screen_that_changed_is_named_with_its_words(tmp_path):
    app = OneLine("loss 1.2")
    async with app.run_test(size=(12, 2)) as pilot:
        await pilot.pause()
        with pytest.raises(pytest.fail.Exception, match="missing"):
            check_screen(app, "one", update=False, folder=tmp_path)
        check_screen(app, "one", update=True, folder=tmp_path)
        check_screen(app, "one", update=False, folder=tmp_path)
        app.query_one(Static).update("loss 1.3")
        await pilot.pause()
        with pytest.raises(pytest.fail.Exception, match=r"other words(?s:.*)\+loss 1\.3"):
            check_screen(app, "one", update=False, folder=tmp_path)
        app.query_one(Static).update("[b]loss 1.2[/b]")
        await pilot.pause()
        with pytest.raises(pytest.fail.Exception, match="other styles"):
            check_screen(app, "one", update=False, folder=tmp_path)
