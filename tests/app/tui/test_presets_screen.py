"""The Presets screen: verdicts here and there, compare, load, save, duplicate, write as a file."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.services.importing.imported import import_text
from app.services.presets import load_preset
from app.tui.app import LongfitApp
from app.tui.screens.dialogs import AskScreen, PickerScreen, TextScreen
from app.tui.screens.plan import PlanScreen
from app.tui.screens.presets import PresetsScreen
from planner.errors import ConfigError
from tests.app import plans
from tests.app.tui.conftest import notices, screen_text, settle, until, words
from tests.app.tui.fakes import OTHER, PRESET


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def open_presets(pilot):
    await pilot.press("4")
    await until(pilot, lambda app: isinstance(app.screen, PresetsScreen), seconds=10)
    await settle(pilot)


async def test_each_preset_says_whether_it_fits_here_and_on_what_it_is_meant_for(app, services):
    def plan_here(preset):
        if preset is OTHER:
            raise ConfigError("No GPU [b]here[/b].")
        return plans.plan(tokens=16384)

    services.plan_here = plan_here
    async with app.run_test(size=(120, 40)) as pilot:
        await open_presets(pilot)
        text = words(app, "#presets")
        assert f"{PRESET.name} OVER 120 % TIGHT 98 % 1xA10 8192" in text
        assert "[red]odd[/red] preset No GPU [b]here[/b]. FITS" in text


async def test_compare_marks_one_and_shows_both_on_a_second(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await open_presets(pilot)
        await pilot.press("=")
        assert f"= {PRESET.name}" in screen_text(app)
        await pilot.press("=")
        assert f"= {PRESET.name}" not in screen_text(app)
        await pilot.press("=", "down", "=")
        await pilot.pause()
        assert isinstance(app.screen, TextScreen)
        assert "max_length: 8192 -> 4096" in screen_text(app)


async def test_what_differs_from_the_plan_at_hand(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("]")
        await open_presets(pilot)
        await pilot.press("v")
        await pilot.pause()
        assert "max_length: 8192 -> 16384" in screen_text(app)


async def test_save_writes_what_the_plan_screen_has_and_duplicate_the_preset_itself(app, home):
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("]")
        await open_presets(pilot)
        await pilot.press("s")
        await until(pilot, lambda app: isinstance(app.screen, AskScreen), seconds=10)
        assert "max_length: 16384" in words(app)
        await pilot.press("enter")
        await pilot.pause(0.3)
        await pilot.press("y")
        await until(pilot, lambda app: isinstance(app.screen, AskScreen), seconds=10)
        await pilot.press("enter")
        await pilot.pause(0.3)
    saved, copied = load_preset(f"{PRESET.name}-mine"), load_preset(f"{PRESET.name}-copy")
    assert saved.values == {**PRESET.values, "max_length": 16384}
    assert copied.values == PRESET.values
    assert Path(copied.path).parent == home / "config" / "longfit" / "presets"


OTHER_TOOLS = [pytest.param(tool, marks=pytest.mark.soak) for tool in ("swift", "axolotl", "llamafactory", "hf")]


@pytest.mark.parametrize("target", ["yaml", *OTHER_TOOLS])
async def test_written_files_come_back_as_the_same_preset(target, home):
    preset = load_preset("qwen2.5-7b-16k-2x24g")
    app = LongfitApp(preset=preset)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await open_presets(pilot)
        await pilot.press("/", *"7b-16k", "enter", "o")
        await until(pilot, lambda app: isinstance(app.screen, PickerScreen), seconds=10)
        await pilot.press(*target, "enter")
        await until(pilot, lambda app: isinstance(app.screen, AskScreen), seconds=20)
        await pilot.press("enter")
        await until(pilot, lambda app: isinstance(app.screen, PresetsScreen), seconds=10)
        (path,) = home.glob(f"{preset.name}*")
        back = import_text(path.read_text()).preset
        assert (back.name, back.values["max_length"]) == (preset.name, 16384)
        assert back.values["lora"]["rank"] == preset.values["lora"]["rank"]
        await pilot.press("o")
        await until(pilot, lambda app: isinstance(app.screen, PickerScreen), seconds=10)
        await pilot.press(*target, "enter")
        await until(pilot, lambda app: isinstance(app.screen, AskScreen), seconds=20)
        await pilot.press("enter")
        await pilot.pause(0.3)
        assert "exists already" in notices(app)


async def test_filter_keeps_lines_with_all_words_and_escape_shows_all(app):
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await open_presets(pilot)
        await pilot.press("/", *"odd", "enter")
        assert "Presets, 1 of 2" in screen_text(app)
        assert PRESET.name not in screen_text(app, "#presets")
        await pilot.press("enter")
        await until(pilot, lambda app: isinstance(app.screen, PlanScreen), seconds=10)
        await settle(pilot)
        assert app.draft.preset == OTHER
        assert "1 key differs from what was here; u takes it back." in notices(app)
        await pilot.press("u")
        assert app.draft.preset == PRESET
        await pilot.press("4")
        await pilot.pause()
        await pilot.press("escape")
        assert PRESET.name in screen_text(app, "#presets")


async def test_a_broken_preset_is_said_and_hides_no_other(app, services):
    async with app.run_test(size=(80, 24)) as pilot:
        await open_presets(pilot)
        services.unreadable_presets = lambda: (ConfigError("x.yaml is not a preset."),)
        await pilot.press("1", "4")
        await pilot.pause()
        assert "x.yaml is not a preset." in notices(app)
        assert PRESET.name in screen_text(app, "#presets")


async def test_a_preset_that_cannot_be_read_does_not_keep_the_interface_from_starting(home):
    folder = home / "config" / "longfit" / "presets"
    folder.mkdir(parents=True)
    (folder / "broken.yaml").write_text("a: [")
    (folder / "mine.yaml").write_text(
        Path(load_preset("demo-smollm2").path).read_text().replace("demo-smollm2", "mine")
    )
    app = LongfitApp()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await settle(pilot)
        assert app.draft.preset.name == "mine"
        await open_presets(pilot)
        assert "broken.yaml" in notices(app)


async def test_control_characters_of_a_preset_do_not_reach_the_terminal(services):
    hostile = replace(PRESET, name="\x1b]0;x\x07evil", description="\x1b[2J")
    services.presets = lambda: (hostile,)
    app = LongfitApp(services, preset=PRESET)
    async with app.run_test(size=(120, 40)) as pilot:
        await open_presets(pilot)
        assert "\x1b" not in screen_text(app)
        assert "^[]0;x^Gevil" in screen_text(app)
