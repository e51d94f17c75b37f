"""The supervisor with real processes and a worker without torch (stand_in_worker.py)."""

from __future__ import annotations

import json
import os
import signal

import pytest

from core.run.channel import ORPHAN_EXIT_CODE
from core.run.control import submit_stop
from core.run.journal import read_state
from core.run.jsonl import read_rows
from core.run.process import is_alive, send_signal
from planner.run_state import fold, state_from_dict
from planner.types import ProcessId
from tests.core.run.run_cases import (
    assert_all_gone,
    events_of,
    family_of,
    make_run,
    run_to_end,
    supervise,
    wait_for,
    wait_for_step,
)


def test_a_run_goes_to_its_end_and_its_files_say_so(tmp_path):
    run = make_run(tmp_path, steps=4)
    assert run_to_end(run) == 0
    assert [row["loss"] for row in read_rows(run.metrics)] == [1.0, 1 / 2, 1 / 3, 1 / 4]
    types = [event.type for event in events_of(run)]
    assert types[:3] == ["created", "supervisor", "worker"]
    assert types[-1] == "finished"
    assert [event.data["step"] for event in events_of(run, "progress")] == [1, 2, 3, 4]
    assert events_of(run, "worker_exit")[0].data == {
        "rank": 0, "pid": read_state(run).workers[0].pid, "code": 0, "signal": None,
    }  # fmt: skip
    assert "rank 0 of 1 is here" in run.log.read_text()
    assert not run.postmortem.exists()


def test_state_json_is_the_fold_of_all_events(tmp_path):
    run = make_run(tmp_path, steps=3, save_steps=2)
    run_to_end(run)
    cached = json.loads(run.state.read_text())
    assert cached["events_bytes"] == run.events.stat().st_size
    state = state_from_dict(cached["state"])
    assert state == fold(events_of(run)) == read_state(run)
    assert (state.status, state.step, state.last_checkpoint) == ("done", 3, "checkpoints/step-2")


def test_rows_that_are_not_finite_are_null_and_marked(tmp_path):
    run = make_run(tmp_path, steps=2, nonfinite_at=2)
    run_to_end(run)
    row = read_rows(run.metrics)[1]
    assert row["loss"] is None
    assert row["nonfinite"] is True


def test_the_supervisor_samples_the_ranks_beside_their_own_rows(tmp_path):
    run = make_run(tmp_path, steps=1000, step_seconds=0.01)
    process = supervise(run)
    samples = wait_for(
        lambda: [row for row in read_rows(run.memory) if row.get("source") == "supervisor" and row["ranks"]]
    )
    assert samples[0]["ranks"][0]["rank"] == 0
    assert samples[0]["ranks"][0]["rss_bytes"] > 1 << 20
    submit_stop(run.control, "kill")
    process.wait(30)
    assert any(row.get("allocated_bytes") for row in read_rows(run.memory))


def test_a_failing_rank_is_explained(tmp_path):
    run = make_run(tmp_path, steps=5, fail_at=3)
    assert run_to_end(run) == 1
    state = read_state(run)
    assert (state.status, state.failure_kind) == ("failed", "oom")
    assert state.failure_message == "MemoryError: no memory left for step 3"
    postmortem = json.loads(run.postmortem.read_text())
    assert (postmortem["kind"], postmortem["rank"], postmortem["step"]) == ("oom", 0, 2)
    assert "MemoryError" in postmortem["traceback"]
    assert postmortem["peaks"] == [
        {"rank": 0, "instant": "backward", "measured_bytes": 2000, "planned_bytes": 700, "over_bytes": 1300}
    ]
    assert postmortem["exits"][0]["code"] == 1
    assert "MemoryError: no memory left for step 3" in postmortem["log_tail"]


def test_a_rank_says_where_memory_ended_whatever_was_fullest_before(tmp_path):
    run = make_run(tmp_path, steps=5, fail_at=3, memory_ended={"instant": "step", "allocatable_bytes": 5})
    assert run_to_end(run) == 1
    known = json.loads(run.postmortem.read_text())["out_of_memory"]
    assert known["instant"] == "step"
    silent = make_run(tmp_path, steps=5, fail_at=3)
    assert run_to_end(silent) == 1
    assert json.loads(silent.postmortem.read_text())["out_of_memory"]["instant"] == "backward"


def test_a_post_mortem_is_written_where_no_advice_can_be_given(tmp_path):
    run = make_run(tmp_path, steps=5, fail_at=3)
    run.plan.write_text('{"gpus": [{"peak": {"allocated_bytes": 700}}]}')  # nothing else is known
    assert run_to_end(run) == 1
    postmortem = json.loads(run.postmortem.read_text())
    assert (postmortem["kind"], postmortem["rank"], postmortem["out_of_memory"]) == ("oom", 0, None)


def test_a_rank_that_vanishes_is_named_with_its_signal(tmp_path):
    run = make_run(tmp_path, steps=5, vanish_at=2)
    assert run_to_end(run) == 1
    state = read_state(run)
    assert (state.status, state.failure_kind) == ("failed", "worker")
    assert "Rank 0" in state.failure_message
    assert "SIGKILL" in state.failure_message


def test_a_worker_that_cannot_start_leaves_its_last_error(tmp_path):
    run = make_run(tmp_path, steps=1)
    run.data.write_text("{")
    assert run_to_end(run) == 1
    state = read_state(run)
    assert state.status == "failed"
    assert "JSONDecodeError" in state.failure_message
    assert "exit code 1" in state.failure_message


@pytest.mark.parametrize("code", [0, 3])
def test_an_exit_without_a_word_counts_by_its_code(tmp_path, code):
    run = make_run(tmp_path, steps=5, exit_at=2, exit_code=code)
    assert run_to_end(run) == (1 if code else 0)
    assert read_state(run).status == ("failed" if code else "done")


def test_helpers_that_outlive_the_worker_are_ended(tmp_path):
    run = make_run(tmp_path, steps=1000, step_seconds=0.01, spawn_child=True)
    process = supervise(run)
    wait_for_step(run, 2)
    family = family_of(process.pid)
    assert len(family) == 3
    send_signal(read_state(run).workers[0], signal.SIGKILL)
    process.wait(30)
    assert_all_gone(family, seconds=0.5)


def test_killing_the_supervisor_ends_the_worker(tmp_path):
    run = make_run(tmp_path, steps=10_000, step_seconds=0.01, ignore_sigterm=True)
    process = supervise(run)
    wait_for_step(run, 2)
    family = family_of(process.pid)
    process.kill()
    process.wait()
    assert_all_gone(family)
    assert read_state(run).status == "running"  # nobody was left to write more; readers derive "lost"


def test_a_worker_that_starts_after_its_supervisor_died_leaves_at_once(tmp_path):
    import subprocess
    import sys

    from core.run.interpreter import child_environment

    environment = child_environment({**os.environ, "LONGFIT_SOCKET": str(tmp_path / "nobody"), "RANK": "0"})
    code = "from core.run.channel import Channel; Channel.connect(); print('still here')"
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (ORPHAN_EXIT_CODE, b"")


def test_a_second_supervisor_is_refused_and_changes_nothing(tmp_path):
    run = make_run(tmp_path, steps=10_000, step_seconds=0.01)
    first = supervise(run)
    wait_for_step(run, 1)
    second = supervise(run)
    assert second.wait(30) == 1
    assert f"already has a supervisor, pid {first.pid}" in run.supervisor_log.read_text()
    assert len(events_of(run, "supervisor")) == 1
    submit_stop(run.control, "kill")
    first.wait(30)


def test_stop_save_lets_the_worker_save_at_its_next_step(tmp_path):
    run = make_run(tmp_path, steps=10_000, step_seconds=0.01)
    process = supervise(run)
    wait_for_step(run, 3)
    submit_stop(run.control, "save")
    assert process.wait(30) == 0
    state = read_state(run)
    assert state.status == "stopped"
    assert state.last_checkpoint == f"checkpoints/step-{state.step}"
    assert [event.data["command"] for event in events_of(run, "acknowledged")] == ["stop save"]
    assert list(run.control.iterdir()) == []


def test_a_run_that_was_asked_to_stop_in_its_last_step_is_done(tmp_path):
    run = make_run(tmp_path, steps=3, step_seconds=0.3)
    process = supervise(run)
    wait_for_step(run, 2)
    submit_stop(run.control, "save")
    process.wait(30)
    state = read_state(run)
    assert state.status == ("done" if state.step == 3 else "stopped")


def test_stop_now_ends_with_sigterm(tmp_path):
    run = make_run(tmp_path, steps=10_000, step_seconds=0.01)
    process = supervise(run)
    wait_for_step(run, 2)
    submit_stop(run.control, "now")
    assert process.wait(30) == 0
    assert read_state(run).status == "stopped"
    assert events_of(run, "worker_exit")[0].data["signal"] == "SIGTERM"


def test_stop_kill_ends_what_ignores_sigterm(tmp_path):
    run = make_run(tmp_path, steps=10_000, step_seconds=0.01, ignore_sigterm=True)
    process = supervise(run)
    wait_for_step(run, 2)
    family = family_of(process.pid)
    submit_stop(run.control, "kill")
    assert process.wait(30) == 0
    assert_all_gone(family, seconds=0.5)
    assert events_of(run, "worker_exit")[0].data["signal"] == "SIGKILL"


def test_a_repeated_stop_skips_a_rung(tmp_path):
    run = make_run(tmp_path, steps=10_000, step_seconds=0.01, ignore_sigterm=True, slow_save=600)
    process = supervise(run)
    wait_for_step(run, 2)
    for _ in range(3):
        submit_stop(run.control, "save")
    assert process.wait(30) == 0
    assert [event.data["mode"] for event in events_of(run, "stop_requested")] == ["save", "now", "kill"]
    assert read_state(run).status == "stopped"


def test_sigterm_to_the_supervisor_saves_and_stops(tmp_path):
    run = make_run(tmp_path, steps=10_000, step_seconds=0.01)
    process = supervise(run)
    wait_for_step(run, 2)
    process.terminate()
    assert process.wait(30) == 0
    assert read_state(run).status == "stopped"
    assert (run.path / read_state(run).last_checkpoint).exists()


def test_a_command_that_makes_no_sense_becomes_a_warning(tmp_path):
    run = make_run(tmp_path, steps=10_000, step_seconds=0.01)
    process = supervise(run)
    wait_for_step(run, 1)
    (run.control / "1.json").write_text('{"command": "explode"}')
    wait_for(lambda: events_of(run, "warning"))
    assert "explode" in events_of(run, "warning")[0].data["message"]
    submit_stop(run.control, "kill")
    process.wait(30)


def test_a_worker_may_not_speak_for_the_supervisor(tmp_path):
    from core.run.inbox import Inbox
    from core.run.journal import Journal
    from core.run.ranks import Ranks

    run = make_run(tmp_path)
    journal = Journal(run)
    inbox = Inbox(journal, Ranks(), is_resume=False)

    class Peer:
        rank = 1
        is_done = False

    for message in (
        {"kind": "event", "type": "finished", "time": 1.0, "data": {"status": "done"}},
        {"kind": "event", "type": "progress", "time": 1.0, "data": {}},
        {"kind": "event"},
    ):
        inbox.take(Peer(), message)
    journal.close()
    assert journal.state.status == "created"
    assert len(events_of(run, "warning")) == 3


def test_nothing_is_left_in_tmp_even_when_all_are_killed(tmp_path, monkeypatch):
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    run = make_run(tmp_path / "runs", steps=10_000, step_seconds=0.01)
    process = supervise(run)
    wait_for_step(run, 1)
    wait_for(lambda: list(folder.iterdir()) == [], seconds=10)
    process.kill()
    process.wait()


def test_after_a_stop_the_driver_is_asked_for_proof(tmp_path):
    """With a stand-in for the driver: this is about what is recorded, not about a GPU."""
    from core.run.nvml import Nvml
    from core.run.supervisor import Supervisor
    from tests.core.run.test_nvml import Driver

    run = make_run(tmp_path)
    supervisor = Supervisor(run, target=(), base={})
    supervisor._nvml = Nvml(library=Driver())
    supervisor._sampler.highest_used = {0: 20 << 30, 1: 2 << 30}
    supervisor._prove_release()
    supervisor._listener.close()
    (released,) = events_of(run, "released")
    assert released.data["holders"] == []
    assert released.data["gpus"] == [
        {"index": 0, "before_bytes": 20 << 30, "after_bytes": 1 << 30},
        {"index": 1, "before_bytes": 2 << 30, "after_bytes": 2 << 30},
    ]


def test_every_recorded_process_is_one_for_good(tmp_path):
    run = make_run(tmp_path, steps=10_000, step_seconds=0.01)
    process = supervise(run)
    wait_for_step(run, 1)
    state = read_state(run)
    assert state.supervisor is not None
    assert state.supervisor.pid == process.pid
    assert is_alive(state.supervisor)
    assert is_alive(state.workers[0])
    other = ProcessId(pid=process.pid, start_ticks=state.supervisor.start_ticks + 1, boot_id=state.supervisor.boot_id)
    assert not is_alive(other)
    submit_stop(run.control, "kill")
    process.wait(30)
    assert not is_alive(state.supervisor)
