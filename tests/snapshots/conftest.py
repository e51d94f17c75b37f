"""What every snapshot of a screen shares: a world that stands still, and the comparison.

A test builds its app on fakes with fixed contents and calls ``check_screen(app, "plan")`` once the screen has settled:

    @every_size
    @every_theme
    async def test_plan(size, theme, check_screen):
        app = LongfitApp(FakeServices(), preset=PRESET, theme=theme)
        async with app.run_test(size=size) as pilot:
            await settle(pilot)
            check_screen(app, "plan")

The committed pictures lie in tests/snapshots/screens. After an intended change:

    pytest tests/snapshots --update-snapshots && git diff tests/snapshots/screens
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.snapshots import screen_check

_OF_THE_USER = ("NO_COLOR", "SSH_CONNECTION", "TMUX", "LONGFIT_THEME", "LONGFIT_RUNS", "LONGFIT_CACHE")


@pytest.fixture(autouse=True)
def standing_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One time zone, a home folder of its own (paths below it are shown with ~), nothing of the user's settings."""
    for name in _OF_THE_USER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def check_screen(request: pytest.FixtureRequest) -> Callable[[Any, str], None]:
    """``check_screen(app, name)``: fails with the difference; with --update-snapshots it writes the picture."""
    update = bool(request.config.getoption("--update-snapshots"))
    return lambda app, name: screen_check.check_screen(app, name, update=update)
