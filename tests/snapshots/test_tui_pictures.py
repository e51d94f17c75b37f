"""The pictures of the terminal interface can be taken again at any time, and nothing in them is cut off."""

import html
import re

import pytest

from app.services.presets import load_preset
from benchmarks import screenshots_tui
from tests.app.runs import make_run

pytestmark = pytest.mark.snapshot


def svg_words(path) -> str:
    texts = re.findall(r"<text[^>]*>(.*?)</text>", path.read_text(encoding="utf-8"))
    return " ".join(" ".join(html.unescape(text) for text in texts).replace("\xa0", " ").split())


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_pictures_of_plan_run_and_runs(tmp_path, monkeypatch, size):
    monkeypatch.setattr(screenshots_tui.shutil, "which", lambda name: None)  # SVG, whose text can be read
    preset = load_preset("qwen2.5-7b-8k-1x24g")
    plan = await screenshots_tui.picture_plan(preset, tmp_path / "plan", size=size)
    monkeypatch.setenv("LONGFIT_RUNS", str(tmp_path))
    run_dir = make_run(tmp_path)
    run = await screenshots_tui.picture_run(run_dir, tmp_path / "run", size=size, from_step=1)
    runs = await screenshots_tui.picture_runs(run_dir, tmp_path / "runs", size=size)
    for path, facts in (
        (plan, ("pinned", "weights", "longest that fits", "--set max_length=16384", "? help")),
        (run, ("RUNNING", "step 40 of 100", "Memory against plan", "95 % of plan", "step 40 loss", "? help")),
        (runs, ("RUNNING", "40/100", "101 %", "P keep as preset")),
    ):
        text = svg_words(path)
        for fact in facts:
            assert fact in text, (path.name, fact)
