"""Killed again and again at random instants, each time as a whole, a run still ends with every step there once."""

from __future__ import annotations

import random
import signal
import subprocess
import time

import pytest

from core.run.journal import read_state
from core.run.jsonl import read_rows
from core.run.process import descendants, identify, send_signal
from planner.run_state import fold
from tests.core.run.run_cases import assert_all_gone, events_of, make_run, supervise

STEPS = 150


def kill_tree(process) -> None:
    """SIGKILL for the supervisor and all below it, in random order: any of them may see the others die."""
    own = identify(process.pid)
    family = [*descendants(process.pid), *([own] if own is not None else [])]
    random.shuffle(family)
    for member in family:
        send_signal(member, signal.SIGKILL)
    process.wait()
    assert_all_gone(family)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.soak)])
def test_each_step_is_there_once_however_often_the_run_was_killed(tmp_path, seed):
    random.seed(seed)
    run = make_run(tmp_path, steps=STEPS, step_seconds=0.01, save_steps=5)
    num_kills = 0
    while True:
        process = supervise(run)
        try:
            process.wait(random.uniform(0.05, 0.9) if num_kills < 12 else 60)
            break
        except subprocess.TimeoutExpired:
            kill_tree(process)
            num_kills += 1
            time.sleep(0.01)
    state = read_state(run)
    assert (state.status, state.step) == ("done", STEPS)
    assert state == fold(events_of(run))
    assert num_kills >= 3
    assert [(row["step"], row["loss"]) for row in read_rows(run.metrics)] == [(s, 1 / s) for s in range(1, STEPS + 1)]
    attempts = [event.data["attempt"] for event in events_of(run, "supervisor")]
    assert attempts == list(range(1, len(attempts) + 1))
