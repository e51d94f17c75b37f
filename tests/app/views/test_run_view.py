"""app/views/run_view.py and series.py: a run in words, and its curves in bounded memory."""

import math
from dataclasses import replace

import pytest

from app.views.run_view import (
    event_lines,
    failure_text,
    loss_note,
    progress_view,
    rate_rows,
    status_view,
)
from app.views.series import DecimatedSeries, LossHistory
from planner.types import RunEvent, RunState

GIB = 1024**3
PLAN = {"tokens_per_second": 1000}


def history(rows):
    result = LossHistory()
    result.extend(rows)
    return result


def test_status_tells_phase_silence_and_attempt():
    state = RunState(status="starting", phase="load", updated_at=1000.0, attempt=2)
    view = status_view(state, now=1200.0)
    assert view.word == "STARTING"
    assert view.detail == "loading the model (attempt 2); no sign of life for 3 min 20 s"
    assert not view.is_final
    assert status_view(RunState(status="lost")).is_final
    assert "no sign of life" not in status_view(RunState(status="done", updated_at=1.0), now=1e9).detail


def test_a_log_that_grows_and_steps_that_take_long_are_no_silence():
    state = RunState(status="running", phase="load", updated_at=1000.0)
    assert "no sign of life" not in status_view(state, now=1300.0, last_output=1200.0).detail
    assert "no sign of life" not in status_view(state, now=1300.0, seconds_per_step=110.0).detail
    assert "no sign of life for 5 min 0 s" in status_view(state, now=1300.0, seconds_per_step=30.0).detail


def test_progress_counts_what_is_left_from_the_newest_rows_each_of_which_may_stand_for_several_steps():
    rows = [{"step": step, "loss": 2.0, "seconds": 12.0 + step % 2} for step in range(5, 105, 5)]
    view = progress_view(RunState(status="running", step=100, total_steps=400), history(rows))
    assert view.fraction == 0.25
    assert view.words == "step 100 of 400, 12 min 30 s left, 2.5 s a step"
    assert progress_view(RunState(), LossHistory()).words == "not started"


def test_first_point_is_shown_and_smoothing_is_bias_corrected():
    curve = history([{"step": 1, "loss": 2.5}])
    assert [point.mean for point in curve.raw.visible()] == [2.5]
    assert [point.mean for point in curve.smooth.visible()] == [pytest.approx(2.5)]


def test_nonfinite_losses_are_counted_not_drawn():
    curve = history([{"step": 1, "loss": 2.0}, {"step": 2, "loss": math.nan}, {"step": 3, "loss": None}])
    assert len(curve.raw.visible()) == 1
    assert loss_note(curve) == "2 values not finite, left out"
    assert loss_note(LossHistory(), logging_steps=10) == "waiting for the first row (logging_steps = 10)"


def test_half_a_million_rows_stay_small_and_keep_their_spike():
    series = DecimatedSeries(capacity=1024)
    for step in range(500_000):
        series.append(step, 50.0 if step == 123_456 else 1.0)
    points = series.visible()
    assert len(points) <= 1024
    assert max(point.high for point in points) == 50.0
    assert points[0].step == 0
    assert points[-1].step > 499_000


def test_rates_compare_speed_with_the_plan():
    row = {"step": 1, "loss": 1.2345678, "learning_rate": 1.7e-4, "grad_norm": 0.81, "tokens_per_second": 950.0}
    curve = history([row])
    rows = dict(rate_rows(curve, PLAN))
    assert rows["loss"] == "1.2346"
    assert rows["lr"] == "1.7e-04"
    assert rows["speed"] == "950 tokens/s, 95 % of plan"
    assert rows["eval"] == "n/a"


def test_events_are_sentences_and_steps_are_left_out():
    events = [
        RunEvent(time=0.0, type="phase", data={"name": "load"}),
        RunEvent(time=1.0, type="progress", data={"step": 3}),
        RunEvent(time=2.0, type="fallback", data={"optimization": "liger", "reason": "not installed"}),
        RunEvent(time=3.0, type="worker_exit", data={"rank": 1, "code": None, "signal": "SIGKILL"}),
        RunEvent(time=4.0, type="something_new", data={}),
    ]
    words = [line.split(" ", 1)[1] for line in event_lines(events)]
    assert words == [
        "loading the model",
        "fallback: liger: not installed",
        "rank 1 was ended by SIGKILL",
        "something_new",
    ]


def test_failure_names_kind_step_message_and_checkpoint():
    state = RunState(
        status="failed", failure_kind="oom", failure_message="asked 9.27 GiB", step=1, total_steps=9,
        last_checkpoint="checkpoints/step-1",
    )  # fmt: skip
    postmortem = {
        "kind": "oom",
        "rank": 1,
        "peaks": [
            {"rank": 1, "instant": "backward", "measured_bytes": 9 * GIB, "planned_bytes": GIB, "over_bytes": 8 * GIB}
        ],
        "exits": [
            {"rank": 1, "pid": 7, "code": None, "signal": "SIGKILL"},
            {"rank": None, "pid": 6, "code": 1},
        ],
        "traceback": "",
        "log_tail": ["Traceback", "  boom"],
    }
    text = failure_text(state, postmortem)
    assert text.startswith("FAILED: out of memory, rank 1, step 1 of 9")
    for fact in (
        "asked 9.27 GiB",
        "rank 1: 9.00 GiB, planned 1.00 GiB (+8.00 GiB), during backward",
        "rank 1, pid 7: was ended by SIGKILL",
        "launcher, pid 6: ended with exit code 1",
        "  boom",
        "Resume continues from checkpoints/step-1.",
    ):
        assert fact in text
    assert failure_text(RunState(status="running")) == ""


def test_a_stopped_run_says_from_where_it_can_go_on():
    stopped = RunState(status="stopped", step=19, last_checkpoint="/runs/r/checkpoints/step-19")
    assert status_view(stopped).detail == "at step 19, resumable"
    assert status_view(replace(stopped, step=0)).detail == "at step 0, resumable from step 19"
    assert status_view(replace(stopped, last_checkpoint="")).detail == "at step 19"


def test_out_of_memory_names_the_parts_and_the_changes_that_fit():
    postmortem = {
        "out_of_memory": {
            "instant": "backward", "usable_bytes": 14 * 1024**3,
            "parts": [{"part": "logits", "bytes": 12 * 1024**3}, {"part": "weights", "bytes": 3 * 1024**3}],
            "changes": [
                {"changes": {"fused_loss": True, "max_length": 4096}},
                {"changes": {"gradient_checkpointing": {"save_attention": True}}},
            ],
        }
    }  # fmt: skip
    text = failure_text(RunState(status="failed", failure_kind="oom"), postmortem)
    assert "logits 12.0 GiB, weights 3.00 GiB" in text
    assert "the planner says that this fits into 14.0 GiB" in text
    assert "--set fused_loss=true --set max_length=4096" in text
    assert "--set 'gradient_checkpointing={save_attention: true}'" in text
