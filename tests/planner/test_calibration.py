"""Rehearsals correct plans: offset, slope, speed, band; the numeric path sees the same correction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.optimizations import REGISTRY
from planner.calibration import GROWING, CalibrationRow, Experience, calibration_for, calibration_words, kernels_of
from planner.calibration import median as middle
from planner.plan import make_plan
from planner.price import price
from planner.space import Problem
from planner.types import ParallelDegrees, Plan
from planner.validated import facts_of
from tests.planner.plans import LEAN_LORA, QWEN_7B, cluster_of, cpu_cluster, environment_of, run_config

MIB = 1024**2
CLUSTER = cluster_of("A10")


def inputs(**values: Any) -> dict[str, Any]:
    return {
        "config": run_config(LEAN_LORA, **values), "model": QWEN_7B, "cluster": CLUSTER,
        "environment": environment_of(CLUSTER), "registry": REGISTRY,
    }  # fmt: skip


def rehearsed(plan: Plan, *, offset: int = 0, slope: float = 1.0, speed: float = 1.0, day: int = 1) -> CalibrationRow:
    """A row as if the machine had differed by exactly this."""
    gpu = plan.worst_gpu
    growing = sum(size for part, size in gpu.allocated.by_part().items() if part in GROWING)
    more = round((slope - 1) * growing)
    return CalibrationRow(
        date=f"2026-11-{day:02d}", kernels=kernels_of(plan.config), facts=facts_of(plan.config, plan.model),
        planned_allocated=gpu.allocated.peak_bytes, planned_growing=growing, planned_used=gpu.used_bytes,
        measured_allocated=gpu.allocated.peak_bytes + more, measured_used=gpu.used_bytes + more + offset,
        planned_tokens_per_second=plan.tokens_per_second, measured_tokens_per_second=speed * plan.tokens_per_second,
    )  # fmt: skip


def test_a_calibrated_plan_meets_what_was_measured() -> None:
    plain = make_plan(**inputs())
    row = rehearsed(plain, offset=300 * MIB, slope=1.05, speed=0.8)
    plan = make_plan(**inputs(), experience=Experience(rows=(row,)))
    gpu = plan.worst_gpu
    assert gpu.allocated.peak_bytes == pytest.approx(row.measured_allocated, rel=1e-4)
    assert gpu.used_bytes == pytest.approx(row.measured_used, rel=1e-4)
    assert plan.tokens_per_second == pytest.approx(0.8 * plain.tokens_per_second)
    assert gpu.used_bytes - gpu.allocated.peak_bytes == sum(term.bytes for term in gpu.context_terms)
    assert sum(t.bytes for t in gpu.allocated.terms if plan.peak_instant in t.instants) == gpu.allocated.peak_bytes


def test_the_correction_holds_at_another_length_and_says_where_it_comes_from() -> None:
    row = rehearsed(make_plan(**inputs()), offset=-100 * MIB, slope=0.9, day=29)
    other, plain = make_plan(**inputs(max_length=4096), experience=Experience(rows=(row,))), make_plan(
        **inputs(max_length=4096)
    )  # fmt: skip
    growing = sum(s for p, s in plain.worst_gpu.allocated.by_part().items() if p in GROWING)
    wanted = plain.worst_gpu.used_bytes - 100 * MIB - 0.1 * growing
    assert other.worst_gpu.used_bytes == pytest.approx(wanted, rel=1e-4)
    assert other.calibration is not None
    assert calibration_words(other.calibration, CLUSTER.gpu) == "calibrated by 1 row of 2026-11-29 on this GPU"
    changed = [term for term in other.worst_gpu.allocated.terms if "calibrated by 1 row" in term.formula]
    assert changed
    assert all(term.basis == "measured" and term.part in GROWING for term in changed)


def test_several_rows_give_medians_the_latest_date_and_a_band_that_covers_them() -> None:
    plain = make_plan(**inputs())
    rows = [rehearsed(plain, offset=o * MIB, day=d) for o, d in ((100, 3), (200, 9), (1400, 5))]
    found = calibration_for(plain.config, rows)
    assert found is not None
    assert (found.num_rows, found.date, found.offset_bytes) == (3, "2026-11-09", 200 * MIB)
    plan = make_plan(**inputs(), experience=Experience(rows=tuple(rows)))
    low, high = plan.worst_gpu.band_bytes
    assert low <= min(row.measured_used for row in rows)
    assert high >= max(row.measured_used for row in rows) * 0.999
    narrow = make_plan(**inputs(), experience=Experience(rows=(rows[0],)))
    assert narrow.worst_gpu.band_bytes[1] - narrow.worst_gpu.used_bytes == pytest.approx(
        0.015 * narrow.worst_gpu.used_bytes, abs=2
    )


def test_rows_of_other_kernels_say_nothing() -> None:
    plain = make_plan(**inputs())
    row = replace(rehearsed(plain, offset=10**9), kernels=frozenset({"liger"}))
    plan = make_plan(**inputs(), experience=Experience(rows=(row,)))
    assert plan.calibration is None
    assert plan.worst_gpu == plain.worst_gpu


def test_several_ranks_bring_nccl() -> None:
    assert kernels_of(run_config(LEAN_LORA, parallel=ParallelDegrees(data=2))) == {"nccl"}
    assert kernels_of(run_config({"lora": {}, "liger": {}})) == {"liger"}


def test_the_search_corrects_as_plans_do() -> None:
    given = inputs()
    experience = Experience(rows=(rehearsed(make_plan(**given), offset=500 * MIB, slope=1.1, speed=0.7),))
    plan = make_plan(**given, experience=experience)
    candidate = price(Problem(**given, experience=experience), given["config"])
    assert candidate is not None
    assert candidate.sizes.used == plan.worst_gpu.used_bytes
    assert candidate.sizes.band == plan.worst_gpu.band_bytes
    assert candidate.tokens_per_second == plan.tokens_per_second
    assert candidate.verdict == plan.verdict


def test_what_was_rehearsed_here_is_no_longer_unverified() -> None:
    values = {"max_length": 2048}
    given = {**inputs(**values), "config": run_config({**LEAN_LORA, "lora": {"dropout": 0.1}}, **values)}
    before = make_plan(**given)
    assert before.verdict == "unverified"
    assert any("lora.dropout" in issue.what for issue in before.issues if issue.code == "never-measured")
    after = make_plan(**given, experience=Experience(rows=(rehearsed(before),)))
    assert after.verdict == "fits"
    assert all(issue.code != "never-measured" for issue in after.issues)


def test_an_absurd_row_bends_a_plan_only_so_far() -> None:
    plain = make_plan(**inputs())
    row = replace(rehearsed(plain), measured_allocated=10 * plain.worst_gpu.allocated.peak_bytes)
    assert row.slope == 2.0


def test_a_cpu_process_is_calibrated_too() -> None:
    cluster = cpu_cluster()
    given = {**inputs(max_length=256, dtype="float32"), "cluster": cluster, "environment": environment_of(cluster)}
    plain = make_plan(**given)
    row = rehearsed(plain, offset=-64 * MIB)
    plan = make_plan(**given, experience=Experience(rows=(row,)))
    assert plan.worst_gpu.used_bytes == plain.worst_gpu.used_bytes - 64 * MIB


@pytest.mark.parametrize(("values", "wanted"), [([3], 3), ([1, 9, 2], 2), ([4, 1, 3, 2], 2.5)])
def test_median(values: list[float], wanted: float) -> None:
    assert middle(values) == wanted
