"""The terminal interface on the real services: the numbers of `longfit plan --json`, and no torch in the process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.services.planning import plan_preset
from app.services.presets import load_preset
from app.tui.app import LongfitApp
from app.tui.fields import field_text, form_fields
from app.tui.services import Services
from app.tui.widgets.alternatives import AlternativesTable
from app.tui.widgets.fields import FieldRow
from app.views.format import format_gib
from app.views.plan_view import part_rows, verdict_view
from planner.errors import ConfigError, DoesNotFit
from planner.plan_json import plan_to_dict
from planner.types import Preset
from tests.app.tui.conftest import settle, words

NAME = "qwen2.5-7b-16k-2x24g"


async def test_the_screen_shows_the_numbers_of_plan_json():
    app = LongfitApp(preset=load_preset(NAME))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("]")
        await settle(pilot)
        plan = plan_preset(NAME, {"max_length": 32768}, alternatives=True).plan
        expected = plan_to_dict(plan)
        shown = app.screen.plan
        assert plan_to_dict(shown)["gpus"] == expected["gpus"]
        text = words(app, "#plan-panel")
        assert verdict_view(plan).sentence in text
        for row in part_rows(plan.worst_gpu):
            assert f"{row.label} {format_gib(row.bytes)} {row.basis}" in text, row.label
        table = app.screen.query_one(AlternativesTable)
        wanted = [a for a in expected["alternatives"] if a["optimizations"] != expected["config"]["optimizations"]]
        assert [row.used_bytes for row in table.found] == [alternative["used_bytes"] for alternative in wanted]


async def test_a_length_beyond_the_model_is_a_fault_of_the_length():
    app = LongfitApp(preset=load_preset("qwen2.5-7b-8k-1x24g"))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("]", "]", "]")
        await settle(pilot)
        assert [row.spec.key for row in app.screen.query(FieldRow) if row.has_class("-wrong")] == ["max_length"]


async def test_applying_a_recommendation_gives_the_memory_it_promised():
    app = LongfitApp(preset=load_preset(NAME))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        table = app.screen.query_one(AlternativesTable)
        for row in table.found[:3]:
            await pilot.press("down", "a")
            assert app.screen.plan.worst_gpu.used_bytes == row.used_bytes, row.combination
            await pilot.press("u")
            await settle(pilot)
            table.move_cursor(row=row.rank)


async def test_the_longest_length_fits_and_more_does_not():
    app = LongfitApp(preset=load_preset(NAME))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("m")
        assert app.screen.plan.verdict in ("fits", "tight")
        await pilot.press("}")
        plan = app.screen.plan  # beyond memory, or beyond the model's positions
        assert plan.verdict == "over" or any(issue.severity == "error" for issue in plan.issues)


async def test_what_cannot_be_is_said_beside_its_field():
    app = LongfitApp(preset=load_preset("qwen2.5-7b-8k-1x24g"))
    async with app.run_test(size=(120, 40)) as pilot:
        form = app.screen.query_one("#setup")
        form.focus_field("sequence_parallel")
        await pilot.pause()
        await pilot.press("2")
        await pilot.pause()  # what is said is scrolled into sight
        assert "Write fake_parallel: 2 instead" in words(app, "#setup")
        assert "NOT PLANNED" in words(app, "#plan-panel")


async def test_a_length_beyond_the_model_is_refused_although_it_would_fit():
    app = LongfitApp(preset=load_preset("demo-smollm2"))
    async with app.run_test(size=(120, 40)) as pilot:
        for _ in range(4):
            await pilot.press("]")
        assert "REFUSED: max_length 16384 is beyond the 8192 positions" in words(app, "#plan-panel")
        assert "max_length 16384 is beyond" in words(app, "#setup")


@pytest.mark.parametrize("preset", Services().presets(), ids=lambda preset: preset.name)
def test_every_field_of_every_preset_can_be_read_and_written_back_unchanged(preset):
    from app.services.draft import Draft

    draft = Draft.of(preset)
    for spec in form_fields():
        if spec.key in ("preset", "gpu", "count", "method"):
            continue
        value = spec.parse(field_text(spec, draft))
        assert spec.parse(field_text(spec, draft.set(spec.key, value))) == value, spec.key


def test_a_launch_that_does_not_fit_is_refused_unless_confirmed(monkeypatch, tmp_path):
    monkeypatch.setenv("LONGFIT_RUNS", str(tmp_path))
    values = {**load_preset("qwen2.5-7b-8k-1x24g").values, "max_length": 32768, "sequence_parallel": None}
    preset = Preset(name="too-big", description="", values=values, hardware={"gpu": "cpu", "count": 64})
    with pytest.raises((DoesNotFit, ConfigError)):
        Services().launch(preset, {}, cpu=True, allow_over=False)
    assert list(tmp_path.iterdir()) == []


def test_the_process_never_imports_torch(tmp_path):
    code = (
        "import asyncio, sys\n"
        "from app.tui.app import LongfitApp\n"
        "from app.services.presets import load_preset\n"
        "async def go():\n"
        f"    app = LongfitApp(preset=load_preset({NAME!r}))\n"
        "    async with app.run_test(size=(80, 24)) as pilot:\n"
        "        await pilot.press(']', '3', '4')\n"
        "        await app.workers.wait_for_complete()\n"
        "asyncio.run(go())\n"
        "heavy = [m for m in ('torch', 'transformers', 'peft', 'numpy', 'gradio') if m in sys.modules]\n"
        "import json; print(json.dumps(heavy))\n"
    )
    # away from runs that a person made in the clone: what is read of their checkpoints is read by numpy
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path,
        env=environment,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == []
