"""docs/terminal.md names every key of every screen, in the words of the help."""

from pathlib import Path

import pytest
from textual.binding import Binding

from app.tui.screens.data import DataScreen
from app.tui.screens.plan import PlanScreen
from app.tui.screens.presets import PresetsScreen
from app.tui.screens.run import RunScreen
from app.tui.screens.runs import RunsScreen

PAGE = (Path(__file__).parents[3] / "docs" / "terminal.md").read_text("utf-8")
NAMES = {
    "slash": "`/`", "equals_sign": "`=`", "enter": "Enter", "escape": "Esc", "left_square_bracket": "`[`",
    "right_square_bracket": "`]`", "left_curly_bracket": "`{`", "right_curly_bracket": "`}`",
}  # fmt: skip


@pytest.mark.parametrize("screen", [PlanScreen, RunScreen, RunsScreen, PresetsScreen, DataScreen])
def test_every_key_is_on_the_page(screen):
    bindings = [binding for binding in screen.BINDINGS if isinstance(binding, Binding)]
    assert bindings
    for binding in bindings:
        key = binding.key.split(",")[0]
        row = f"| {NAMES.get(key, f'`{key}`')} | {binding.tooltip or binding.description} |"
        assert row in PAGE, row
