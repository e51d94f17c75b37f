"""runs, attach, stop, resume and logs through the console script's main, on runs with the worker without torch."""

from __future__ import annotations

import functools
import json
import os
import signal
import threading

import pytest

import app.cli.resume
from app.cli.main import main
from app.cli.runs import table_lines
from app.services.launch import resume, start_supervisor
from app.services.runs import RunFollower, observed_state
from core.run.journal import read_state
from core.run.process import send_signal
from planner.run_state import FAILURE_KINDS
from planner.types import RunState
from tests.core.run.run_cases import STAND_IN, assert_all_gone, family_of, make_run, wait_for, wait_for_step


@pytest.fixture
def start(tmp_path):
    def start(**ways):
        run = make_run(tmp_path, **ways)
        start_supervisor(run, target=STAND_IN)
        return run

    return start


@pytest.fixture
def longfit(tmp_path, capsys):
    """longfit VERB ... --runs-dir: (exit code, stdout, stderr)."""

    def call(*arguments):
        capsys.readouterr()
        code = main([*arguments, "--runs-dir", str(tmp_path)])
        return code, *capsys.readouterr()

    return call


def test_attach_follows_to_the_end_and_sums_up(start, longfit):
    run = start(steps=5, step_seconds=0.05, save_steps=2)
    code, out, err = longfit("attach", "last")
    assert code == 0
    assert "done: step 5 of 5" in out
    assert "loss            1.0000 -> 0.2000" in out
    assert str(run.path) in out
    assert "checkpoint saved at step 4" in err
    assert "finished: done" in err


@pytest.mark.parametrize(("more", "shown"), [((), True), (("--plain",), False), (("--json",), False)])
def test_attach_opens_the_terminal_interface_where_there_is_a_terminal(start, longfit, monkeypatch, more, shown):
    run, opened = start(steps=3), []
    wait_for(lambda: read_state(run).status == "done")
    monkeypatch.setattr("app.tui.start.can_show", lambda: True)
    monkeypatch.setattr("app.tui.start.run_tui_for_run", lambda path: opened.append(path) or 0)
    code, out, _ = longfit("attach", "last", *more)
    assert opened == ([run.path] if shown else [])
    assert code == 0
    assert ('"status": "done"' if more == ("--json",) else "done: step 3 of 3") in out


def test_attach_json_is_all_that_stdout_has(start, longfit):
    run = start(steps=3)
    code, out, _ = longfit("attach", run.id[-4:], "--json")
    summary = json.loads(out)
    assert code == 0
    assert (summary["schema"], summary["id"], summary["status"], summary["step"]) == (1, run.id, "done", 3)
    assert summary["last_loss"] == pytest.approx(1 / 3)
    assert summary["peaks"] == [{"rank": 0, "measured_bytes": 3000, "planned_bytes": 700, "instant": "backward"}]


def test_attach_to_a_failing_run_explains_and_says_it_by_the_exit_code(start, longfit):
    run = start(steps=5, fail_at=3)
    code, out, err = longfit("attach", run.id)
    assert code == 4
    assert "no memory left for step 3" in err
    assert f"longfit resume {run.id}" in err
    assert out.startswith("failed: step 2 of 5")


def test_postmortem_says_why_a_run_failed_and_that_one_has_not(start, longfit):
    failed = start(steps=5, fail_at=3)
    wait_for(lambda: observed_state(failed).status == "failed")
    code, out, _ = longfit("postmortem", failed.id)
    assert code == 0
    assert out.startswith("FAILED: ")
    assert "no memory left for step 3" in out
    assert json.loads(longfit("postmortem", failed.id, "--json")[1])["kind"] == "oom"
    done = start(steps=1)
    wait_for(lambda: observed_state(done).status == "done")
    code, out, err = longfit("postmortem", done.id)
    assert (code, out) == (0, "")
    assert f"{done.id} has not failed; DONE" in err
    assert longfit("postmortem", done.id, "--json")[1] == "{}\n"


def test_attach_to_a_run_that_has_ended_tells_it_in_the_order_it_happened(start, longfit):
    run = start(steps=4, step_seconds=0.02, save_steps=2)
    wait_for(lambda: read_state(run).status == "done")
    said = longfit("attach", run.id)[2]
    clocks = [line.split()[0] for line in said.splitlines() if line[2:3] == ":"]
    assert len(clocks) > 3
    assert clocks == sorted(clocks)
    assert said.index("step 4/4") < said.index("finished: done")


def test_ctrl_c_detaches_says_so_and_leaves_the_run_alone(start, longfit, monkeypatch):
    run = start(steps=100_000, step_seconds=0.01)
    wait_for_step(run, 1)
    follows, done, read = threading.Event(), threading.Event(), RunFollower.read
    monkeypatch.setattr(RunFollower, "read", lambda follower: (follows.set(), read(follower))[1])

    def press() -> None:
        if follows.wait(60):
            while not done.is_set():  # a person presses again where the first one was lost
                os.kill(os.getpid(), signal.SIGINT)
                done.wait(10)

    threading.Thread(target=press).start()
    # as in a terminal: a shell starts what it puts in the background, these tests too, with the signal ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, _, err = longfit("attach", run.id)
    finally:
        done.set()
        signal.signal(signal.SIGINT, before)
    assert code == 130
    assert "the run goes on" in err
    step = read_state(run).step
    wait_for_step(run, step + 5)
    code, out, _ = longfit("stop", run.id)
    assert code == 0
    assert out.startswith("STOPPED")


@pytest.mark.parametrize("how", ["--now", "--kill"])
def test_stop_at_once(start, longfit, how):
    run = start(steps=100_000, step_seconds=0.01)
    wait_for_step(run, 1)
    family = family_of(observed_state(run).supervisor.pid)
    code, out, _ = longfit("stop", run.id, how)
    assert (code, out[:7]) == (0, "STOPPED")
    assert_all_gone(family)


def test_stop_says_when_it_takes_too_long(start, longfit):
    run = start(steps=100_000, step_seconds=0.01, slow_save=60)
    wait_for_step(run, 1)
    code, _, err = longfit("stop", run.id, "--timeout", "0.3")
    assert code == 1
    assert "--kill" in err
    assert longfit("stop", run.id, "--kill")[0] == 0


def test_stop_of_a_run_that_is_not_running_is_bad_input(start, longfit):
    run = start(steps=1)
    longfit("attach", run.id)
    code, _, err = longfit("stop", run.id)
    assert code == 2
    assert "is done" in err


def test_resume_of_a_lost_run(start, longfit, monkeypatch):
    monkeypatch.setattr(app.cli.resume, "resume", functools.partial(resume, target=STAND_IN))
    run = start(steps=60, step_seconds=0.02, save_steps=5)
    wait_for_step(run, 7)
    family = family_of(observed_state(run).supervisor.pid)
    for process in family:
        send_signal(process, signal.SIGKILL)
    assert_all_gone(family)
    assert longfit("attach", run.id)[0] == 6
    code, out, err = longfit("resume", run.id)
    assert code == 0
    assert "resumed after step" in err
    assert "run created" not in err  # of the attempts only the last one is told
    assert "done: step 60 of 60" in out
    code, _, err = longfit("resume", run.id)
    assert code == 2
    assert "nothing to resume" in err


def test_runs_lists_what_is_there(start, longfit, tmp_path):
    assert longfit("runs")[:2] == (0, "RUN  STATE  STEP  LOSS  MODEL  LENGTH  AGE\n")
    done, failed = start(steps=3), start(steps=3, fail_at=2)
    for run in (done, failed):
        wait_for(lambda run=run: observed_state(run).status in ("done", "failed"))
    broken = make_run(tmp_path)
    broken.config.write_text("schema: 0\n")
    code, out, err = longfit("runs")
    assert code == 0
    first, second = out.splitlines()[1:]
    assert first.split()[:3] == [failed.id, "failed", "(oom)"]
    assert second.split()[:4] == [done.id, "done", "3/3", "0.3333"]
    assert broken.id in err
    listed = json.loads(longfit("runs", "--json")[1])
    assert [(run["id"], run["status"], run["loss"]) for run in listed["runs"]] == [
        (failed.id, "failed", 1.0), (done.id, "done", pytest.approx(1 / 3)),
    ]  # fmt: skip
    assert listed["unreadable"][0]["path"] == str(broken.path)


def test_runs_of_a_folder_that_is_not_there(capsys, tmp_path):
    assert main(["runs", "--runs-dir", str(tmp_path / "nowhere")]) == 2
    assert "There is no folder" in capsys.readouterr().err
    assert main(["runs", "--runs-dir", str(tmp_path)]) == 0
    assert f"no runs in {tmp_path}" in capsys.readouterr().err


def test_logs_show_what_workers_printed(start, longfit):
    run = start(steps=3, step_seconds=0.1)
    code, out, _ = longfit("logs", run.id, "--follow")
    assert code == 0
    assert "rank 0 of 1 is here" in out
    assert read_state(run).status == "done"
    run.log.write_text("".join(f"{i}\n" for i in range(100)) + "half")
    assert longfit("logs", run.id, "-n", "2")[1] == "98\n99\nhalf\n"
    assert longfit("logs", run.id, "--supervisor")[1] == ""


def test_an_unknown_run_is_exit_code_6(longfit):
    code, _, err = longfit("attach", "nothing")
    assert code == 6
    assert "no run 'nothing'" in err


def test_every_end_has_an_exit_code():
    from app.cli.attach import exit_code

    assert exit_code(RunState(status="done")) == exit_code(RunState(status="stopped")) == 0
    assert exit_code(RunState(status="lost")) == 6
    codes = {kind: exit_code(RunState(status="failed", failure_kind=kind)) for kind in FAILURE_KINDS}
    assert {kind: code for kind, code in codes.items() if code != 1} == {"oom": 4, "data": 2, "environment": 5}


_HEAD = ("RUN", "STATE", "STEP", "LOSS", "MODEL", "LENGTH", "AGE")
_LONG = ("20261130-021643-qwen2.5-7b-instruct-64k-of-my-own-ab12", "running", "1,200/5,000", "1.2345",
         "Qwen2.5-7B-Instruct", "65,536", "2 h")  # fmt: skip


def test_the_list_of_runs_is_no_wider_than_a_terminal_and_whole_where_there_is_none():
    whole = table_lines([_HEAD, _LONG], None)
    assert whole == table_lines([_HEAD, _LONG], len(whole[1]))
    assert [line.split()[0] for line in whole] == ["RUN", _LONG[0]]
    head, row = table_lines([_HEAD, _LONG], 84)
    assert len(row) <= 84
    assert head.split() == ["RUN", "STATE", "STEP", "LOSS"]
    assert row.startswith(_LONG[0])
    _, row = table_lines([_HEAD, _LONG], 60)
    assert len(row) <= 60
    assert row.split()[0].startswith("20261130-021643")
    assert row.split()[0].endswith("..-ab12")
    assert "running" in row
    assert "1,200/5,000" in row
