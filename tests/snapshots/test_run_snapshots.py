"""The Run, Runs and Compare screens, cell by cell, in two sizes and every theme."""

from dataclasses import replace

import pytest

from app.services.runs import list_runs
from app.tui.app import LongfitApp
from core.run.config_file import write_config
from tests.app.plans import run_config
from tests.app.runs import T0, make_run
from tests.app.tui.conftest import drawn, settle
from tests.app.tui.fakes import PRESET, FakeServices
from tests.snapshots.screen_check import check_themes, every_size

pytestmark = pytest.mark.snapshot


@pytest.fixture
def app(tmp_path):
    """A live run on the screen, a failed one beside it."""
    services = FakeServices()
    services.now = lambda: T0 + 100
    root = tmp_path / "runs"
    live, failed = make_run(root), make_run(tmp_path / "other", status="failed")
    write_config(failed, replace(run_config(world=2, name="other"), max_length=4096, learning_rate=1e-5))
    for run in (live, failed):
        (run / "env.json").write_text('{"host": "gpu01", "device": "cuda"}')
    failed.rename(root / "20261128-090000-other-b7c2")
    services.runs = lambda: list_runs(root)
    return LongfitApp(services, preset=PRESET, run_dir=live)


@every_size
async def test_run(app, size, check_screen):
    async with app.run_test(size=size) as pilot:
        await drawn(pilot)
        await check_themes(pilot, check_screen, "run")


@every_size
async def test_failed_run(app, size, check_screen, tmp_path):
    app.run_dir = tmp_path / "runs" / "20261128-090000-other-b7c2"
    async with app.run_test(size=size) as pilot:
        await drawn(pilot)
        await check_themes(pilot, check_screen, "run-failed")


@every_size
async def test_runs(app, size, check_screen):
    async with app.run_test(size=size) as pilot:
        await pilot.press("3")
        await settle(pilot)
        await check_themes(pilot, check_screen, "runs")


@every_size
async def test_compare(app, size, check_screen):
    async with app.run_test(size=size) as pilot:
        await pilot.press("3")
        await settle(pilot)
        await pilot.press("equals_sign", "down", "equals_sign")
        await pilot.pause(0.3)
        await settle(pilot)
        await check_themes(pilot, check_screen, "compare")
