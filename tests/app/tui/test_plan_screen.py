"""The Plan screen by keyboard: edit, see, take a recommendation, explain, copy, launch. On hand-made plans."""

from threading import Event

import pytest

from app.tui.app import LongfitApp
from app.tui.screens.dialogs import AskScreen, ConfirmScreen, PickerScreen, TextScreen
from app.tui.screens.plan import PlanScreen
from app.tui.widgets.alternatives import AlternativesTable
from app.tui.widgets.plain import Plain
from app.tui.widgets.setup_form import SetupForm
from app.views.plan_view import verdict_view
from tests.app import plans
from tests.app.tui.conftest import screen_text, settle, words
from tests.app.tui.fakes import OTHER, PRESET

SIZES = [(80, 24), (120, 40)]


@pytest.mark.parametrize("size", SIZES)
async def test_first_screen_shows_bar_verdict_parts_recommendation_and_command(app, size):
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        text = screen_text(app)
        for fact in (
            "TIGHT: 21.5 GiB (21.0 GiB to 22.0 GiB)",
            "weights",
            "14.00",
            "exact",
            "modelled",
            "peak at: backward of the loss",
            "+ fused loss",
            "1.25x",
            "longest that fits: 9,216",
            "$ longfit plan qwen2.5-7b-8k-1x24g",
        ):
            assert fact in text, fact
        assert "█" in text
        assert "≡" in text


@pytest.mark.parametrize("size", SIZES)
async def test_brackets_halve_and_double_the_length_and_the_verdict_follows(app, size):
    async with app.run_test(size=size) as pilot:
        await pilot.press("]")
        text = words(app, "#plan-panel")
        view = verdict_view(plans.plan(tokens=16384))
        assert f"OVER: {view.sentence}" in text
        assert "X" in text
        assert "--set max_length=16384" in screen_text(app)
        await pilot.press("[", "[")
        assert "--set max_length=4096" in screen_text(app)
        await pilot.press("u", "u", "u")
        assert "max_length" not in screen_text(app, "#command")


async def test_typing_a_number_plans_each_keystroke_and_says_what_is_wrong_beside_the_field(app):
    async with app.run_test(size=(120, 40)) as pilot:
        app.screen.query_one(SetupForm).focus_field("max_length")
        await pilot.pause()
        await pilot.press("1", "3")
        message = "max_length is 13. Thirteen is not possible. Write 16."
        assert f"NOT PLANNED: {message}" in words(app, "#plan-panel")
        assert message in words(app, "#setup")  # beside the field too
        await pilot.press("0", "0")
        assert app.screen.draft.get("max_length") == 1300
        assert "Thirteen" not in screen_text(app)


async def test_number_fields_let_command_keys_through_and_escape_leaves_them(app):
    async with app.run_test(size=(80, 24)) as pilot:
        app.screen.query_one(SetupForm).focus_field("max_length")
        await pilot.pause()
        await pilot.press("]")
        assert app.screen.draft.get("max_length") == 16384
        await pilot.press("escape")
        assert isinstance(app.focused, AlternativesTable)


async def test_wrong_types_are_refused_with_the_key_named(app):
    async with app.run_test(size=(120, 40)) as pilot:
        form = app.screen.query_one(SetupForm)
        form.focus_field("per_device_train_batch_size")
        await pilot.pause()
        await pilot.press("0")
        assert "per_device_train_batch_size is 0. The least it can be is 1." in words(app, "#setup")
        await pilot.press("backspace")
        assert "NOT PLANNED" not in screen_text(app)  # empty means the default
        form.focus_field("sequence_parallel")
        await pilot.press("-", "2")
        assert "sequence_parallel is -2. The least it can be is 1." in words(app, "#setup")


async def test_apply_takes_the_selected_recommendation_over(app):
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("down", "down", "a")
        assert app.screen.draft.overrides == {"ring": 2}
        await pilot.press("up", "enter")
        assert app.screen.draft.overrides == {"ring": 2, "fused_loss": True}


async def test_the_reason_of_the_highlighted_recommendation_stands_below_the_table(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("down")
        await pilot.pause()
        assert "1: logits never exist for a whole row" in screen_text(app, "#findings")


async def test_max_sets_the_longest_length(app):
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("m")
        assert app.screen.draft.get("max_length") == 9216


async def test_goal_cycles_and_searches_anew(app, services):
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("f")
        await settle(pilot)
        assert [call for call in services.calls if call[0] == "recommend"][-1] == ("recommend", "longest")
        assert "longest first" in screen_text(app)


async def test_pinned_plan_is_drawn_as_a_ghost_with_the_difference(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("w", "]")
        text = words(app, "#plan-panel")
        assert "pinned" in text
        assert "+5.00 GiB against the pinned plan" in text
        await pilot.press("w")
        assert "pinned" not in screen_text(app)


async def test_explain_opens_the_terms_behind_a_part(app):
    async with app.run_test(size=(80, 24)) as pilot:
        app.screen.query_one("#parts").focus()
        await pilot.press("down", "down", "down", "down", "enter")
        await pilot.pause()
        assert isinstance(app.screen, TextScreen)
        text = screen_text(app)
        assert "4*V*T with T = 8192" in text
        assert "source: notes" in text
        await pilot.press("escape")
        assert isinstance(app.screen, PlanScreen)


async def test_choices_open_a_list_that_filters(app):
    async with app.run_test(size=(80, 24)) as pilot:
        app.screen.query_one(SetupForm).focus_field("gpu")
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, PickerScreen)
        await pilot.press("h", "2", "enter")
        await pilot.pause()
        assert app.screen.draft.hardware == "H200"
        assert "FITS: " in screen_text(app)


async def test_switches_and_methods_edit_the_draft(app):
    async with app.run_test(size=(80, 24)) as pilot:
        form = app.screen.query_one(SetupForm)
        form.focus_field("gradient_checkpointing")
        await pilot.press("space")
        assert app.screen.draft.overrides == {"gradient_checkpointing": False}
        form.focus_field("method")
        await pilot.press("right")
        assert app.screen.draft.method == "qlora"


async def test_all_settings_are_there_on_demand_and_knobs_of_what_is_off_are_disabled(app):
    async with app.run_test(size=(120, 40)) as pilot:
        form = app.screen.query_one(SetupForm)
        form.query_one("MoreRow").focus()
        await pilot.press("enter")
        await pilot.pause()
        assert form._rows["lora.rank"].disabled is False
        assert form._rows["qlora.rank"].disabled is True
        form.focus_field("learning_rate")
        await pilot.press("2", "e", "-", "4")
        assert app.screen.draft.get("learning_rate") == 2e-4


async def test_markup_in_data_is_shown_not_obeyed(services):
    app = LongfitApp(services, preset=OTHER)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert "[red]odd[/red] preset" in screen_text(app)


async def test_copy_writes_the_command_to_a_file_too(app, services):
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("]", "c")
        await pilot.pause()
        assert ("command", "longfit plan qwen2.5-7b-8k-1x24g --set max_length=16384") in services.calls
        assert app.clipboard == "longfit plan qwen2.5-7b-8k-1x24g --set max_length=16384"
        assert "/tmp/command.sh" in screen_text(app)


async def test_launch_asks_once_when_it_fits(app, services, run_dir):
    services.launched = run_dir
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("[", "L")
        await pilot.pause()
        assert isinstance(app.screen, ConfirmScreen)
        assert "$ longfit train qwen2.5-7b-8k-1x24g --set max_length=4096" in words(app)
        await pilot.press("y")
        await settle(pilot)
        assert ("launch", (PRESET.name, {"max_length": 4096}, False, False)) in services.calls
        assert "RUNNING" in screen_text(app)


async def test_launch_of_what_does_not_fit_needs_the_word(app, services, run_dir):
    services.launched = run_dir
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("]", "L")
        await pilot.pause()
        assert isinstance(app.screen, AskScreen)
        await pilot.press("y", "enter")
        assert "Type 'over' to go on." in screen_text(app)
        await pilot.press("backspace", *"over", "enter")
        await settle(pilot)
        assert ("launch", (PRESET.name, {"max_length": 16384}, False, True)) in services.calls


async def test_help_of_the_focused_field_stands_above_the_keys(app):
    async with app.run_test(size=(80, 24)) as pilot:
        app.screen.query_one(SetupForm).focus_field("gradient_accumulation_steps")
        await pilot.pause()
        await pilot.press("?")
        await pilot.pause()
        text = screen_text(app)
        for fact in ("micro-batches per optimizer step", "a whole number, at least 1", "now: "):
            assert fact in text, fact


async def test_any_number_opens_by_typing_its_name(app):
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("E")
        await pilot.pause()
        assert isinstance(app.screen, PickerScreen)
        await pilot.press(*"host", "enter")
        await pilot.pause()
        assert "Host memory of one node" in screen_text(app)


async def test_edits_while_a_search_runs_are_searched_once_when_it_is_done(app, services):
    gate, searched = Event(), []

    def recommend(resolved, goal):
        searched.append(resolved.values["max_length"])
        gate.wait(10)
        return plans.alternatives()

    services.recommend = recommend
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(0.3)
        for _ in range(3):
            await pilot.press("[")
            await pilot.pause(0.15)
        assert searched == [8192]
        gate.set()
        await settle(pilot)
        assert searched == [8192, 1024]
        assert app.screen.longest == 9216


async def test_help_lists_every_key_and_pattern(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("?")
        await pilot.pause()
        text = str(app.screen.query_one(Plain).content)
        for fact in ("half", "launch", "Leaving never stops a run", "≡ logits, loss", "TIGHT: it is not"):
            assert fact in text, fact
        assert text.startswith("[    half the length\n]    double the length\n")
