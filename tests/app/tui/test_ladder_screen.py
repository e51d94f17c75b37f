"""The step-by-step table on the Plan screen: the rows of `plan --ladder`, and a step taken over gives its memory."""

from app.services.planning import ladder_for, plan_preset
from app.services.presets import load_preset
from app.tui.app import LongfitApp
from app.tui.screens.ladder import LadderScreen
from app.tui.screens.plan import PlanScreen
from app.tui.widgets.plain_table import PlainTable
from app.views.format import format_bytes
from planner.errors import ConfigError
from tests.app.tui.conftest import screen_text, settle, until, words

NAME = "qwen2.5-7b-16k-2x24g"


async def test_rows_are_those_of_the_ladder_and_a_step_is_taken_over():
    ladder = ladder_for(plan_preset(NAME).resolved)
    app = LongfitApp(preset=load_preset(NAME))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("t")
        await until(pilot, "The real minimum of this method", seconds=20)
        await pilot.pause()
        text = screen_text(app, "#rungs")
        for rung in ladder.rungs:
            assert format_bytes(rung.used_bytes) in text
        await pilot.press("down", "down")
        assert "+ fused loss" in words(app, "#ladder-words")
        await pilot.press("enter")
        await until(pilot, lambda app: isinstance(app.screen, PlanScreen), seconds=10)
        assert app.screen.plan.worst_gpu.used_bytes == ladder.rungs[2].used_bytes


async def test_a_ladder_that_cannot_be_is_said(app, services):
    def refuse(resolved):
        raise ConfigError("There is no ladder here.", fix="Use a GPU.")

    services.ladder = refuse
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("t")
        await until(pilot, "There is no ladder here. Use a GPU.", seconds=10)
        assert app.screen.query_one(PlainTable).row_count == 0
        await pilot.press("enter", "escape")
        await pilot.pause()
        assert not isinstance(app.screen, LadderScreen)
