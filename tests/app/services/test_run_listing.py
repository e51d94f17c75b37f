"""Finding, listing and following runs."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

import pytest

from app.services.runs import RunFollower, find_run, is_attended, list_runs, snapshot
from core.run.journal import Journal
from core.run.process import identify
from planner.errors import ConfigError, RunNotFound
from tests.core.run.run_cases import PLAN, make_config, make_run


def record(run, *events):
    journal = Journal(run)
    for type, data in events:
        journal.event(type, **data)
    journal.close()


def supervisor(process, attempt=1):
    return "supervisor", {
        "pid": process.pid, "start_ticks": process.start_ticks, "boot_id": process.boot_id, "attempt": attempt,
    }  # fmt: skip


OWN = identify(os.getpid())
DEAD = replace(OWN, start_ticks=OWN.start_ticks - 1)
RUNNING = ("running", {"total_steps": 10, "world": 1})


def test_a_snapshot_has_state_config_plan_and_paths(tmp_path):
    run = make_run(tmp_path)
    record(run, supervisor(OWN), RUNNING)
    found = snapshot(run.path)
    assert found.state.status == "running"
    assert found.is_live
    assert found.config == make_config()
    assert found.plan == PLAN
    assert found.paths == run


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([], "created"),
        ([supervisor(OWN), RUNNING], "running"),
        ([supervisor(DEAD), RUNNING], "lost"),
        ([supervisor(DEAD), RUNNING, ("stop_requested", {"mode": "save"})], "lost"),
        ([supervisor(DEAD), RUNNING, ("finished", {"status": "failed", "kind": "oom"})], "failed"),
        ([supervisor(DEAD), RUNNING, supervisor(OWN, 2)], "starting"),
    ],
)
def test_lost_is_derived_when_nobody_is_left_to_end_it(tmp_path, events, status):
    run = make_run(tmp_path)
    record(run, *events)
    assert snapshot(run).state.status == status
    assert json.loads(run.state.read_text())["state"]["status"] != "lost"


def test_a_run_of_another_machine_lives_while_its_files_move(tmp_path):
    run = make_run(tmp_path)
    elsewhere = replace(OWN, boot_id="of another machine")
    record(run, supervisor(elsewhere), RUNNING)
    assert is_attended(run, elsewhere)
    assert snapshot(run).state.status == "running"
    for path in (run.events, run.memory):
        os.utime(path, (time.time() - 100,) * 2)
    assert snapshot(run).state.status == "lost"


def test_runs_are_listed_newest_first_and_broken_ones_with_a_reason(tmp_path):
    first, second, broken = (make_run(tmp_path) for _ in range(3))
    broken.config.write_text("schema: 9\n")
    (tmp_path / ".tmp-half").mkdir()
    (tmp_path / "notes").mkdir()
    found = list_runs(tmp_path)
    assert [run.paths for run in found.runs] == [second, first]
    ((path, reason),) = found.unreadable
    assert path == broken.path
    assert "schema 9" in reason
    assert list_runs(tmp_path / "nowhere").runs == ()


def test_a_run_is_found_by_id_beginning_end_path_and_last(tmp_path):
    run = make_run(tmp_path)
    for reference in (run.id, run.id[:10], run.id[-4:], str(run.path), "last"):
        assert find_run(reference, tmp_path) == run


def test_an_unknown_run_is_refused_with_the_nearest(tmp_path):
    run = make_run(tmp_path)
    with pytest.raises(RunNotFound) as caught:
        find_run(run.id[:-1] + "z", tmp_path)
    assert run.id in str(caught.value)
    assert caught.value.exit_code == 6
    with pytest.raises(RunNotFound, match="holds 0 runs"):
        find_run("last", tmp_path / "nowhere")


def test_a_beginning_of_several_runs_is_refused(tmp_path):
    first, second = make_run(tmp_path), make_run(tmp_path)
    with pytest.raises(ConfigError) as caught:
        find_run("20", tmp_path)
    assert first.id in str(caught.value)
    assert second.id in str(caught.value)


def test_following_gives_what_is_new_each_time(tmp_path):
    run = make_run(tmp_path)
    follower = RunFollower(run)
    assert [event.type for event in follower.read().events] == ["created"]
    assert follower.read().is_empty
    journal = Journal(run)
    journal.event("supervisor", **supervisor(OWN)[1])
    journal.metric({"step": 1, "loss": 2.0})
    journal.metric({"step": 2, "loss": 1.0})
    journal.memory({"rank": 0, "step": 1})
    journal.memory({"source": "supervisor", "gpus": [], "ranks": []})
    run.log.write_text("hello\n")
    update = follower.read()
    assert update.state.status == "starting"
    assert [row["step"] for row in update.metrics] == [1, 2]
    assert len(update.memory) == len(update.samples) == 1
    assert update.log == ("hello",)
    assert not update.metrics_restarted
    journal.supersede_metrics(1)
    journal.metric({"step": 2, "loss": 0.5})
    update = follower.read()
    assert update.metrics_restarted
    assert [row["loss"] for row in update.metrics] == [2.0, 0.5]
    journal.close()


def test_a_run_that_ends_and_leaves_during_a_look_is_told_to_its_end(tmp_path, monkeypatch):
    run = make_run(tmp_path)
    record(run, supervisor(DEAD), RUNNING)
    follower = RunFollower(run)

    def leaves(paths, supervisor):
        record(run, ("checkpoint", {"step": 10, "path": "step-10"}), ("finished", {"status": "done"}))
        return False

    monkeypatch.setattr("app.services.runs.is_attended", leaves)
    update = follower.read()
    assert update.state.status == "done"
    assert [event.type for event in update.events][-2:] == ["checkpoint", "finished"]
