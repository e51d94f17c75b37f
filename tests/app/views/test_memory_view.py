"""app/views/memory_view.py: measured memory against the plan, per rank and per instant."""

import pytest

from app.views.memory_view import (
    MemoryHistory,
    drift_alarms,
    gpu_words,
    host_words,
    instant_memory_rows,
    memory_rows,
)

GIB = 1024**3
GPU = {
    "index": 0,
    "usable_bytes": 22 * GIB,
    "peak": {"allocated_bytes": 10 * GIB, "used_bytes": 11 * GIB},
    "allocated_bytes_by_instant": {"load": 6 * GIB, "loss_backward": 10 * GIB, "layer_backward": 7 * GIB},
}
PLAN = {"gpus": [GPU, {**GPU, "index": 1}]}


def worker_row(instant, gib, *, rank=0, step=1):
    return {"rank": rank, "step": step, "instant": instant, "allocated_bytes": int(gib * GIB), "used_bytes": 12 * GIB}


def history(*rows):
    result = MemoryHistory()
    assert result.extend(rows) == len(rows)
    return result


def test_the_peak_is_the_highest_allocated_and_ranks_that_are_silent_are_shown():
    first, second = memory_rows(
        history(worker_row("forward", 6), worker_row("backward", 10), worker_row("step", 3)), PLAN
    )
    assert (first.peak_bytes, first.peak_instant, first.deviation) == (10 * GIB, "backward", "+0.0 %")
    assert first.allocated_bytes == 3 * GIB
    assert (second.rank, second.peak_bytes, second.deviation) == (1, 0, "n/a")


def test_a_quarter_above_plan_asks_whether_everything_is_active():
    (row, _) = memory_rows(history(worker_row("backward", 13)), PLAN)
    assert row.remark == "30 % above plan (+3.00 GiB): is every planned optimization active?"
    (row, _) = memory_rows(history(worker_row("backward", 12)), PLAN)
    assert row.remark == ""


def test_instants_are_compared_with_the_highest_planned_instant_they_cover():
    rows = instant_memory_rows(history(worker_row("load", 6), worker_row("backward", 11)).ranks[0], GPU)
    assert [(row.instant, row.planned_bytes // GIB, row.deviation) for row in rows] == [
        ("load", 6, "+0.0 %"),
        ("backward", 10, "+10.0 %"),
    ]


def test_the_loading_of_mapped_weights_is_no_comparison():
    """Their term begins after loading: what is resident before is the page cache's affair."""
    measured = history(worker_row("load", 9), worker_row("backward", 11)).ranks[0]
    for instants, deviation in ((["loss_backward"], "n/a"), (["load", "loss_backward"], "+50.0 %")):
        planned = {**GPU, "terms": [{"key": "weights.base", "instants": instants}]}
        assert [row.deviation for row in instant_memory_rows(measured, planned)] == [deviation, "+10.0 %"]


def test_supervisor_rows_bring_gpus_and_resident_sets():
    memory = history(
        {
            "source": "supervisor",
            "host_available_bytes": 5 * GIB,
            "host_total_bytes": 16 * GIB,
            "disk_free_bytes": 200 * GIB,
            "ranks": [{"rank": 0, "rss_bytes": GIB}],
            "gpus": [
                {"index": 0, "used_bytes": 20 * GIB, "total_bytes": 22 * GIB, "utilization": 97, "temperature": 72,
                 "power_watts": 148.4},
                {"index": 1, "used_bytes": None, "total_bytes": None, "utilization": None, "problem": "lost"},
            ],
        }
    )  # fmt: skip
    assert gpu_words(memory) == ("GPU 0: 20.0 GiB of 22.0 GiB, 97 % busy, 72 C, 148 W", "GPU 1: memory n/a, lost")
    assert host_words(memory) == ("host memory 11.0 GiB of 16.0 GiB used", "disk 200 GiB free")
    assert memory_rows(memory, None)[0].used_bytes == GIB


def test_a_driver_that_fails_for_a_moment_leaves_the_last_values_standing():
    memory = MemoryHistory()

    def sample(*gpus):
        memory.extend([{"source": "supervisor", "host_available_bytes": None, "gpus": list(gpus)}])
        return gpu_words(memory)

    sample({"index": 0, "used_bytes": 20 * GIB, "total_bytes": 22 * GIB, "utilization": None})
    assert sample() == ("GPU 0: 20.0 GiB of 22.0 GiB, busy n/a",)
    failed = {"index": 0, "used_bytes": None, "total_bytes": None, "utilization": None, "problem": "lost"}
    assert sample(failed) == ("GPU 0: 20.0 GiB of 22.0 GiB, lost",)
    assert sample({"index": 0, "used_bytes": 2 * GIB, "utilization": 5}) == ("GPU 0: 2.00 GiB of 22.0 GiB, 5 % busy",)


@pytest.mark.parametrize(
    ("planned", "question"),
    [
        ({"lora": {}, "ulysses": {"degree": 2}, "fused_loss": {}}, "is sequence parallelism active?"),
        ({"lora": {}, "fused_loss": {}}, "is the fused loss active?"),
        ({"lora": {}}, "is every planned optimization active?"),
    ],
)
def test_drift_asks_whether_what_the_plan_counts_on_is_active(planned, question):
    plan = {**PLAN, "config": {"optimizations": planned}}
    assert drift_alarms(history(worker_row("backward", 12.4)), plan) == ()
    alarms = drift_alarms(history(worker_row("backward", 13)), plan)
    assert alarms == (f"rank 0: 30 % above plan (+3.00 GiB): {question}",)
