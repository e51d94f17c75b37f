"""The whole way on a real tiny run: plan, apply, launch, watch, detach, come back, stop and save, resume, done.

And from a forced failure over its post-mortem to a run that has the fix.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from subprocess import Popen
from unittest.mock import patch

import pytest

from app.services.planning import plan_preset
from app.services.runs import list_runs
from app.tui.app import LongfitApp
from app.tui.screens.dialogs import ConfirmScreen
from app.tui.screens.run import RunScreen
from app.tui.services import Services
from app.tui.widgets.alternatives import AlternativesTable
from planner.plan_json import plan_to_dict
from tests.app.tui.conftest import settle, until, words

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_plan_apply_launch_detach_reattach_stop_resume_done(tiny_preset):
    preset = tiny_preset()
    app = LongfitApp(preset=preset)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await settle(pilot)
        await pilot.press("]")
        assert app.screen.draft.overrides == {"max_length": 128}
        await settle(pilot)
        table = app.screen.query_one(AlternativesTable)
        table.move_cursor(row=1)
        promised = table.found[0].used_bytes
        await pilot.press("a")  # the fastest of the recommended ones
        await settle(pilot)
        overrides = app.screen.draft.overrides
        assert set(overrides) > {"max_length"}
        assert app.screen.plan.worst_gpu.used_bytes == promised
        # the numbers of the screen are those of `longfit plan --json`
        same = plan_to_dict(plan_preset(preset, overrides, cluster=app.screen.plan.cluster).plan)
        assert plan_to_dict(app.screen.plan)["gpus"] == same["gpus"]
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


async def test_a_rank_that_was_killed_leaves_its_post_mortem(tiny_preset):
    """The one rank is killed from outside, as the kernel's out-of-memory killer would."""
    app = LongfitApp(preset=tiny_preset())
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


def cramped_supervisor(limit_bytes):
    """In the place of subprocess.Popen: what it starts gets no more address space than this. Not this process, which
    holds more already when it has run other tests, and would start no thread."""

    def limit():
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard))

    def start(argv, **more):
        is_supervisor = "core.run.supervisor" in argv
        return Popen(argv, **more, **({"preexec_fn": limit} if is_supervisor else {}))

    return start


def imports_bytes():
    """Address space of a process that has imported what a worker imports."""
    code = "import torch, transformers, peft; print(open('/proc/self/status').read())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout
    return 1024 * int(next(line for line in said.splitlines() if line.startswith("VmPeak")).split()[1])


class Cramped(Services):
    """The first launch gets too little memory for its logits, those after it all that there is."""

    def __init__(self, limit_bytes):
        super().__init__()
        self.limit_bytes = limit_bytes

    def launch(self, preset, overrides, *, cpu, allow_over):
        if self.limit_bytes is None:
            return super().launch(preset, overrides, cpu=cpu, allow_over=allow_over)
        with patch("subprocess.Popen", cramped_supervisor(self.limit_bytes)):
            self.limit_bytes = None
            return super().launch(preset, overrides, cpu=cpu, allow_over=allow_over)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the failure is forced through RLIMIT_AS")
async def test_a_forced_failure_is_explained_and_mended_by_one_key(tiny_preset):
    preset = tiny_preset(
        vocab_size=32_000, max_length=512, per_device_train_batch_size=8, max_steps=2, gradient_checkpointing=True
    )  # logits of 524 MB, and their gradient
    app = LongfitApp(Cramped(imports_bytes() + (700 << 20)), preset=preset)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await settle(pilot)
        await pilot.press("L")
        await pilot.pause(0.3)
        await pilot.press("y")
        await until(pilot, lambda app: isinstance(app.screen, RunScreen))
        await until(pilot, "FAILED")
        await until(pilot, lambda app: "the planner says that this fits" in words(app, "#failure"))
        text = words(app, "#failure")
        assert "out of memory" in text
        failed = app.screen.feed
        first = failed.postmortem["out_of_memory"]["changes"][0]["changes"]
        await pilot.press("a")
        await pilot.pause(0.5)
        assert isinstance(app.screen, ConfirmScreen)
        for key in first:
            assert f"+ {key}" in words(app), key
        await pilot.press("y")
        await until(pilot, lambda app: isinstance(app.screen, RunScreen) and app.screen.feed is not failed)
        await until(pilot, "DONE")
        mended = app.screen.feed
    assert mended.run.id != failed.run.id
    assert mended.state.step == 2
    plan = json.loads(failed.run.plan.read_text())
    peak = mended.memory.ranks[0].peak_bytes
    assert peak < plan["gpus"][0]["peak"]["allocated_bytes"]
