"""The Runs and Presets screens, and moving between all."""

from app.services.runs import list_runs
from app.tui.app import LongfitApp
from app.tui.screens.plan import PlanScreen
from app.tui.screens.run import RunScreen
from tests.app.runs import make_run
from tests.app.tui.conftest import screen_text, settle, words
from tests.app.tui.fakes import OTHER, PRESET


async def test_runs_are_listed_with_their_state_and_open_on_enter(services, tmp_path):
    make_run(tmp_path, status="failed")
    services.runs = lambda: list_runs(tmp_path)
    app = LongfitApp(services, preset=PRESET)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("3")
        await settle(pilot)
        text = screen_text(app)
        for fact in ("FAILED", "40/100", "8,192", "out of memory", "20261129-120000-qwen2.5-7b-8k-a3f1"):
            assert fact in text, fact
        await pilot.press("enter")
        await pilot.pause(0.5)
        assert isinstance(app.screen, RunScreen)


async def test_no_runs_says_how_to_get_one(services, tmp_path):
    services.runs = lambda: list_runs(tmp_path)
    app = LongfitApp(services, preset=PRESET)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("2")
        await pilot.pause(0.2)
        assert isinstance(app.screen, PlanScreen)
        assert "There is no run yet" in words(app)
        await pilot.press("3")
        await settle(pilot)
        assert "No runs here yet" in screen_text(app)


async def test_two_opens_the_newest_run(services, tmp_path):
    run_dir = make_run(tmp_path)
    services.runs = lambda: list_runs(tmp_path)
    app = LongfitApp(services, preset=PRESET)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await pilot.pause(0.6)
        assert app.screen.feed.run.path == run_dir.resolve()
        await pilot.press("1", "2")
        await pilot.pause(0.2)
        assert isinstance(app.screen, RunScreen)


async def test_presets_show_verdict_and_file_and_load_into_the_plan(services):
    app = LongfitApp(services, preset=PRESET)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4")
        await settle(pilot)
        text = screen_text(app)
        for fact in (PRESET.name, OTHER.name, "TIGHT 98 %", "1xA10", "max_length: 8192"):
            assert fact in text, fact
        await pilot.press("down", "enter")
        await settle(pilot)
        assert isinstance(app.screen, PlanScreen)
        assert app.screen.draft.preset == OTHER
        assert "[red]odd[/red] preset" in screen_text(app)
