"""R on Plan screen: asked with the plan for this machine, done in a process of its own, which ends with the dialog."""

import os
import time

import pytest
import yaml

from app.services.presets import load_preset
from app.services.rehearsal_process import Ended, RehearsalProcess
from app.tui.app import LongfitApp
from app.tui.screens.dialogs import ConfirmScreen
from app.tui.screens.rehearsal import RehearsalScreen
from tests.app.tui.conftest import screen_text, until, words
from tests.core.train.tiny_llama import save_tiny_llama


@pytest.fixture
def preset(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path / "cache"))
    content = {
        "name": "tiny", "hardware": {"gpu": "cpu", "count": 1}, "dtype": "float32", "max_length": 64,
        "lora": {"rank": 4},
        "model": str(save_tiny_llama(tmp_path / "model")), "data": {"train": ["nothing-there.jsonl"]},
    }  # fmt: skip
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(content))
    return load_preset(str(path))


async def start(pilot):
    await pilot.press("R")
    await until(pilot, lambda app: isinstance(app.screen, ConfirmScreen), seconds=10)
    assert "$ longfit rehearse" in words(pilot.app)
    await pilot.press("y")
    await until(pilot, lambda app: isinstance(app.screen, RehearsalScreen), seconds=10)


@pytest.mark.slow
async def test_the_draft_is_rehearsed_and_measured_against_its_plan(preset, tmp_path):
    app = LongfitApp(preset=preset)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await pilot.press("]")
        await start(pilot)
        assert "at work for" in screen_text(app)
        await until(pilot, "IT RUNS", seconds=120)
        text = screen_text(app)
        for fact in ("planned", "measured", "allocated", "tokens/s"):
            assert fact in text, fact
    (record,) = (tmp_path / "cache" / "calibration").glob("*.jsonl")
    assert '"max_length": 128' in record.read_text()


def is_there(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_leaving_the_dialog_ends_the_process(preset):
    app = LongfitApp(preset=preset)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await start(pilot)
        pid = app.screen._process._process.pid
        assert os.getsid(pid) == pid
        await pilot.press("escape")
        deadline = time.monotonic() + 15
        while is_there(pid) and time.monotonic() < deadline:
            await pilot.pause(0.1)
        assert not is_there(pid)


async def test_a_preset_that_cannot_be_is_refused_with_its_reason(preset):
    process = RehearsalProcess("name: x\nmodel: nobody/nothing\nmax_length: 64\ndata: {train: [a]}\n")
    ended = process.wait()
    assert ended.exit_code == 2
    assert "nobody/nothing" in ended.talk
    assert ended.answer == ""


class Given:
    """A process that has ended like this."""

    def __init__(self, ended):
        self.ended = ended

    def wait(self):
        return self.ended

    def end(self):
        raise AssertionError("it has ended already")


@pytest.mark.parametrize(
    ("ended", "fact"),
    [
        (Ended(exit_code=4, answer="It did not run (backward): 9 GiB \x1b[31mwanted", talk=""), "OUT OF MEMORY"),
        (Ended(exit_code=5, answer="", talk="error: no driver"), "IT DID NOT RUN (exit 5)"),
        (Ended(exit_code=-15, answer="", talk=""), "ENDED from outside"),
    ],
)
async def test_each_ending_is_said_in_words_and_what_it_said_is_not_obeyed(app, services, ended, fact):
    services.rehearse = lambda draft: Given(ended)
    async with app.run_test(size=(80, 24)) as pilot:
        await start(pilot)
        text = await until(pilot, fact, seconds=10)
        assert "\x1b" not in text
        for line in (ended.answer or ended.talk).splitlines():
            assert line.replace("\x1b", "^[") in words(app)
