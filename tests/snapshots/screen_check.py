"""A screen against its committed picture in tests/snapshots/screens; sizes and themes that every screen is held to."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from app.tui.themes import THEMES
from tests.snapshots.screen_grid import screen_grid, text_rows

FOLDER = Path(__file__).parent / "screens"
every_size = pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=("80x24", "120x40"))
every_theme = pytest.mark.parametrize("theme", [theme.name for theme in THEMES])


def check_screen(app: Any, name: str, *, update: bool, folder: Path = FOLDER) -> None:
    """Compare what the app shows with ``folder``/<name>-<size>-<theme>.txt, or write that file."""
    for field in app.screen.query(Input):
        field.cursor_blink = False
    grid = screen_grid(app)
    path = folder / f"{name}-{app.size.width}x{app.size.height}-{app.theme}.txt"
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(grid, encoding="utf-8")
        return
    if not path.is_file():
        pytest.fail(f"{path.name} is missing: pytest tests/snapshots --update-snapshots writes it", pytrace=False)
    known = path.read_text(encoding="utf-8")
    if grid != known:
        before, after = text_rows(known), text_rows(grid)
        what = "words" if before != after else "styles"
        if what == "styles":
            before, after = known.split("\n"), grid.split("\n")
        difference = "\n".join(difflib.unified_diff(before, after, path.name, "now", n=1, lineterm=""))
        pytest.fail(f"{path.name}: other {what}; --update-snapshots if this is meant\n{difference}", pytrace=False)


async def check_themes(pilot: Any, check: Callable[[Any, str], None], name: str) -> None:
    """The same screen in every theme. ``check`` is the fixture check_screen."""
    for theme in THEMES:
        pilot.app.theme = theme.name
        await pilot.pause(0.1)
        check(pilot.app, name)
