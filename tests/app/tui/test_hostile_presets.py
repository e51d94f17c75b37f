"""Names, paths and texts of a preset as somebody else wrote them: shown as they stand, in frames that stay whole."""

from dataclasses import replace

import pytest
from rich.cells import cell_len

from app.tui.app import LongfitApp
from app.tui.widgets.setup_form import SetupForm
from tests.app.tui.conftest import screen_text, settle
from tests.app.tui.fakes import PRESET

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31m"
HOSTILE = replace(
    PRESET, name=f"[b]evil[/b]{ESCAPES}", description=f"{ESCAPES}[red]x[/red]", origin="file",
    path=f"/tmp/{ESCAPES}a.yaml",
    values={**PRESET.values, "model": f"org/{ESCAPES}m", "data": {"train": [f"{ESCAPES}[u]a[/u].jsonl"]}},
)  # fmt: skip
CHINESE = replace(
    PRESET, name="合同长文本微调-预设-一二三四五六七八九十", description="长文本",
    values={**PRESET.values, "model": "组织/千问二点五七十亿参数指令微调模型", "data": {"train": ["数据/合同.jsonl"]}},
)  # fmt: skip
KEYS = (
    "e", "escape", "s", "escape", "?", "escape", "E", "escape", "R", "escape", "L", "escape", "c", "4", "v", "escape",
    "o", "escape", "5", "1",
)  # fmt: skip


def lines_of(app):
    text = screen_text(app)
    assert "\x1b" not in text
    assert "\x07" not in text
    return text.splitlines()


@pytest.mark.parametrize("preset", [HOSTILE, CHINESE], ids=["escapes", "chinese"])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_no_screen_or_dialog_of_planning_is_steered_or_torn(services, preset, size):
    services.presets = lambda: (preset, PRESET)
    app = LongfitApp(services, preset=preset)
    async with app.run_test(size=size, notifications=True) as pilot:
        await settle(pilot)
        for key in KEYS:
            await pilot.press(key)
            await pilot.pause()
            assert {cell_len(line) for line in lines_of(app)} == {size[0]}, key


async def test_the_form_shows_wide_characters_whole_and_its_arrow(services):
    app = LongfitApp(services, preset=CHINESE)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        lines = screen_text(app, "#setup").splitlines()
        model = next(line for line in lines if "model" in line)
        assert "千问" in model
        assert "▾" in model


async def test_an_error_that_quotes_the_preset_is_shown_as_text(services):
    app = LongfitApp(services, preset=replace(HOSTILE, values={**HOSTILE.values, "max_length": 13}))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        app.screen.query_one(SetupForm).complain({"max_length": f"{ESCAPES}[red]no[/red]"})
        app.notify(f"{ESCAPES}[red]no[/red]")
        await pilot.pause()
        assert "[red]no[/red]" in "\n".join(lines_of(app))


@pytest.mark.parametrize("size", [(1, 1), (7, 3), (20, 6), (60, 20)])
async def test_every_dialog_of_planning_opens_at_every_size(services, size):
    app = LongfitApp(services, preset=PRESET)
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        for key in ("p", "escape", *KEYS):
            await pilot.press(key)
            await pilot.pause()
        assert len(screen_text(app).splitlines()) == size[1]
