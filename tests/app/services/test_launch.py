"""Launching and resuming, with real supervisors and the worker without torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from app.services import control
from app.services.launch import device_of, launch, resume, start_supervisor
from app.services.runs import observed_state, snapshot
from core.run.interpreter import child_environment
from core.run.jsonl import read_rows
from core.run.process import is_alive, send_signal
from planner.errors import ConfigError, LaunchError
from tests.core.run.run_cases import (
    PLAN,
    STAND_IN,
    assert_all_gone,
    events_of,
    family_of,
    make_config,
    make_run,
    wait_for_step,
)


def start(tmp_path, **ways):
    run = make_run(tmp_path, **ways)
    start_supervisor(run, target=STAND_IN)
    return run


def losses(run):
    return [(row["step"], row["loss"]) for row in read_rows(run.metrics)]


def test_a_started_run_is_under_way(tmp_path):
    paths = launch(
        config=make_config(), plan=PLAN, preset_text="model: x\n", data={"train": "data.store", "eval": None},
        runs_root=tmp_path, target=STAND_IN,
    )  # fmt: skip
    assert events_of(paths, "supervisor")
    assert paths.preset.read_text() == "model: x\n"
    assert paths.read_json(paths.data) == {"train": os.path.abspath("data.store"), "eval": None}
    assert paths.read_json(paths.environment)["device"] == "cpu"
    assert control.wait_for_end(paths, timeout_seconds=60).status == "done"


def test_a_run_survives_the_face_that_launched_it(tmp_path):
    run = make_run(tmp_path, steps=100_000, step_seconds=0.01)
    code = (
        "import os, sys; from pathlib import Path; from app.services.launch import start_supervisor;"
        "from core.run.directory import RunDirectory;"
        "start_supervisor(RunDirectory(Path(sys.argv[1])), target=tuple(sys.argv[2:]));"
        "os.killpg(0, 9)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(run.path), *STAND_IN], env=child_environment(os.environ),
        start_new_session=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    wait_for_step(run, 5)
    control.stop(run, "kill")
    assert control.wait_for_end(run, timeout_seconds=60).status == "stopped"


def test_a_supervisor_that_cannot_begin_says_why(tmp_path):
    run = make_run(tmp_path)
    run.config.write_text("schema: 7\n")
    with pytest.raises(LaunchError, match="schema 7"):
        start_supervisor(run, target=STAND_IN)


def test_a_live_run_is_not_resumed(tmp_path):
    run = start(tmp_path, steps=100_000, step_seconds=0.01)
    with pytest.raises(ConfigError) as caught:
        resume(run, target=STAND_IN)
    assert f"pid {observed_state(run).supervisor.pid}" in str(caught.value)
    control.stop(run, "kill")
    control.wait_for_end(run, timeout_seconds=60)


def test_a_done_run_is_not_resumed(tmp_path):
    run = start(tmp_path, steps=2)
    control.wait_for_end(run, timeout_seconds=60)
    with pytest.raises(ConfigError, match="all 2 steps"):
        resume(run, target=STAND_IN)


def test_a_stopped_run_resumes_from_what_it_saved(tmp_path):
    run = start(tmp_path, steps=120, step_seconds=0.02)
    wait_for_step(run, 3)
    control.stop(run)
    stopped = control.wait_for_end(run, timeout_seconds=60)
    assert stopped.status == "stopped"
    resume(run, target=STAND_IN)
    state = control.wait_for_end(run, timeout_seconds=60)
    assert (state.status, state.attempt, state.step) == ("done", 2, 120)
    assert events_of(run, "resumed")[0].data["step"] == stopped.step
    assert losses(run) == [(step, 1 / step) for step in range(1, 121)]
    assert not run.superseded_metrics.exists()


@pytest.mark.parametrize("save_steps", [5, None], ids=["from a checkpoint", "from the beginning"])
def test_killed_as_a_whole_and_resumed_each_step_is_there_once(tmp_path, save_steps):
    run = start(tmp_path, steps=60, step_seconds=0.02, save_steps=save_steps)
    wait_for_step(run, 17)
    family = family_of(observed_state(run).supervisor.pid)
    for process in family:
        send_signal(process, signal.SIGKILL)
    assert_all_gone(family)
    assert observed_state(run).status == "lost"
    before = losses(run)
    resume(run, target=STAND_IN)
    assert control.wait_for_end(run, timeout_seconds=60).status == "done"
    assert losses(run) == [(step, 1 / step) for step in range(1, 61)]
    resumed_at = events_of(run, "resumed")[0].data["step"] if save_steps else 0
    aside = [(row["step"], row["loss"]) for row in read_rows(run.superseded_metrics)]
    assert aside == [row for row in before if row[0] > resumed_at]
    assert "--- attempt 2 ---" in run.log.read_text()


def test_a_failed_run_resumes_and_its_post_mortem_is_set_aside(tmp_path):
    run = start(tmp_path, steps=10, fail_at=7, save_steps=5)
    assert control.wait_for_end(run, timeout_seconds=60).status == "failed"
    run.data.write_text('{"steps": 10}')
    resume(run, target=STAND_IN)
    state = control.wait_for_end(run, timeout_seconds=60)
    assert (state.status, state.failure_kind, state.failure_message) == ("done", "", "")
    assert not run.postmortem.exists()
    assert (run.path / "postmortem.attempt-1.json").exists()


def test_processes_that_outlived_a_lost_run_are_named_and_can_be_ended(tmp_path):
    """A rank cannot outlive its supervisor; another process of ours stands in for one."""
    from core.run.journal import Journal
    from core.run.process import identify

    run = make_run(tmp_path)
    sleeper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    dead = identify(gone.pid)
    left = identify(sleeper.pid)
    gone.wait()
    journal = Journal(run)
    for type, process in (("supervisor", dead), ("worker", left)):
        journal.event(
            type, rank=0, attempt=1, pid=process.pid, start_ticks=process.start_ticks, boot_id=process.boot_id
        )
    journal.close()
    assert snapshot(run).state.status == "lost"
    with pytest.raises(LaunchError, match=f"pid {left.pid}"):
        resume(run, target=STAND_IN)
    assert control.kill_leftovers(run) == (left.pid,)
    sleeper.wait(10)
    assert not is_alive(left)
    assert control.kill_leftovers(run) == ()


def test_the_device_follows_from_the_plan():
    assert device_of(PLAN) == "cpu"
    assert device_of({"environment": {"compute_capability": [8, 6]}}) == "cuda"
    assert device_of({}) == "cpu"
