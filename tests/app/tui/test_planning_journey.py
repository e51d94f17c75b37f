"""The planning journey on the real planner: at every step the command that is shown, run with --json, says the same."""

import io
import json
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from textual import events
from textual.widgets import TextArea

from app.cli.main import main
from app.services.presets import load_preset
from app.tui.app import LongfitApp
from app.tui.screens.dialogs import AskScreen, PickerScreen
from app.tui.screens.paste import PasteScreen
from app.tui.screens.plan import PlanScreen
from app.tui.screens.presets import PresetsScreen
from app.tui.widgets.setup_form import SetupForm
from app.views.format import format_bytes
from tests.app.tui.conftest import screen_text, settle, until, words

PASTED = Path(__file__).parents[2] / "data" / "swift_commands" / "two_gpu_ulysses.txt"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer_of(command):
    """What the command line that the screen shows answers to --json, as a plan."""
    _, _, *arguments = shlex.split(command)
    with redirect_stdout(io.StringIO()) as out:
        code = main(["plan", *arguments, "--json"])
    answer = json.loads(out.getvalue())
    assert code == (3 if answer["verdict"] == "over" else 0)
    return answer


async def assert_same(pilot):
    """Verdict, bytes of each GPU, speed, host and disk on the screen are those of `plan --json`."""
    await settle(pilot)
    screen = pilot.app.screen
    answer = answer_of(screen.command)
    worst = max(answer["gpus"], key=lambda gpu: gpu["peak"]["used_bytes"] - gpu["usable_bytes"])
    low, high = worst["peak"]["band_bytes"]
    text = words(pilot.app, "#plan-panel")
    used, usable = worst["peak"]["used_bytes"], worst["usable_bytes"]
    sentence = f"{format_bytes(used)} ({format_bytes(low)} to {format_bytes(high)}) of {format_bytes(usable)} usable"
    assert f"{answer['verdict'].upper()}: {sentence}" in text
    plan = screen.plan
    assert [gpu.used_bytes for gpu in plan.gpus] == [gpu["peak"]["used_bytes"] for gpu in answer["gpus"]]
    assert plan.tokens_per_second == answer["tokens_per_second"]
    assert (plan.host_bytes, plan.disk_bytes) == (answer["host"]["bytes"], answer["disk"]["bytes"])
    assert f"$ {screen.command}"[:70] in screen_text(pilot.app, "#command")
    return answer


async def choose_gpu(pilot, typed):
    """Out of the list. What is planned for this machine differs from one moment to the next: its memory is in use."""
    pilot.app.screen.query_one(SetupForm).focus_field("gpu")
    await pilot.press("enter")
    await until(pilot, lambda app: isinstance(app.screen, PickerScreen), seconds=10)
    await pilot.press(*typed, "enter")
    await until(pilot, lambda app: isinstance(app.screen, PlanScreen), seconds=10)
    await pilot.press("escape")


async def test_every_step_shows_the_numbers_of_plan_json():
    app = LongfitApp(preset=load_preset("qwen3-4b-16k-1x16g"))
    async with app.run_test(size=(120, 40)) as pilot:
        before = await assert_same(pilot)
        found = app.screen.query_one("#alternatives").found
        assert [row.used_bytes for row in found] == [
            row["used_bytes"] for row in before["alternatives"] if row["changes"]
        ]

        await pilot.press("]")
        over = await assert_same(pilot)
        assert over["verdict"] == "over"

        await pilot.press("down", "a")
        applied = await assert_same(pilot)
        assert applied["verdict"] != "over"

        await choose_gpu(pilot, "h100-80g")
        other = await assert_same(pilot)
        assert other["gpus"][0]["usable_bytes"] > applied["gpus"][0]["usable_bytes"]

        app.screen.query_one(SetupForm).focus_field("per_device_train_batch_size")
        await pilot.press("2")
        await pilot.press("escape")
        await assert_same(pilot)

        await pilot.press("m")
        longest = await assert_same(pilot)
        assert longest["verdict"] != "over"
        await pilot.press("u")
        await assert_same(pilot)


async def test_a_pasted_command_is_planned_saved_and_found_among_the_presets():
    app = LongfitApp(preset=load_preset("qwen2.5-7b-8k-1x24g"))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("p")
        await until(pilot, lambda app: isinstance(app.screen, PasteScreen), seconds=10)
        app.screen.query_one(TextArea).post_message(events.Paste(PASTED.read_text()))
        await until(pilot, "carried over", seconds=20)
        await pilot.press("ctrl+o")
        await until(pilot, lambda app: isinstance(app.screen, PlanScreen), seconds=10)
        await choose_gpu(pilot, "h200")
        assert (await assert_same(pilot))["cluster"]["num_gpus"] == 2

        app.screen.change(app.screen.draft.set("max_length", 4096))
        await pilot.press("s")
        await until(pilot, lambda app: isinstance(app.screen, AskScreen), seconds=10)
        await pilot.press("enter")
        await until(pilot, lambda app: isinstance(app.screen, PlanScreen), seconds=10)

        await pilot.press("4")
        await until(pilot, lambda app: isinstance(app.screen, PresetsScreen), seconds=10)
        await pilot.press("/", *"mine", "enter", "enter")
        await until(pilot, lambda app: isinstance(app.screen, PlanScreen), seconds=10)
        await pilot.pause(0.3)
        await choose_gpu(pilot, "h200")
        answer = await assert_same(pilot)
        assert answer["preset"].endswith("-mine")
        assert app.screen.command.split()[2] == answer["preset"]
        assert app.screen.draft.get("max_length") == 4096
