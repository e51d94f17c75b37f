"""What the keys of the Run screen do beyond following: axes, log views, checkpoints, alarms, mending a failed run."""

import json

import pytest

from app.services.draft import Draft
from app.tui.app import LongfitApp
from app.tui.screens.dialogs import ConfirmScreen, TextScreen
from app.tui.screens.plan import PlanScreen
from app.tui.screens.run import RunScreen
from app.tui.widgets.log_view import LogView
from app.tui.widgets.loss_plot import LossPlot
from tests.app.plans import GIB
from tests.app.runs import append, make_run
from tests.app.tui.conftest import drawn, notices, screen_text, settle, words
from tests.app.tui.fakes import PRESET

PRESET_TEXT = """\
name: mine
hardware: {gpu: A10, count: 1}
model: Qwen/Qwen2.5-7B-Instruct
max_length: 8192
lora: {rank: 64}
gradient_checkpointing: true
data: {train: [a.jsonl]}
"""


@pytest.fixture
def failed_run(tmp_path):
    """Out of memory; the planner proposes half the length with the fused loss."""
    run = make_run(tmp_path, status="failed")
    (run / "preset.yaml").write_text(PRESET_TEXT)
    postmortem = json.loads((run / "postmortem.json").read_text())
    change = {"changes": {"max_length": 4096, "fused_loss": True}, "used_bytes": 12 * GIB, "why": "half the logits"}
    postmortem["out_of_memory"] = {"instant": "backward", "parts": [], "changes": [change]}
    (run / "postmortem.json").write_text(json.dumps(postmortem))
    return run


async def test_g_shows_the_loss_by_steps_tokens_and_time(services, run_dir):
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        seen = []
        for _ in range(3):
            seen.append(words(app, "#loss"))
            await pilot.press("g")
            await pilot.pause()
        assert "step 40" in seen[0]
        assert "by tokens" in seen[1]
        assert "328 K tokens" in seen[1]
        assert "by time of training" in seen[2]
        assert "2 min 52 s" in seen[2]
        assert app.screen.query_one(LossPlot).axis == "step"


async def test_v_shows_only_what_warns_and_then_only_what_failed(services, run_dir):
    with (run_dir / "train.log").open("a") as file:
        file.write("UserWarning: slow\nstep 41\nRuntimeError: [red]gone[/red]\nstep 42\n")
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        await pilot.press("v")
        await settle(pilot)
        text = screen_text(app, "#log")
        assert "warnings and errors" in text
        assert "UserWarning: slow" in text
        assert "RuntimeError: [red]gone[/red]" in text
        assert "step 4" not in text
        await pilot.press("v")
        await settle(pilot)
        text = screen_text(app, "#log")
        assert "UserWarning" not in text
        assert "RuntimeError" in text
        await pilot.press("v")
        await settle(pilot)
        assert "step 42" in screen_text(app, "#log")


async def test_w_wraps_long_lines_and_the_end_stays_in_view(services, run_dir):
    with (run_dir / "train.log").open("a", encoding="utf-8") as file:
        file.write("begin " + "长文本" * 60 + " end of it\nlast line\n")
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        assert "end of it" not in screen_text(app)
        await pilot.press("w")
        await pilot.pause()
        lines = [line for line in screen_text(app, "#log").splitlines() if "长" in line or "line" in line]
        assert "begin" in lines[1]
        assert "end of it" in screen_text(app)
        assert "last line" in lines[-1]
        log = app.screen.query_one(LogView)
        await pilot.press("home")
        await pilot.pause(0.3)
        assert log.scroll_y == 0
        assert "step 1 loss" in screen_text(app)


async def test_memory_far_above_plan_raises_an_alarm(services, run_dir):
    plan = json.loads((run_dir / "plan.json").read_text())
    plan["config"] = {"optimizations": {"lora": {}, "ring": {"degree": 2}}}
    (run_dir / "plan.json").write_text(json.dumps(plan))
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await drawn(pilot)
        assert "fallback: flash_attention: flash_attn is not installed" in words(app, "#alarm")
        row = {"time": 1.0, "step": 41, "rank": 0, "instant": "backward", "allocated_bytes": 13 * GIB}
        append(run_dir / "memory.jsonl", row)
        await drawn(pilot)
        alarm = "rank 0: 30 % above plan (+3.00 GiB): is sequence parallelism active?"
        assert alarm in words(app, "#alarm")
        assert notices(app).count(alarm) == 1


async def test_a_run_shows_utilisation_temperature_power_host_and_disk(services, run_dir):
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        text = words(app, "#memory")
        assert "1 10.10 10.00 +1.0 % 95% 71 149" in text
        assert "host memory 67.0 GiB of 128 GiB used" in text
        assert "disk 212 GiB free" in text


async def test_c_copies_the_command_and_names_its_file(services, run_dir):
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await drawn(pilot)
        await pilot.press("c")
        await pilot.pause()
        assert app.clipboard == "#!/bin/sh\n"
        assert "Copied; it is also in" in words(app)


async def test_k_tells_which_checkpoints_are_sound_and_why_others_are_not(services, run_dir):
    from core.train.checkpoint import write_checkpoint

    checkpoints = run_dir / "checkpoints"
    for step in (10, 20):
        write_checkpoint(checkpoints, step, lambda folder: (folder / "weights").write_bytes(b"x" * 100) and None)
    (checkpoints / "step-30").mkdir()
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(120, 40)) as pilot:
        await drawn(pilot)
        await pilot.press("k")
        await settle(pilot)
        assert isinstance(app.screen, TextScreen)
        text = screen_text(app)
        assert "the save was cut short" in next(line for line in text.splitlines() if "step-30" in line)
        assert "resume continues from it" in next(line for line in text.splitlines() if "step-20" in line)
        line = next(line for line in text.splitlines() if "step-10" in line)
        assert line.split("B")[1].strip(" │─╯") == "sound"


async def test_a_shows_the_first_change_that_fits_and_launches_a_run_with_it(services, failed_run, tmp_path):
    services.launched = make_run(tmp_path / "new")
    app = LongfitApp(services, run_dir=failed_run)
    async with app.run_test(size=(120, 40)) as pilot:
        await drawn(pilot)
        assert "train again with --set max_length=4096 --set fused_loss=true" in words(app, "#failure")
        await pilot.press("a")
        await pilot.pause(0.2)
        assert isinstance(app.screen, ConfirmScreen)
        text = screen_text(app)
        for fact in ("half the logits", "- max_length: 8192", "+ max_length: 4096", "+ fused_loss: true", "FITS"):
            assert fact in text, fact
        await pilot.press("y")
        await settle(pilot)
        await pilot.pause(0.5)
        assert services.calls[-1] == ("launch", ("mine", {"max_length": 4096, "fused_loss": True}, False, False))
        assert isinstance(app.screen, RunScreen)
        assert app.screen.feed.run.path == services.launched.resolve()


async def test_p_takes_the_change_to_the_plan_screen(services, failed_run):
    app = LongfitApp(services, preset=PRESET, run_dir=failed_run)
    async with app.run_test(size=(120, 40)) as pilot:
        await drawn(pilot)
        await pilot.press("p")
        await settle(pilot)
        assert isinstance(app.screen, PlanScreen)
        draft: Draft = app.screen.draft
        assert (draft.preset.name, draft.values["max_length"], draft.values["fused_loss"]) == ("mine", 4096, True)


async def test_without_a_change_that_fits_a_says_why_not(services, run_dir):
    app = LongfitApp(services, run_dir=run_dir)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await drawn(pilot)
        await pilot.press("a", "e")
        await pilot.pause(0.2)
        assert isinstance(app.screen, RunScreen)
        assert "has no post-mortem" in notices(app)
        assert "has not failed" in notices(app)


async def test_e_opens_the_whole_post_mortem(services, failed_run):
    app = LongfitApp(services, run_dir=failed_run)
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        await pilot.press("e")
        await pilot.pause(0.2)
        await pilot.press("end")
        await pilot.pause(0.3)
        assert "OutOfMemoryError" in screen_text(app)
