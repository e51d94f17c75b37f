from __future__ import annotations

import json

import pytest

from planner.run_state import event_from_dict, event_to_dict, fold, state_from_dict, state_to_dict
from planner.types import ProcessId, RunEvent, RunState


def process(pid: int) -> dict[str, object]:
    return {"pid": pid, "start_ticks": pid * 10, "boot_id": "b"}


LIFE = (
    ("created", {}),
    ("supervisor", {**process(7), "attempt": 1}),
    ("worker", {"rank": 0, **process(8)}),
    ("worker", {"rank": 1, **process(9)}),
    ("phase", {"name": "load"}),
    ("fallback", {"optimization": "flash_attention", "reason": "no GPU"}),
    ("fallback", {"optimization": "flash_attention", "reason": "no GPU"}),
    ("running", {"total_steps": 10, "world": 2}),
    ("progress", {"step": 4}),
    ("checkpoint", {"step": 4, "path": "checkpoints/step-4"}),
    ("from_the_future", {"x": 1}),
    ("progress", {"step": 6}),
)
LOST_AND_RESUMED = (
    *LIFE,
    ("supervisor", {**process(17), "attempt": 2}),
    ("worker", {"rank": 0, **process(18)}),
    ("resumed", {"step": 4, "exact": True, "reason": ""}),
    ("running", {"total_steps": 10, "world": 2}),
    ("progress", {"step": 10}),
    ("finished", {"status": "done"}),
)


def events(life) -> list[RunEvent]:
    return [RunEvent(time=100.0 + i, type=type, data=data) for i, (type, data) in enumerate(life)]


def test_a_run_at_work():
    state = fold(events(LIFE))
    assert (state.status, state.phase, state.step, state.total_steps, state.world) == ("running", "train", 6, 10, 2)
    assert state.supervisor == ProcessId(pid=7, start_ticks=70, boot_id="b")
    assert sorted(state.workers) == [0, 1]
    assert state.last_checkpoint == "checkpoints/step-4"
    assert state.fallbacks == ("flash_attention: no GPU",)
    assert (state.created_at, state.updated_at) == (100.0, 111.0)


def test_before_a_new_attempt_says_where_it_goes_on_the_step_is_that_of_the_checkpoint():
    attempt = ("supervisor", {"pid": 9, "start_ticks": 90, "boot_id": "b", "attempt": 2})
    assert fold(events([*LIFE, attempt])).step == 4
    assert fold(events([life for life in LIFE if life[0] != "checkpoint"] + [attempt])).step == 0


def test_a_new_attempt_forgets_the_old_processes_and_goes_on_from_the_checkpoint():
    state = fold(events(LOST_AND_RESUMED[:15]))
    assert (state.status, state.attempt, state.step) == ("starting", 2, 4)
    assert state.last_checkpoint == "checkpoints/step-4"
    assert state.total_steps == 10
    assert [worker.pid for worker in state.workers.values()] == [18]
    state = fold(events(LOST_AND_RESUMED))
    assert (state.status, state.step, state.created_at) == ("done", 10, 100.0)


@pytest.mark.parametrize("cut", range(len(LOST_AND_RESUMED) + 1))
def test_folding_in_two_parts_gives_the_same_through_json_too(cut):
    whole = events(LOST_AND_RESUMED)
    first = state_from_dict(json.loads(json.dumps(state_to_dict(fold(whole[:cut])))))
    assert first == fold(whole[:cut])
    rest = [event_from_dict(json.loads(json.dumps(event_to_dict(event)))) for event in whole[cut:]]
    assert fold(rest, first) == fold(whole)


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ({"status": "done"}, ("done", "", "")),
        ({"status": "stopped"}, ("stopped", "", "")),
        ({"status": "failed", "kind": "oom", "message": "too much"}, ("failed", "oom", "too much")),
        ({"status": "failed"}, ("failed", "error", "")),
    ],
)
def test_how_a_run_ends(finish, expected):
    state = fold(events((*LIFE, ("failure", {"kind": "x", "message": "y", "rank": 0}), ("finished", finish))))
    assert (state.status, state.failure_kind, state.failure_message) == expected


def test_a_stop_stays_a_stop_when_training_begins_after_it():
    life = (*LIFE[:5], ("stop_requested", {"mode": "save"}), ("running", {"total_steps": 10, "world": 2}))
    assert fold(events(life)).status == "stopping"


def test_a_resumed_run_does_not_carry_the_old_failure():
    life = (*LIFE, ("finished", {"status": "failed", "kind": "oom", "message": "m"}), LOST_AND_RESUMED[12])
    assert fold(events(life)).failure_kind == ""


def test_a_line_that_is_no_event_is_refused():
    with pytest.raises(KeyError):
        event_from_dict({"type": "progress"})
    assert fold([]) == RunState()
