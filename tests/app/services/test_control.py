from __future__ import annotations

import pytest

from app.services import control
from app.services.launch import start_supervisor
from planner.errors import ConfigError
from tests.core.run.run_cases import STAND_IN, events_of, make_run, wait_for_step


def test_a_stop_is_acknowledged_by_its_id_and_seen_through(tmp_path):
    run = make_run(tmp_path, steps=100_000, step_seconds=0.01)
    start_supervisor(run, target=STAND_IN)
    wait_for_step(run, 2)
    command = control.stop(run, "save")
    seen = []
    state = control.wait_for_end(run, timeout_seconds=60, watch=lambda state: seen.append(state.status))
    assert state.status == "stopped"
    assert seen[-1] == "stopped"
    assert events_of(run, "acknowledged")[0].data == {"command": "stop save", "id": command}


def test_nothing_is_put_into_a_run_that_is_not_running(tmp_path):
    run = make_run(tmp_path, steps=1)
    with pytest.raises(ConfigError, match="created"):
        control.stop(run)
    start_supervisor(run, target=STAND_IN)
    control.wait_for_end(run, timeout_seconds=60)
    with pytest.raises(ConfigError, match="done"):
        control.stop(run)
    assert list(run.control.iterdir()) == []


def test_waiting_ends_at_its_timeout(tmp_path):
    run = make_run(tmp_path)
    assert control.wait_for_end(run, timeout_seconds=0.2).status == "created"
