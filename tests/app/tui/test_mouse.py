"""Planning by mouse alone: screens, fields, bars, rows, footer."""

from textual.widgets._footer import FooterKey

from app.tui.screens.data import DataScreen
from app.tui.screens.dialogs import PickerScreen, TextScreen
from app.tui.screens.paste import PasteScreen
from app.tui.screens.plan import PlanScreen
from app.tui.screens.presets import PresetsScreen
from app.tui.widgets.alternatives import AlternativesTable
from app.tui.widgets.setup_form import SetupForm
from tests.app.tui.conftest import screen_text, settle, until


async def test_names_in_the_first_line_lead_to_their_screens(app):
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        line = screen_text(app).splitlines()[0]
        for name, screen in (("4 Presets", PresetsScreen), ("5 Data", DataScreen), ("1 Plan", PlanScreen)):
            await pilot.click("TopBar", offset=(line.index(name) + 1, 0))
            await until(pilot, lambda app, screen=screen: isinstance(app.screen, screen), seconds=10)


async def test_switches_and_lists_of_the_form_take_clicks(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        rows = app.screen.query_one(SetupForm)._rows
        await pilot.click(rows["gradient_checkpointing"].control)
        assert app.screen.draft.overrides == {"gradient_checkpointing": False}
        await pilot.click(rows["gpu"].control)
        await until(pilot, lambda app: isinstance(app.screen, PickerScreen), seconds=10)
        options = app.screen.query_one("OptionList")
        await pilot.click(options, offset=(3, options.option_count - 1))
        await until(pilot, lambda app: isinstance(app.screen, PlanScreen), seconds=10)
        assert app.screen.draft.gpu == "H200"


async def test_the_bar_opens_to_the_terms_of_what_is_used(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.click("#bars", offset=(20, 0))
        await until(pilot, lambda app: isinstance(app.screen, TextScreen), seconds=10)
        assert "= allocated" in screen_text(app)


async def test_a_second_click_on_a_recommendation_applies_it(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        for _ in range(2):
            await pilot.click(AlternativesTable, offset=(6, 3))
            await pilot.pause(0.2)
        assert app.screen.draft.overrides == {"fused_loss": True}


async def test_keys_of_the_footer_are_buttons(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        paste = next(key for key in app.screen.query(FooterKey) if key.description == "paste")
        await pilot.click(paste)
        await until(pilot, lambda app: isinstance(app.screen, PasteScreen), seconds=10)
