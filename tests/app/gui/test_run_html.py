"""The Run tab's fragments: what a run directory holds, in words, without a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.gui import run_html
from app.gui.run_reader import RunReader, RunReaders
from app.views.run_view import status_view
from planner.types import RunEvent, RunState
from tests.app.gui.run_folder import MIB, attend, end_run, make_run, memory_row

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def reader(tmp_path: Path) -> RunReader:
    run = make_run(tmp_path)
    end_run(run, "done")
    reader = RunReader(run)
    reader.refresh()
    return reader


def test_the_state_is_a_word_in_a_status(reader: RunReader) -> None:
    html = run_html.status_html(status_view(reader.state))
    assert 'role="status"' in html
    assert ">DONE<" in html


def test_progress_is_a_bar_and_words(reader: RunReader) -> None:
    html = run_html.progress_html(reader.state, reader.loss)
    assert 'value="0.4000"' in html
    assert "40 %, step 40 of 100" in html


def test_the_loss_chart_has_steps_smoothed_steps_and_evaluations(reader: RunReader) -> None:
    html = run_html.loss_html(reader.loss, logging_steps=1, log_y=False)
    assert "train, last 1.285" in html
    assert "smoothed, last" in html
    assert "evaluation, last 1.4" in html


def test_before_the_first_row_it_says_what_it_waits_for(tmp_path: Path) -> None:
    reader = RunReader(make_run(tmp_path, num_steps=0))
    html = run_html.loss_html(reader.loss, logging_steps=10, log_y=False)
    assert "logging_steps = 10" in html


def test_memory_is_laid_beside_the_plan(reader: RunReader) -> None:
    plan = reader.paths.read_json(reader.paths.plan)
    html = run_html.memory_html(reader.memory, plan)
    assert "plan 900 MiB" in html
    assert "rank 1" in html
    assert "-1.0 %" in html  # 891 of 900 MiB


def test_memory_far_above_the_plan_asks_whether_everything_is_active(tmp_path: Path) -> None:
    run = make_run(tmp_path, num_steps=1)
    reader = RunReader(run)
    reader.refresh()
    reader.memory.extend([memory_row(2, 0, "backward", 2000 * MIB)])
    assert "is every planned optimization active?" in run_html.memory_html(reader.memory, run.read_json(run.plan))


def test_each_step_shows_its_highest_instant(reader: RunReader) -> None:
    points = run_html._highest_by_step(reader.memory.ranks[0].curve, MIB)
    assert points[-1] == (40, pytest.approx(891))
    assert [step for step, _ in points] == sorted({step for step, _ in points})


def test_events_come_newest_first() -> None:
    events = [RunEvent(time=1.0, type="created"), RunEvent(time=2.0, type="warning", data={"message": HOSTILE})]
    html = run_html.events_html(events)
    assert html.index("warning") < html.index("run created")
    assert HOSTILE not in html


def test_the_post_mortem_is_an_alert_and_escaped() -> None:
    state = RunState(status="failed", failure_kind="oom", failure_message=HOSTILE, step=3, total_steps=9)
    html = run_html.failure_html(state, {"rank": 1, "log_tail": [HOSTILE]})
    assert 'role="alert"' in html
    assert "FAILED: out of memory, rank 1, step 3 of 9" in html
    assert HOSTILE not in html
    assert run_html.failure_html(RunState(status="running"), {}) == ""


def test_the_log_loses_terminal_colours_and_markup() -> None:
    assert run_html.log_html(["\x1b[31mred\x1b[0m", HOSTILE]) == (
        "<pre>red\n&lt;script&gt;alert(1)&lt;/script&gt;</pre>"
    )


def test_a_reader_takes_in_only_what_is_new_and_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path, num_steps=5)
    readers = RunReaders()
    with readers.opened(run) as reader:
        version = reader.version
        assert reader.loss.num_rows == 7  # five steps, two evaluations
    with readers.opened(run) as again:
        assert again is reader
        assert again.version == version
    with run.metrics.open("a") as file:
        file.write('{"step": 6, "loss": 1.0}\n')
    with readers.opened(run) as again:
        assert again.version > version
        assert again.loss.last["step"] == 6


def test_rows_that_a_resume_set_aside_are_forgotten(tmp_path: Path) -> None:
    run = make_run(tmp_path, num_steps=5)
    reader = RunReader(run)
    reader.refresh()
    replaced = run.path / "metrics.new"
    replaced.write_text('{"step": 1, "loss": 2.0}\n')
    replaced.replace(run.metrics)
    reader.refresh()
    assert [point.step for point in reader.loss.raw.visible()] == [1]


def test_a_run_that_nobody_attends_is_lost(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    reader = RunReader(run)
    reader.refresh()
    assert reader.state.status == "lost"
    attend(run)
    reader.refresh()
    assert reader.state.status == "running"
