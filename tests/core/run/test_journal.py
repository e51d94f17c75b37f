from __future__ import annotations

import json

from core.run import journal as module
from core.run.journal import Journal, cached_state, read_state, told_events
from core.run.jsonl import JsonlTail, read_rows
from planner.run_state import fold
from tests.core.run.run_cases import events_of, make_run

SUPERVISOR = {"pid": 7, "start_ticks": 70, "boot_id": "b"}


def test_events_are_folded_as_they_are_written(tmp_path):
    run = make_run(tmp_path)
    journal = Journal(run)
    journal.event("supervisor", **SUPERVISOR, attempt=1)
    journal.event("progress", at=5.0, step=3)
    assert journal.state.step == 3
    assert journal.state.updated_at == 5.0
    assert journal.state == fold(events_of(run))
    journal.close()


def test_readers_take_up_where_state_json_left_off(tmp_path):
    run = make_run(tmp_path)
    journal = Journal(run)
    journal.event("supervisor", **SUPERVISOR, attempt=1)  # urgent: state.json is written
    journal.event("progress", step=3)  # not urgent
    assert json.loads(run.state.read_text())["state"]["step"] == 0
    assert read_state(run) == journal.state
    assert read_state(run).step == 3
    run.state.write_text("{")  # a damaged cache is no more than a lost cache
    assert read_state(run) == journal.state
    journal.close()


def test_an_event_that_cannot_be_folded_becomes_a_warning(tmp_path):
    run = make_run(tmp_path)
    journal = Journal(run)
    journal.event("progress", step="many")
    journal.close()
    assert [event.type for event in events_of(run)] == ["created", "warning"]
    assert "many" in events_of(run)[1].data["message"]


def test_half_lines_of_a_killed_predecessor_are_ended(tmp_path):
    run = make_run(tmp_path)
    with run.events.open("a") as file:
        file.write('{"time": 1.0, "type": "progr')
    run.metrics.write_text('{"step":1,"loss":1.0}\n{"step":2,"lo')
    journal = Journal(run)
    journal.event("progress", step=1)
    journal.metric({"step": 2, "loss": 0.5})
    journal.close()
    assert [event.type for event in events_of(run)] == ["created", "progress"]
    assert [row["step"] for row in read_rows(run.metrics)] == [1, 2]
    assert JsonlTail(run.metrics).read()[1]["loss"] == 0.5


def test_rows_beyond_the_resumed_step_are_kept_aside_and_shown_once(tmp_path):
    run = make_run(tmp_path)
    journal = Journal(run)
    journal.event("supervisor", **SUPERVISOR, attempt=1)
    journal.metric({"step": 0, "eval_loss": 9.0})
    for step in range(1, 6):
        journal.metric({"step": step, "loss": 1.0})
    tail = JsonlTail(run.metrics)
    assert len(tail.read()) == 6
    journal.event("supervisor", **SUPERVISOR, attempt=2)
    journal.supersede_metrics(3)
    journal.metric({"step": 4, "loss": 2.0})
    assert [row["step"] for row in tail.read()] == [0, 1, 2, 3, 4]
    assert tail.generation == 1
    assert [(row["step"], row["attempt"]) for row in read_rows(run.superseded_metrics)] == [(4, 1), (5, 1)]
    assert events_of(run, "superseded")[0].data == {"after_step": 3, "num_rows": 2}
    journal.supersede_metrics(4)  # nothing beyond it: nothing happens
    assert tail.read() == []
    journal.supersede_metrics(-1)
    assert tail.read() == []
    assert read_rows(run.metrics) == []
    assert len(read_rows(run.superseded_metrics)) == 7
    journal.close()


def test_what_is_folded_already_is_told_without_its_steps(tmp_path, monkeypatch):
    run = make_run(tmp_path)
    journal = Journal(run)
    journal.event("supervisor", **SUPERVISOR, attempt=1)
    for step in range(200):
        journal.event("progress", step=step)
        if step % 50 == 7:
            journal.event("warning", message=f'odd "type":"progress" after {step}')
    journal.close()
    state, end = cached_state(run)
    assert state == journal.state
    for piece_bytes in (1 << 20, 500, 61):
        monkeypatch.setattr(module, "_PIECE_BYTES", piece_bytes)
        told = told_events(run, end)
        assert told == [event for event in events_of(run) if event.type != "progress"]
    assert told_events(run, 0) == []
