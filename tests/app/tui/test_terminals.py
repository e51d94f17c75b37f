"""Sizes, colours and characters a terminal may have: nothing crashes, nothing needs colour, nothing is clipped."""

from pathlib import Path

import pytest

from app.services.terminal import prefers_ascii
from app.tui.app import LongfitApp
from app.tui.screens.compare import CompareScreen
from app.tui.screens.foreign import ForeignScreen
from app.tui.themes import THEMES
from planner.errors import ConfigError
from tests.app.runs import append_steps, make_run
from tests.app.tui.conftest import drawn, screen_text, settle
from tests.app.tui.fakes import PRESET

SIZES_FILE = Path(__file__).parents[2] / "data" / "k12_terminal_sizes.txt"
SIZES = [tuple(map(int, line.split("x"))) for line in SIZES_FILE.read_text().splitlines() if line[:1].isdigit()]


async def test_no_size_crashes_and_every_screen_opens(services, run_dir):
    app = LongfitApp(services, preset=PRESET, run_dir=run_dir)
    async with app.run_test(size=SIZES[0]) as pilot:
        for size in SIZES:
            await pilot.resize_terminal(*size)
            for key in ("1", "]", "2", "t", "3", "4", "5", "r", "?", "escape"):
                await pilot.press(key)
            await pilot.pause()
            assert len(screen_text(app).splitlines()) == size[1]


@pytest.mark.parametrize("size", [(1, 1), (8, 3)])
async def test_the_smallest_terminals_can_start(services, size):
    app = LongfitApp(services, preset=PRESET)
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        assert len(screen_text(app).splitlines()) == size[1]


async def test_resizing_while_a_run_logs_comes_back_whole(services, run_dir):
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(120, 40)) as pilot:
        for step, size in ((41, (7, 3)), (51, (1, 1)), (61, (120, 40))):
            append_steps(run_dir, step, step + 9)
            await pilot.resize_terminal(*size)
            await pilot.pause(0.6)
        await settle(pilot)
        text = screen_text(app)
        assert "step 70 of 100" in text
        assert "RUNNING" in text


async def test_narrow_terminals_show_one_pane_at_a_time_by_tabs(services):
    app = LongfitApp(services, preset=PRESET)
    async with app.run_test(size=(60, 20)) as pilot:
        await settle(pilot)
        assert "length" in screen_text(app, "#setup")
        assert not app.screen.query_one("#plan-panel").display
        app.screen.query_one("PaneTabs").focus()
        await pilot.press("right")
        await pilot.pause(0.2)
        assert "TIGHT: 21.5 GiB" in screen_text(app)
        await pilot.press("right")
        await pilot.pause(0.2)
        assert "+ fused loss" in screen_text(app)


async def test_narrow_run_screen_shows_its_panes_by_tabs(services, run_dir):
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(60, 20)) as pilot:
        await drawn(pilot)
        app.screen.query_one("PaneTabs").focus()
        await pilot.press("right")
        await pilot.pause(0.3)
        assert "Memory against plan" in screen_text(app)
        await pilot.press("right")
        await pilot.pause(0.3)
        assert "step 40 loss" in screen_text(app)


@pytest.mark.parametrize("status", ["running", "failed"])
async def test_themes_change_colours_and_not_a_single_character(services, tmp_path, status):
    run_dir = make_run(tmp_path, status=status)
    app = LongfitApp(services, preset=PRESET, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(0.6)
        texts, colors = [], []
        for theme in THEMES:
            app.theme = theme.name
            await pilot.press("2")
            await pilot.pause(0.1)
            run_text = screen_text(app, "#loss-pane") + screen_text(app, "#memory")
            await pilot.press("1")
            await settle(pilot)
            texts.append(run_text + screen_text(app))
            colors.append(app.screen.query_one("#plan-panel").styles.background.hex)
        assert len(set(texts)) == 1
        assert len(set(colors)) == len(THEMES)


async def test_the_theme_without_colour_leaves_only_greys(services, run_dir):
    app = LongfitApp(services, preset=PRESET, run_dir=run_dir, theme="longfit-mono")
    async with app.run_test(size=(120, 40)) as pilot:
        await drawn(pilot)
        for key in ("1", "2", "4"):
            await pilot.press(key)
            await settle(pilot)
            colors = {
                color.triplet
                for strip in app.screen._compositor.render_strips()
                for segment in strip
                if segment.style
                for color in (segment.style.color, segment.style.bgcolor)
                if color is not None and color.triplet is not None
            }
            assert colors
            assert all(max(color) - min(color) <= 2 for color in colors), key


async def test_no_color_leaves_only_greys(services, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = LongfitApp(services, preset=PRESET)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        colors = {
            color.triplet
            for strip in app.screen._compositor.render_strips()
            for segment in strip.apply_filter(app._filters[-1], app.screen.background_colors[1])
            if segment.style
            for color in (segment.style.color, segment.style.bgcolor)
            if color is not None and color.triplet is not None
        }
        assert colors
        assert all(max(color) - min(color) <= 2 for color in colors)
        assert "TIGHT" in screen_text(app)


async def test_ascii_terminals_get_letters_and_no_other_characters(services, run_dir):
    app = LongfitApp(services, preset=PRESET, run_dir=run_dir, ascii_only=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        run_text = screen_text(app)
        await pilot.press("1")
        await settle(pilot)
        plan_text = screen_text(app)
        assert "WWWW" in plan_text
        assert "LL" in plan_text
        for text in (run_text, plan_text):
            assert {character for character in text if not character.isascii()} == set()


def test_a_theme_that_is_not_there_is_refused_with_those_that_are(monkeypatch):
    monkeypatch.setenv("LONGFIT_THEME", "solarized")
    with pytest.raises(ConfigError, match=r"no theme 'solarized'.*longfit-mono"):
        LongfitApp()


def test_the_linux_console_prefers_ascii(monkeypatch):
    monkeypatch.setenv("TERM", "linux")
    assert prefers_ascii()


async def test_wide_characters_and_joiners_do_not_break_the_frame(services, tmp_path):
    run_dir = make_run(tmp_path)
    with (run_dir / "train.log").open("a", encoding="utf-8") as file:
        file.write("长文本微调👨‍👩‍👧①é" * 12 + "\n\x1b[31mred\x1b[0m \x07bell\rkept\n")
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        text = screen_text(app, "#log")
        assert "长文本微调" in text
        assert "kept" in text
        assert "\x1b" not in text
        from rich.cells import cell_len

        strips = app.screen._compositor.render_strips()
        assert {cell_len("".join(segment.text for segment in strip)) for strip in strips} == {80}


async def test_no_size_crashes_the_comparison_and_the_folder_of_another_trainer(services, run_dir, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "logging.jsonl").write_text('{"loss": 1.5, "global_step/max_steps": "3/300"}\n')
    app = LongfitApp(services, preset=PRESET, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        for make in (lambda: CompareScreen(run_dir, run_dir), lambda: ForeignScreen(folder)):
            app.push_screen(make())
            for size in SIZES:
                await pilot.resize_terminal(*size)
                await pilot.press("l", "g")
                await pilot.pause()
                assert len(screen_text(app).splitlines()) == size[1]
            await pilot.press("escape")


async def test_a_narrow_comparison_shows_its_panes_by_tabs(services, run_dir):
    app = LongfitApp(services, preset=PRESET, run_dir=run_dir)
    async with app.run_test(size=(60, 20)) as pilot:
        app.push_screen(CompareScreen(run_dir, run_dir))
        await drawn(pilot)
        assert "first solid" in screen_text(app)
        app.screen.query_one("PaneTabs").focus()
        await pilot.press("right")
        await pilot.pause(0.3)
        assert "eval best" in screen_text(app)
        await pilot.press("right")
        await pilot.pause(0.3)
        assert "Settings that differ" in screen_text(app)
