"""The command palette: every key of the screen, every preset and theme; names are text."""

import pytest

from app.tui.themes import THEMES
from planner.errors import ConfigError
from tests.app.tui.conftest import screen_text, settle, until
from tests.app.tui.fakes import OTHER, PRESET


async def search(pilot, typed):
    await pilot.press("ctrl+p")
    await pilot.pause(0.2)
    await pilot.press(*typed)
    await pilot.pause(0.5)


async def test_a_preset_is_loaded_by_its_name(app):
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await search(pilot, "odd")
        await until(pilot, "[red]odd[/red] preset", seconds=10)
        await pilot.press("enter")
        await until(pilot, lambda app: app.draft.preset == OTHER, seconds=10)


@pytest.mark.parametrize("fact", ["half the length", "three steps of the true shape"])
async def test_keys_of_the_screen_are_there_by_their_meaning(app, fact):
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await search(pilot, [key if key != " " else "space" for key in fact[:9]])
        await until(pilot, fact, seconds=10)


async def test_a_theme_is_taken(app):
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await search(pilot, [key if key != "-" else "minus" for key in "colour-blind"])
        await pilot.press("enter")
        await until(pilot, lambda app: app.theme == "longfit-colour-blind", seconds=10)
        assert app.theme in {theme.name for theme in THEMES}


async def test_a_preset_that_cannot_be_read_leaves_the_keys(app, services):
    def broken():
        raise ConfigError("x.yaml is not a preset.")

    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        services.presets = broken
        await search(pilot, "launch")
        await until(pilot, "launch it on this machine", seconds=10)
        assert PRESET.description not in screen_text(app)
