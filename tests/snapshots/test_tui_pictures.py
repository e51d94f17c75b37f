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
async def test_pictures_of_plan_and_run(tmp_path, monkeypatch, size):
    monkeypatch.setattr(screenshots_tui.shutil, "which", lambda name: None)  # SVG, whose text can be read
    preset = load_preset("qwen2.5-7b-8k-1x24g")
    plan = await screenshots_tui.picture_plan(preset, tmp_path / "plan", size=size)
    run = await screenshots_tui.picture_run(make_run(tmp_path), tmp_path / "run", size=size, from_step=1)
    for path, facts in (
        (plan, ("pinned", "OVER", "weights", "longest that fits", "--set max_length=16384", "? help")),
        (run, ("RUNNING", "step 40 of 100", "Memory against plan", "95 % of plan", "step 40 loss", "? help")),
    ):
        text = svg_words(path)
        for fact in facts:
            assert fact in text, (path.name, fact)
