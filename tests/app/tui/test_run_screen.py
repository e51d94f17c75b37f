"""The Run screen on a run directory written by hand: following, stopping, failing, searching, leaving."""

import asyncio
import time

import pytest

from app.tui.app import LongfitApp
from app.tui.screens.dialogs import ConfirmScreen
from app.tui.widgets.log_view import LogView
from app.tui.widgets.loss_plot import LossPlot
from tests.app.runs import append, append_steps, make_run
from tests.app.tui.conftest import drawn, screen_text, words


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_live_run_shows_state_curve_memory_rates_and_log(services, run_dir, size):
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=size) as pilot:
        await drawn(pilot)
        text = screen_text(app)
        for fact in (
            "RUNNING",
            "step 40 of 100",
            "40 %",
            "10.10",
            "+1.0 %",
            "lr 1.0e-04",
            "1,900 tokens/s, 95 % of plan",
            "[red]not markup[/red]",
            "20261129-120000-qwen2.5-7b-8k-a3f1",
        ):
            assert fact in text, fact
        assert any(0x2800 < ord(character) <= 0x28FF for character in text)
        assert "┊" in text


async def test_new_rows_and_lines_appear_without_rereading(services, run_dir):
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        append_steps(run_dir, 41, 60)
        await drawn(pilot)
        assert app.screen.feed.loss.num_rows == 66  # 60 steps and 6 evaluations
        assert "step 60 loss" in screen_text(app)
        assert "step 60 of 100" in screen_text(app)


async def test_scrolling_up_stops_following_and_f_follows_again(services, run_dir):
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        await pilot.press("pageup")
        await pilot.pause(0.4)
        log = app.screen.query_one(LogView)
        assert not log.follow
        append_steps(run_dir, 41, 60)
        await drawn(pilot)
        assert "step 60 loss" not in screen_text(app)
        await pilot.press("f")
        await drawn(pilot)
        assert "step 60 loss" in screen_text(app)


async def test_search_jumps_to_the_hit_and_n_goes_on(services, run_dir):
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        await pilot.press("/", *"STEP 7 ", "enter")
        await pilot.pause(0.2)
        log = app.screen.query_one(LogView)
        assert log.hit == 6
        assert "step 7 loss" in screen_text(app)
        await pilot.press("/", *"loss", "enter")
        await pilot.pause(0.2)
        before = log.hit
        await pilot.press("N")
        assert log.hit == before - 1


async def test_panes_cycle_through_log_events_and_settings(services, run_dir):
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        await pilot.press("t")
        await pilot.pause()
        text = screen_text(app)
        assert "active: ring: 2 ranks exchange keys" in text
        assert "fallback: flash_attention: flash_attn is not installed" in text
        await pilot.press("t")
        await pilot.pause()
        assert "folder" in screen_text(app)


async def test_stop_ladder_asks_before_killing(services, run_dir):
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        await pilot.press("x")
        assert services.calls[-1] == ("stop", "save")
        await pilot.press("X")
        await pilot.pause()
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("n")
        assert services.calls[-1] == ("stop", "save")
        await pilot.press("X")
        await pilot.pause()
        await pilot.press("y")
        assert services.calls[-1] == ("stop", "kill")


async def test_a_failed_run_shows_its_post_mortem_in_place_of_the_curve(services, tmp_path):
    app = LongfitApp(services, run_dir=make_run(tmp_path, status="failed"))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await drawn(pilot)
        text = screen_text(app)
        for fact in (
            "FAILED",
            "out of memory",
            "Tried to allocate 9.27 GiB [bold]while[/bold]",
            "19.0 GiB, planned 10.0 GiB (+9.00 GiB)",
            "Resume continues from checkpoints/step-20.",
        ):
            assert fact in text, fact
        await pilot.press("x")
        await pilot.pause()
        assert "Nothing to stop" in screen_text(app)


@pytest.mark.parametrize("key", ["d", "q"])
async def test_leaving_says_that_the_run_goes_on(services, run_dir, capsys, key):
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        await pilot.press(key)
        await pilot.pause(0.2)
    assert services.calls == []
    assert "The run goes on. `longfit attach 20261129-120000-qwen2.5-7b-8k-a3f1`" in capsys.readouterr().err


async def test_leaves_by_itself_once_the_run_is_final_when_asked_to(services, run_dir):
    app = LongfitApp(services, run_dir=run_dir, exit_when_final=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        assert app.is_running
        append(run_dir / "events.jsonl", {"time": 1.0, "type": "finished", "data": {"status": "done"}})
        deadline = time.monotonic() + 20
        while not app._exit and time.monotonic() < deadline:  # leaving cancels what `drawn` would wait for
            await asyncio.sleep(0.05)
        assert app._exit


async def test_log_scale_changes_the_axis(services, run_dir):
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        await pilot.press("l")
        await pilot.pause()
        assert app.screen.query_one(LossPlot).is_log
        assert "log scale" in screen_text(app)


async def test_waiting_for_the_first_row_is_said(services, tmp_path):
    run_dir = make_run(tmp_path, steps=0)
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        assert "waiting for the first row (logging_steps = 1)" in words(app, "#loss")
        append_steps(run_dir, 1, 1)
        await drawn(pilot)
        assert "waiting" not in screen_text(app)
