"""app/views/run_view.py and series.py: a run in words, and its curves in bounded memory."""

import math

import pytest

from app.views.run_view import (
    MemoryHistory,
    event_lines,
    failure_text,
    loss_note,
    memory_rows,
    progress_view,
    rate_rows,
    status_view,
)
from app.views.series import DecimatedSeries, LossHistory
from planner.types import RunEvent, RunState

GIB = 1024**3
PLAN = {
    "tokens_per_second": 1000,
    "gpus": [
        {"index": 0, "usable_bytes": 22 * GIB, "peak": {"allocated_bytes": 10 * GIB, "used_bytes": 11 * GIB}},
        {"index": 1, "usable_bytes": 22 * GIB, "peak": {"allocated_bytes": 10 * GIB, "used_bytes": 11 * GIB}},
    ],
}


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


def test_progress_counts_what_is_left_from_the_newest_row():
    view = progress_view(
        RunState(status="running", step=10, total_steps=40), history([{"step": 10, "loss": 2.0, "seconds": 3.0}])
    )
    assert view.fraction == 0.25
    assert view.words == "step 10 of 40, 1 min 30 s left, 3.0 s a step"
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


def test_resumed_steps_replace_the_old_ones():
    curve = history([{"step": step, "loss": 1.0} for step in range(1, 11)])
    curve.extend([{"step": 6, "loss": 9.0}])
    assert [point.step for point in curve.raw.visible()] == [1, 2, 3, 4, 5, 6]
    assert curve.raw.visible()[-1].mean == 9.0


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
    assert rows["lr"] == "1.70e-04"
    assert rows["speed"] == "950 tokens/s (95 % of plan)"
    assert rows["eval"] == "n/a"


def test_memory_is_compared_above_the_baseline():
    memory = MemoryHistory(latest={})
    memory.extend(
        [
            {"rank": 0, "peak_bytes": 12 * GIB, "baseline_bytes": 2 * GIB, "allocated_bytes": 3 * GIB},
            {"rank": 0, "peak_bytes": 11 * GIB, "baseline_bytes": 2 * GIB, "allocated_bytes": 4 * GIB},
        ]
    )
    first, second = memory_rows(memory.latest, PLAN)
    assert (first.peak_bytes, first.planned_peak_bytes, first.deviation) == (10 * GIB, 10 * GIB, "+0.0 %")
    assert first.allocated_bytes == 4 * GIB
    assert (second.rank, second.peak_bytes, second.deviation) == (1, 0, "n/a")


def test_a_quarter_above_plan_asks_whether_everything_is_active():
    (row, _) = memory_rows({0: {"rank": 0, "peak_bytes": 13 * GIB, "baseline_bytes": 0}}, PLAN)
    assert row.remark == "3.00 GiB above plan: is every planned optimization active?"


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
        "rank 1 ended, signal SIGKILL",
        "something_new",
    ]


def test_failure_names_kind_step_message_and_checkpoint():
    state = RunState(
        status="failed", failure_kind="oom", failure_message="asked 9.27 GiB", step=1, total_steps=9,
        last_checkpoint="checkpoints/step-1",
    )  # fmt: skip
    text = failure_text(state, {"kind": "oom", "rank": 1, "log_tail": ["Traceback", "boom"], "fix": "fused_loss: true"})
    assert text.startswith("FAILED: out of memory, step 1 of 9")
    for fact in ("asked 9.27 GiB", "rank: 1", "boom", "fix: fused_loss: true", "checkpoints/step-1"):
        assert fact in text
    assert failure_text(RunState(status="running")) == ""
