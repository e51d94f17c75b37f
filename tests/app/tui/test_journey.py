"""The whole way on a real tiny run: plan, launch, watch, detach, come back, stop and save, resume, done."""

from __future__ import annotations

import json
import time

import pytest
import yaml

from app.services.control import stop, wait_for_end
from app.services.presets import load_preset
from app.services.runs import list_runs
from app.tui.app import LongfitApp
from app.tui.screens.run import RunScreen
from tests.app.tui.conftest import screen_text, settle, words
from tests.core.train.tiny_llama import save_tiny_llama

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PRESET = {
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
def preset(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LONGFIT_RUNS", str(tmp_path / "runs"))
    model = save_tiny_llama(tmp_path / "model")
    rows = [
        {"messages": [{"role": "user", "content": f"name {i}"}, {"role": "assistant", "content": f"long {i}"}]}
        for i in range(200)
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = {**PRESET, "model": str(model), "data": {"train": [str(data)], "eval_fraction": 0.1}}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(content))
    yield load_preset(str(path))
    for run in list_runs().runs:
        if run.is_live:
            stop(run.paths, "kill")
            wait_for_end(run.paths, timeout_seconds=20)


async def until(pilot, fact, *, seconds=120) -> str:
    """The screen's text once ``fact`` (a text, or a test of the app) is there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        await pilot.pause(0.2)
        text = screen_text(pilot.app)
        if fact in text if isinstance(fact, str) else fact(pilot.app):
            return text
    raise AssertionError(f"{fact} did not appear in {seconds} s:\n{screen_text(pilot.app)}")


async def test_plan_launch_detach_reattach_stop_resume_done(preset):
    app = LongfitApp(preset=preset)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await settle(pilot)
        await pilot.press("]")
        assert app.screen.draft.overrides == {"max_length": 128}
        await pilot.press("L")
        await pilot.pause(0.3)
        assert "FITS" in words(app)
        await pilot.press("y")
        await until(pilot, lambda app: isinstance(app.screen, RunScreen))
        await until(pilot, lambda app: app.screen.feed.state.step >= 3)
        await pilot.press("d")
    (run,) = list_runs().runs
    assert run.is_live  # leaving did not stop it
    assert run.config.max_length == 128

    app = LongfitApp(run_dir=run.paths.path)
    async with app.run_test(size=(80, 24)) as pilot:
        text = await until(pilot, "RUNNING")
        assert run.id in text
        await until(pilot, lambda app: app.screen.feed.loss.num_rows > 5)
        await pilot.press("x")
        await until(pilot, "STOPPED")
        await until(pilot, "resumable")
        stopped_at = app.screen.feed.state.step
        assert 0 < stopped_at < 400
        await pilot.press("r")
        await until(pilot, "attempt 2")
        await until(pilot, "DONE")
        assert app.screen.feed.state.step == 400
        memory = app.screen.feed.memory.ranks[0]
        assert memory.peak_bytes > 0
        assert app.screen.feed.loss.last["step"] == 400


async def test_a_forced_failure_shows_its_post_mortem(preset):
    """The one rank is killed from outside, as the kernel's out-of-memory killer would."""
    import os
    import signal

    app = LongfitApp(preset=preset)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await settle(pilot)
        await pilot.press("L")
        await pilot.pause(0.3)
        await pilot.press("y")
        await until(pilot, lambda app: isinstance(app.screen, RunScreen) and app.screen.feed.state.step >= 2)
        os.kill(app.screen.feed.state.workers[0].pid, signal.SIGKILL)
        await until(pilot, "FAILED")
        await until(pilot, lambda app: "SIGKILL" in words(app, "#failure"))  # the post-mortem follows the state
        text = words(app, "#failure")
        assert "memory at its highest" in text
