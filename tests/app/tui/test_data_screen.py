"""The Data screen: nothing is read unasked, nobody waits while it is, and what was read is shown as it stands."""

import json
from dataclasses import replace

import pytest

from app.services.presets import load_preset
from app.tui.app import LongfitApp
from app.tui.screens.data import DataScreen
from app.tui.screens.plan import PlanScreen
from core.data.report import DataRefused
from planner.errors import EnvironmentProblem
from tests.app.tui.conftest import screen_text, until, words
from tests.app.tui.fakes import PRESET, REPORT


async def read_data(pilot):
    await pilot.press("5")
    await until(pilot, lambda app: isinstance(app.screen, DataScreen), seconds=10)
    await pilot.press("r")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_counts_lengths_and_first_rows_are_shown_once_asked_for(app, services, size):
    async with app.run_test(size=size) as pilot:
        await pilot.press("5")
        await pilot.pause()
        assert "r reads a.jsonl for rows of 8192 tokens of Qwen/Qwen2.5-7B-Instruct" in words(app)
        assert not [call for call in services.calls if call[0] == "data"]
        await pilot.press("r")
        text = await until(pilot, "400 tokens kept", seconds=10)
        assert "2 of 8 rows (25%)" in " ".join(text.split())
        await until(pilot, "read (train)", seconds=10)
        counts = words(app, "#data-counts")
        for fact in ("10 read (train)", "6 60 % kept whole", "2 20 % cut to max_length"):
            assert fact in counts, fact
        lengths = words(app, "#data-lengths")
        assert "tokens per row: 10 to 120, median 40" in lengths
        assert "████" in lengths
        rows = app.screen.query_one("#data-rows-text").content.plain
        assert "the answer is blank" in rows
        assert "a.jsonl:1  messages, 12 tokens, 2 to be predicted" in rows


async def test_data_is_shown_as_it_stands_and_targets_stand_out_without_colour(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await read_data(pilot)
        await until(pilot, "400 tokens kept", seconds=10)
        content = app.screen.query_one("#data-rows-text").content
        assert "    <user>[red]合同[/red]" in content.plain
        assert "  > Hello.\\x1b[31m<end>" in content.plain
        bold = {content.plain[span.start : span.end] for span in content.spans if span.style == "bold"}
        assert "  > Hello.\\x1b[31m<end>" in bold


async def test_other_screens_are_open_while_data_is_read(app, services):
    services.may_report.clear()
    async with app.run_test(size=(120, 40)) as pilot:
        await read_data(pilot)
        await until(pilot, "[##########..........]", seconds=10)
        assert "5 rows read, now a.jsonl" in screen_text(app)
        await pilot.press("r")  # a second time is the same time
        await pilot.press("1", "[")
        assert isinstance(app.screen, PlanScreen)
        services.may_report.set()
        await pilot.pause(0.3)
        await pilot.press("5")
        await until(pilot, "The report below is of earlier settings.", seconds=10)
        assert [call for call in services.calls if call[0] == "data"] == [("data", 8192)]
        await pilot.press("r")
        await until(pilot, "400 tokens kept", seconds=10)
        assert [call for call in services.calls if call[0] == "data"][-1] == ("data", 4096)


async def test_leaving_does_not_wait_for_data(app, services):
    services.may_report.clear()
    async with app.run_test(size=(80, 24)) as pilot:
        await read_data(pilot)
        await until(pilot, "5 rows read", seconds=10)
        await pilot.press("q")
    assert not services.may_report.is_set()


async def test_refused_rows_are_shown_with_the_reason(app, services):
    def refuse(resolved, on_progress):
        raise DataRefused("2 of 10 rows are bad.", fix="on_bad_row: skip", report=REPORT["train"])

    services.data_report = refuse
    async with app.run_test(size=(120, 40)) as pilot:
        await read_data(pilot)
        await until(pilot, "2 of 10 rows are bad. on_bad_row: skip", seconds=10)
        assert "the answer is blank" in words(app, "#data-rows")


async def test_what_is_missing_is_said(app, services):
    def refuse(resolved, on_progress):
        raise EnvironmentProblem("PDF needs pypdf.", fix="pip install 'longfit[docs]'")

    services.data_report = refuse
    async with app.run_test(size=(80, 24)) as pilot:
        await read_data(pilot)
        await until(pilot, "PDF needs pypdf. pip install 'longfit[docs]'", seconds=10)
        app.open_preset(replace(PRESET, values={**PRESET.values, "max_length": 13}))
        await pilot.pause()
        await read_data(pilot)
        await until(pilot, "Thirteen is not possible.", seconds=10)


async def test_narrow_terminals_show_one_pane_at_a_time(app):
    async with app.run_test(size=(60, 20)) as pilot:
        await read_data(pilot)
        await until(pilot, "400 tokens kept", seconds=10)
        assert "kept whole" in screen_text(app)
        app.screen.query_one("PaneTabs").focus()
        await pilot.press("right")
        await until(pilot, "tokens per row", seconds=10)
        await pilot.press("right")
        await until(pilot, "the answer is blank", seconds=10)


async def test_real_rows_through_the_real_tokenizer(tmp_path, monkeypatch):
    from tests.core.train.tiny_llama import save_tiny_llama

    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path / "cache"))
    model = save_tiny_llama(tmp_path / "model")
    rows = [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": f"b {i}"}]} for i in range(7)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tiny.yaml").write_text(
        f"model: {model}\nmax_length: 64\nlora: true\nhardware: {{gpu: cpu}}\ndata: {{train: {tmp_path}/rows.jsonl}}\n"
    )
    app = LongfitApp(preset=load_preset(str(tmp_path / "tiny.yaml")))
    async with app.run_test(size=(120, 40)) as pilot:
        await read_data(pilot)
        await until(pilot, "tokens kept of")
        await until(pilot, "  > ")
        await until(pilot, "7  100 %")
