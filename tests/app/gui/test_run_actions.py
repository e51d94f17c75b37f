"""What the Run tab does: runs by id only, state from the directory, commands as files for the supervisor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.gui.launcher import Launcher
from app.gui.plan_actions import load_form, resolve_form
from app.gui.run_actions import RunActions
from app.services.planning import plan_resolved
from core.run.control import take_commands
from planner.errors import ConfigError, RunNotFound
from tests.app import plans
from tests.app.gui.run_folder import attend, end_run, make_run


def test_runs_are_listed_with_their_state_in_words(tmp_path: Path) -> None:
    end_run(make_run(tmp_path), "done")
    (choice,) = RunActions(tmp_path).choices()
    assert choice.words == f"{choice.id}  DONE 40/100"
    attend(make_run(tmp_path))
    assert {c.words.split("  ")[1] for c in RunActions(tmp_path).choices()} == {"RUNNING", "DONE 40/100"}


def test_the_live_run_comes_to_front_unless_another_is_asked_for(tmp_path: Path) -> None:
    done, live = make_run(tmp_path), make_run(tmp_path)
    end_run(done, "done")
    attend(live)
    actions = RunActions(tmp_path)
    assert actions.first_choice() == live.id
    assert actions.first_choice(done.id) == done.id
    assert actions.first_choice("../../etc") == live.id
    assert RunActions(tmp_path / "empty").first_choice() == ""


@pytest.mark.parametrize("run_id", ["", ".", "..", "../x", "/etc", "a/b", ".tmp-x", "nothing", "x\0y"])
def test_a_run_is_found_by_its_id_and_never_by_a_path(tmp_path: Path, run_id: str) -> None:
    make_run(tmp_path / "runs")
    make_run(tmp_path)
    actions = RunActions(tmp_path / "runs")
    with pytest.raises((RunNotFound, ValueError)):
        actions.open(run_id)
    view = actions.view(run_id)
    assert "NO RUN" in view.status or run_id == ""
    assert not view.can_stop


def test_a_live_run_can_be_stopped_and_killed_and_not_resumed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    attend(run)
    actions = RunActions(tmp_path)
    view = actions.view(run.id)
    assert ">RUNNING<" in view.status
    assert (view.can_stop, view.can_kill, view.can_resume) == (True, True, False)
    actions.stop(run.id)
    actions.kill(run.id)
    commands, problems = take_commands(run.control)
    assert [command.mode for command in commands] == ["save", "kill"]
    assert problems == ()


def test_an_ended_run_is_not_stopped(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    end_run(run, "stopped")
    view = RunActions(tmp_path).view(run.id)
    assert (view.can_stop, view.can_kill, view.can_resume) == (False, False, True)
    assert view.resume_words == "Resume starts over: no checkpoint was saved."
    with pytest.raises(ConfigError, match="is not running: it is stopped"):
        RunActions(tmp_path).stop(run.id)


def test_a_failed_run_shows_its_post_mortem(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    end_run(run, "failed", kind="oom", message="CUDA out of memory: asked 9.27 GiB")
    run.postmortem.write_text(json.dumps({"rank": 1, "log_tail": ["the end"]}))
    view = RunActions(tmp_path).view(run.id)
    assert "FAILED" in view.status
    assert "asked 9.27 GiB" in view.failure
    assert "the end" in view.failure


def test_a_lost_run_offers_to_end_what_is_left(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    actions = RunActions(tmp_path)
    view = actions.view(run.id)
    assert ">LOST<" in view.status
    assert (view.can_stop, view.can_kill, view.can_resume) == (False, True, True)
    assert actions.kill(run.id) == "No process of it is left."


def test_a_new_server_shows_the_same_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    attend(run)
    first, second = RunActions(tmp_path).view(run.id), RunActions(tmp_path).view(run.id)
    assert (first.loss, first.memory, first.log, first.events) == (
        second.loss,
        second.memory,
        second.log,
        second.events,
    )


def test_the_version_says_when_there_is_something_to_draw(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    attend(run)
    actions = RunActions(tmp_path)
    before = actions.view(run.id).version
    assert actions.view(run.id).version == before
    with run.log.open("a") as file:
        file.write("more\n")
    assert actions.view(run.id).version > before


def test_a_second_run_on_the_same_gpus_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)
    attend(run)
    plan = json.loads(run.plan.read_text())
    run.plan.write_text(json.dumps({**plan, "environment": {"compute_capability": [8, 6]}}))
    with pytest.raises(ConfigError, match=f"{run.id} is using the GPUs"):
        Launcher(tmp_path)._refuse_busy_gpus(plans.plan())
    on_cpu = plan_resolved(resolve_form(load_form("demo-smollm2"))[0])
    Launcher(tmp_path)._refuse_busy_gpus(on_cpu)
    end_run(run, "done")
    Launcher(tmp_path)._refuse_busy_gpus(plans.plan())
