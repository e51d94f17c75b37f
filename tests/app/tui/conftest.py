"""What the Pilot tests share: an app on fakes, and the text of a screen."""

from __future__ import annotations

import pytest

from app.tui.app import LongfitApp
from tests.app.runs import make_run
from tests.app.tui.fakes import PRESET, FakeServices


@pytest.fixture
def services():
    return FakeServices()


@pytest.fixture
def app(services):
    return LongfitApp(services, preset=PRESET)


@pytest.fixture
def run_dir(tmp_path):
    return make_run(tmp_path)


def screen_text(app, selector: str = "") -> str:
    """What stands on the screen, or in one of its panes, line by line, without styles."""
    strips = app.screen._compositor.render_strips()
    lines = ["".join(segment.text for segment in strip) for strip in strips]
    if selector:
        region = app.screen.query_one(selector).region
        lines = [line[region.x : region.right] for line in lines[region.y : region.bottom]]
    return "\n".join(lines)


def words(app, selector: str = "") -> str:
    """The same in one line, without frames and folding."""
    return " ".join(screen_text(app, selector).replace("│", " ").split())


def notices(app) -> str:
    """The texts of all notices on the screen, whole: a narrow terminal folds them."""
    return "\n".join(notification.message for notification in app._notifications)


async def settle(pilot) -> None:
    """Until the debounced search is done and drawn."""
    await pilot.pause(0.25)
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def drawn(pilot) -> None:
    """Until what the run's files hold now is on the Run screen."""
    await pilot.pause(0.3)
    pilot.app.screen._poll()
    await pilot.app.workers.wait_for_complete()
    await pilot.pause(0.1)
