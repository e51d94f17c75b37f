"""Whatever a run's files say is shown character by character: never markup, never a command to the terminal."""

from __future__ import annotations

import json
import shutil

import pytest

from app.services.runs import list_runs
from app.tui.app import LongfitApp
from core.run.config_file import write_config
from planner.errors import ConfigError
from tests.app.plans import run_config
from tests.app.runs import append, make_run
from tests.app.tui.conftest import drawn, notices, screen_text, settle, words
from tests.app.tui.fakes import PRESET

# clipboard, screen, colours, bidi, C1, markup, link, shell
HOSTILE = (
    "[red]m[/red] [@click=app.quit]q[/] \x1b]52;c;cHduZWQ=\x07 \x1b[2J\x1b[31m \u202eabc \x9b1m \x00 $(touch pwned)"
)
SHOWN = "[red]m[/red] [@click=app.quit]q[/] ^[]52;c;cHduZWQ=^G ^[[2J^[[31m <202E>abc <009B>1m ^@ $(touch pwned)"


@pytest.fixture
def hostile_run(tmp_path):
    """Every text of a run that somebody else may have written."""
    run = make_run(tmp_path, status="failed")
    config = run_config(world=2, name=f"name {HOSTILE}")
    write_config(run, config)
    with (run / "train.log").open("ab") as log:
        log.write(HOSTILE.encode() + b"\nbytes \xff\xfe\x80 end\n" + b"\xed\xa0\x80 lone surrogate\n")
    for name, data in (
        ("fallback", {"optimization": "liger", "reason": HOSTILE}),
        ("evidence", {"optimization": HOSTILE, "claim": HOSTILE}),
        ("warning", {"message": HOSTILE}),
        (HOSTILE, {"unknown": HOSTILE}),
        ("failure", {"kind": "oom", "message": HOSTILE, "rank": 1, "step": 3}),
        ("finished", {"status": "failed", "kind": "oom", "message": HOSTILE}),
    ):
        append(run / "events.jsonl", {"time": 2e9, "type": name, "data": data})
    postmortem = json.loads((run / "postmortem.json").read_text())
    postmortem |= {"message": HOSTILE, "traceback": f"Traceback\n{HOSTILE}\nError: {HOSTILE}"}
    (run / "postmortem.json").write_text(json.dumps(postmortem))
    (run / "env.json").write_text(json.dumps({"host": HOSTILE}))
    return run


def dangers(app) -> set[str]:
    """Characters on the screen that a terminal acts on, or that turn text around."""
    return {c for c in screen_text(app) if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202e\u2066")}


async def test_every_pane_of_the_run_screen_shows_what_stands_in_the_files(services, hostile_run):
    app = LongfitApp(services, run_dir=hostile_run)
    async with app.run_test(size=(200, 60)) as pilot:
        await drawn(pilot)
        assert SHOWN in words(app, "#alarm")
        assert SHOWN in words(app, "#log")
        assert "bytes \\xff\\xfe\\x80 end" in words(app, "#log")
        assert "\\xed\\xa0\\x80 lone surrogate" in words(app, "#log")
        assert "[red]m[/red] [@click=app.quit]q[/]" in words(app, "#failure")
        assert dangers(app) == set()
        await pilot.press("t")
        await pilot.pause()
        assert f"active: {SHOWN}: {SHOWN}" in words(app, "#events")
        assert f"warning: {SHOWN}" in words(app, "#events")
        await pilot.press("t")
        await pilot.pause()
        assert SHOWN in words(app, "#settings")
        assert dangers(app) == set()
        await pilot.press("e")
        await pilot.pause(0.2)
        assert "^[]52;c;cHduZWQ=^G" in screen_text(app)
        assert dangers(app) == set()


async def test_the_list_of_runs_and_a_notice_show_it_too(services, hostile_run, monkeypatch):
    services.runs = lambda: list_runs(hostile_run.parent)

    def refuse(run):
        raise ConfigError(HOSTILE)

    monkeypatch.setattr(services, "resume", refuse, raising=False)
    app = LongfitApp(services, preset=PRESET)
    async with app.run_test(size=(280, 40), notifications=True) as pilot:
        await pilot.press("3")
        await settle(pilot)
        assert SHOWN in words(app, "#runs")
        assert SHOWN in words(app, "#run-details")
        await pilot.press("r")
        await pilot.pause(0.2)
        assert notices(app) == SHOWN
        assert dangers(app) == set()
        assert app.is_running


@pytest.mark.parametrize("name", ["长文本微调👨‍👩‍👧①é", "$(touch pwned); `id`", "[red]run[bold]", "a b\tc\x1b[31m"])
async def test_a_run_folder_may_have_any_name(services, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "项目 一"
    made = make_run(root)
    run = made.with_name(name)
    shutil.move(made, run)
    services.runs = lambda: list_runs(root)
    app = LongfitApp(services, run_dir=run)
    async with app.run_test(size=(120, 40)) as pilot:
        await drawn(pilot)
        assert "step 40 of 100" in screen_text(app)
        await pilot.press("c", "t", "t")
        await pilot.pause(0.2)
        assert "项目 一" in screen_text(app)
        await pilot.press("3")
        await settle(pilot)
        assert "RUNNING" in screen_text(app, "#runs")
        assert dangers(app) == set()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["项目 一"]  # nothing was run


async def test_a_second_yes_does_not_launch_twice(services, monkeypatch):
    """Data takes a while to prepare; whoever is impatient asks again."""
    import threading

    may_go, launches = threading.Event(), []

    def launch(preset, overrides, *, cpu, allow_over):
        launches.append(preset.name)
        may_go.wait(10)
        raise ConfigError("not today")

    monkeypatch.setattr(services, "launch", launch)
    app = LongfitApp(services, preset=PRESET)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await settle(pilot)
        await pilot.press("[", "L")
        await pilot.pause(0.2)
        await pilot.press("y")
        await pilot.pause(0.2)
        await pilot.press("L")
        await pilot.pause(0.2)
        assert "A launch is under way" in notices(app)
        await pilot.press("y")
        await pilot.pause(0.2)
        assert launches == [PRESET.name]
        may_go.set()
        await settle(pilot)
        assert "not today" in notices(app)
