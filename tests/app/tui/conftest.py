"""What the Pilot tests share: an app on fakes, and the text of a screen."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.services.control import stop, wait_for_end
from app.services.presets import load_preset
from app.services.runs import list_runs
from app.tui.app import LongfitApp
from planner.types import Preset
from tests.app.runs import make_run
from tests.app.tui.fakes import PRESET, FakeServices


@pytest.fixture
def services():
    return FakeServices()


@pytest.fixture
def app(services):
    return LongfitApp(services, preset=PRESET)


@pytest.fixture
def run_dir(tmp_path):
    return make_run(tmp_path)


TINY = {
    "name": "tiny",
    "hardware": {"gpu": "cpu", "count": 1},
    "dtype": "float32",
    "max_length": 64,
    "max_steps": 400,
    "learning_rate": 0.01,
    "lora": {"rank": 4},
    "packing": True,
}


@pytest.fixture
def tiny_preset(tmp_path, monkeypatch) -> Iterator[Callable[..., Preset]]:
    """Presets that really train, in a second or so a hundred steps; what is still live at the end is killed.

    ``tiny_preset(max_steps=10)``: more keys, and ``vocab_size`` of the model.
    """
    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LONGFIT_RUNS", str(tmp_path / "runs"))

    def make(*, vocab_size: int | None = None, **values: Any) -> Preset:
        from tests.core.train.tiny_llama import save_tiny_llama  # torch

        model = save_tiny_llama(tmp_path / "model", vocab_size=vocab_size)
        data = tmp_path / "rows.jsonl"
        write_rows(data)
        content = {**TINY, "model": str(model), "data": {"train": [str(data)], "eval_fraction": 0.1}, **values}
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump(content))
        return load_preset(str(path))

    yield make
    for run in list_runs().runs:
        if run.is_live:
            stop(run.paths, "kill")
            wait_for_end(run.paths, timeout_seconds=20)


def write_rows(path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"name {i}"}, {"role": "assistant", "content": f"long {i}"}]}
        for i in range(200)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


async def until(pilot, fact, *, seconds=120) -> str:
    """The screen's text once ``fact`` (a text, or a test of the app) is there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        await pilot.pause(0.2)
        text = screen_text(pilot.app)
        if fact in text if isinstance(fact, str) else fact(pilot.app):
            return text
    raise AssertionError(f"{fact} did not appear in {seconds} s:\n{screen_text(pilot.app)}")


def screen_text(app, selector: str = "") -> str:
    """What stands on the screen, or in one of its panes, line by line, without styles."""
    strips = app.screen._compositor.render_strips()
    lines = ["".join(segment.text for segment in strip) for strip in strips]
    if selector:
        region = app.screen.query_one(selector).region
        lines = [line[region.x : region.right] for line in lines[region.y : region.bottom]]
    return "\n".join(lines)


def words(app, selector: str = "") -> str:
    """The same in one line, without frames, scroll bars and folding."""
    return " ".join(re.sub("[│▁-▇]", " ", screen_text(app, selector)).split())


def notices(app) -> str:
    """The texts of all notices on the screen, whole: a narrow terminal folds them."""
    return "\n".join(notification.message for notification in app._notifications)


async def settle(pilot) -> None:
    """Until the debounced search is done and drawn."""
    await pilot.pause(0.25)
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def drawn(pilot) -> None:
    """Until what the run's files hold now is on the Run screen."""
    await pilot.pause(0.3)
    pilot.app.screen._poll()
    await pilot.app.workers.wait_for_complete()
    await pilot.pause(0.1)
