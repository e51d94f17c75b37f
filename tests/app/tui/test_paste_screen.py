"""Pasting on the Plan screen: a dirty command becomes findings and a preset that plans; nothing is dropped."""

import json
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Button, TextArea

from app.cli.main import main
from app.services.presets import load_preset
from app.tui.app import LongfitApp
from app.tui.screens.dialogs import AskScreen
from app.tui.screens.paste import PasteScreen
from app.tui.screens.plan import PlanScreen
from planner.plan_json import plan_to_dict
from tests.app.tui.conftest import settle, until, words

FOLDER = Path(__file__).parents[2] / "data" / "swift_commands"
COMMAND = "swift sft --model Qwen/Qwen3-8B --dataset [red]rows[/red].jsonl --max_length 1024 --use_dora true --maxlen 3"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def paste(pilot, text, *, fact="carried over"):
    """Open the dialog and paste as a terminal does; until the findings are there."""
    await pilot.press("p")
    await until(pilot, lambda app: isinstance(app.screen, PasteScreen), seconds=10)
    await pilot.pause()
    pilot.app.screen.query_one(TextArea).post_message(events.Paste(text))
    await until(pilot, fact, seconds=20)


def findings(app):
    return app.screen.query_one("#paste-words").content.plain


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_findings_show_severity_and_way_out_for_every_flag(app, size):
    async with app.run_test(size=size) as pilot:
        await paste(pilot, COMMAND)
        text = findings(app)
        for fact in (
            "Not as written:", "x --use_dora true", "Not understood:", "? --maxlen 3", "Did you mean", "Carried over:",
            "> --max_length 1024 -> max_length: 1024", "[red]rows[/red].jsonl",
        ):  # fmt: skip
            assert fact in text, fact
        assert text.index("Not as written") < text.index("Not understood") < text.index("Carried over")


@pytest.mark.parametrize("name", ["two_gpu_ulysses", "one_gpu_everything"])
async def test_use_loads_a_preset_whose_command_can_be_run(name, home, capsys):
    """The dirty command of an article, and the numbers of `plan --json` for the command that the screen then shows."""
    app = LongfitApp(preset=load_preset("qwen2.5-7b-8k-1x24g"))
    async with app.run_test(size=(120, 40)) as pilot:
        await paste(pilot, (FOLDER / f"{name}.txt").read_text())
        await pilot.press("ctrl+o")
        await until(pilot, lambda app: isinstance(app.screen, PlanScreen), seconds=10)
        await settle(pilot)
        draft, command = app.screen.draft, app.screen.command
        assert draft.preset.values["model"] == "Qwen/Qwen2.5-7B-Instruct"
        assert draft.overrides == {}
        shown = plan_to_dict(app.screen.plan)
    verb, path = command.split()[1:3]
    assert Path(path).parent == home / "cache" / "imported"
    assert verb in ("plan", "train")
    main(["plan", path, "--json"])
    assert json.loads(capsys.readouterr().out)["gpus"][0]["terms"] == json.loads(json.dumps(shown["gpus"][0]["terms"]))


async def test_save_as_keeps_it_among_the_users_presets(app, home):
    async with app.run_test(size=(120, 40)) as pilot:
        await paste(pilot, COMMAND)
        await pilot.press("ctrl+s")
        await until(pilot, lambda app: isinstance(app.screen, AskScreen), seconds=10)
        assert "lora" in words(app)
        await pilot.press("end", *"-mine", "enter")
        await until(pilot, lambda app: isinstance(app.screen, PlanScreen), seconds=10)
        saved = load_preset("qwen3-8b-1k-lora-mine")
        assert Path(saved.path).parent == home / "config" / "longfit" / "presets"
        assert app.screen.draft.preset.name == saved.name
        assert app.screen.command.endswith("qwen3-8b-1k-lora-mine")


async def test_inference_gets_its_line_and_nothing_is_loaded(app, services):
    async with app.run_test(size=(120, 40)) as pilot:
        before = app.screen.draft
        await paste(pilot, (FOLDER / "infer_vllm.txt").read_text(), fact="$ longfit infer")
        assert all(button.disabled for button in app.screen.query(Button))
        await pilot.press("ctrl+o")
        assert isinstance(app.screen, PasteScreen)
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen.draft == before


async def test_nonsense_and_an_emptied_text_are_answered(app):
    async with app.run_test(size=(80, 24)) as pilot:
        await paste(pilot, "\x1b]0;evil\x07 \x00 nothing here", fact="Nothing to import")
        assert "\x1b" not in findings(app)
        app.screen.query_one(TextArea).clear()
        await until(pilot, "Paste above what you have", seconds=10)


async def test_the_buttons_do_the_same_by_mouse(app):
    async with app.run_test(size=(80, 24)) as pilot:
        await paste(pilot, COMMAND)
        await pilot.click("#paste-use")
        await until(pilot, lambda app: isinstance(app.screen, PlanScreen), seconds=10)
        assert app.screen.draft.get("max_length") == 1024
