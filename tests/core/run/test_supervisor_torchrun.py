"""Two ranks under the real torchrun, which starts each rank in a session of its own: who is killed, who is left."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from core.run.control import submit_stop
from core.run.directory import RunDirectory
from core.run.journal import read_state
from core.run.process import send_signal
from planner.types import ProcessId
from tests.core.run.run_cases import assert_all_gone, events_of, family_of, make_run, supervise, wait_for, wait_for_step

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix-domain sockets")


@contextmanager
def two_ranks(tmp_path, **ways) -> Iterator[tuple[RunDirectory, object, list[ProcessId]]]:
    """A run with two ranks at work: (run, supervisor, supervisor + torchrun + both ranks)."""
    run = make_run(tmp_path, world=2, steps=100_000, step_seconds=0.02, **ways)
    process = supervise(run)
    try:
        wait_for(lambda: len(read_state(run).workers) == 2, what=f"two ranks of {run.path}")
        wait_for_step(run, 2)
        family = family_of(process.pid)
        assert len(family) == 4
        yield run, process, family
    finally:
        process.kill()
        process.wait()


def launcher_of(run: RunDirectory, family: list[ProcessId]) -> ProcessId:
    state = read_state(run)
    known = {state.supervisor, *state.workers.values()}
    (launcher,) = [process for process in family if process not in known]
    return launcher


def test_killing_one_rank_ends_all_and_names_it(tmp_path):
    with two_ranks(tmp_path, ignore_sigterm=True) as (run, process, family):
        send_signal(read_state(run).workers[1], signal.SIGKILL)
        assert_all_gone(family)
        assert process.wait(5) == 1
        state = read_state(run)
        assert (state.status, state.failure_kind) == ("failed", "worker")
        assert "Rank 1" in state.failure_message
        assert "SIGKILL" in state.failure_message
        postmortem = json.loads(run.postmortem.read_text())
        assert postmortem["rank"] == 1
        assert {"rank": 1, "pid": state.workers[1].pid, "code": None, "signal": "SIGKILL"} in postmortem["exits"]


def test_killing_the_launcher_ends_both_ranks(tmp_path):
    with two_ranks(tmp_path, ignore_sigterm=True) as (run, process, family):
        send_signal(launcher_of(run, family), signal.SIGKILL)
        assert_all_gone(family)
        assert process.wait(5) == 1
        state = read_state(run)
        assert (state.status, state.failure_kind) == ("failed", "launcher")
        assert "SIGKILL" in state.failure_message
        assert sorted(event.data["rank"] for event in events_of(run, "worker_exit")) == [0, 1]


def test_killing_the_supervisor_leaves_neither_launcher_nor_ranks(tmp_path):
    with two_ranks(tmp_path, ignore_sigterm=True) as (run, process, family):
        process.kill()
        assert_all_gone(family)
        assert read_state(run).status == "running"


@pytest.mark.parametrize("seconds", [0.0, 0.8], ids=["before it connects", "while it imports torch"])
def test_killing_the_supervisor_while_torchrun_still_starts_leaves_nobody(tmp_path, seconds):
    run = make_run(tmp_path, world=2, steps=100_000, step_seconds=0.02)
    process = supervise(run)
    wait_for(lambda: len(family_of(process.pid)) > 1)
    time.sleep(seconds)
    family = family_of(process.pid)
    process.kill()
    process.wait()
    assert_all_gone(family)


def test_a_failing_rank_is_the_cause_not_the_rank_that_was_ended_after_it(tmp_path):
    sign = tmp_path / "fail now"  # not at a step: the first rank would reach it before the second one is there
    with two_ranks(tmp_path, fail_with=str(sign)) as (run, process, family):
        sign.touch()
        assert_all_gone(family, seconds=20)
        process.wait(5)
        state = read_state(run)
        assert (state.status, state.failure_kind) == ("failed", "oom")
        assert "MemoryError: no memory left for step" in state.failure_message


def test_stop_save_ends_torchrun_in_order(tmp_path):
    with two_ranks(tmp_path) as (run, process, family):
        submit_stop(run.control, "save")
        assert process.wait(30) == 0
        assert_all_gone(family, seconds=0.5)
        state = read_state(run)
        assert state.status == "stopped"
        assert state.last_checkpoint == f"checkpoints/step-{state.step}"


def test_stop_now_ends_torchrun_and_both_ranks(tmp_path):
    with two_ranks(tmp_path) as (run, process, family):
        submit_stop(run.control, "now")
        assert process.wait(30) == 0
        assert_all_gone(family, seconds=0.5)
        assert read_state(run).status == "stopped"
