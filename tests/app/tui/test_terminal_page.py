"""docs/terminal.md names every key of the run side, in the words of the help."""

from pathlib import Path

import pytest
from textual.binding import Binding

from app.tui.screens.run import RunScreen
from app.tui.screens.runs import RunsScreen

PAGE = (Path(__file__).parents[3] / "docs" / "terminal.md").read_text("utf-8")
NAMES = {"slash": "`/`", "equals_sign": "`=`", "enter": "Enter", "escape": "Esc"}


@pytest.mark.parametrize("screen", [RunScreen, RunsScreen])
def test_every_key_is_on_the_page(screen):
    bindings = [binding for binding in screen.BINDINGS if isinstance(binding, Binding)]
    assert bindings
    for binding in bindings:
        row = f"| {NAMES.get(binding.key, f'`{binding.key}`')} | {binding.tooltip or binding.description} |"
        assert row in PAGE, row
