"""Rehearsals are written and read back: same GPU, same driver, same torch; damaged and older lines are passed over."""

from __future__ import annotations

import json

import pytest

from app.services.calibration import (
    calibration_file,
    calibration_record,
    experience_for,
    measured_used,
    store_calibration,
)
from app.services.planning import ladder_for, plan_preset, plan_resolved
from app.services.rehearse import Measured
from app.views.text import plan_text
from planner.measured import MEASURED_INSTANTS

NAME = "demo-smollm2"  # CPU processes: detected on every machine


@pytest.fixture
def resolved(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LONGFIT_CACHE", str(tmp_path))
    return plan_preset(NAME).resolved


def record_of(resolved, *, more: int = 0, now: float = 1_796_000_000.0) -> dict:
    plan = plan_resolved(resolved, calibrated=False)
    gpu = plan.worst_gpu
    peak = max(gpu.allocated.bytes_at(instant) for instant in MEASURED_INSTANTS["backward"])
    beside = gpu.used_bytes - gpu.allocated.peak_bytes
    reading = Measured(allocated_bytes=peak, used_bytes=peak + beside + more)
    low = Measured(allocated_bytes=1, used_bytes=2)
    return calibration_record(
        plan, measured={"load": low, "backward": reading}, tokens_per_second=2 * plan.tokens_per_second,
        evidence=("it ran",), now=now,
    )  # fmt: skip


def test_a_row_says_all_that_a_correction_needs(resolved) -> None:
    record = json.loads(json.dumps(record_of(resolved, more=5)))
    assert record["compared"]["measured_used"] - record["compared"]["planned_used"] == 5
    assert set(record["instants"]) == {"load", "backward"}
    assert record["instants"]["backward"]["planned_allocated_bytes"] > 0
    assert record["kernels"] == ["nccl", "ring"]
    assert record["driver"] is None
    assert record["torch"]
    assert record["facts"]["family"] == "llama"


def test_plans_on_this_machine_are_corrected_and_say_so(resolved) -> None:
    plain = plan_resolved(resolved)
    assert plain.calibration is None
    store_calibration("CPU", record_of(resolved, more=1_000_000))
    plan = plan_resolved(resolved)
    assert plan.worst_gpu.used_bytes == plain.worst_gpu.used_bytes + 1_000_000
    assert plan.tokens_per_second == pytest.approx(2 * plain.tokens_per_second)
    assert "Calibrated by 1 row of" in plan_text(plan)
    assert plan_resolved(resolved, calibrated=False).calibration is None


def test_another_torch_or_driver_counts_for_nothing(resolved) -> None:
    for change in ({"torch": "1.0"}, {"driver": "1.0"}, {"schema": 1}):
        store_calibration("CPU", {**record_of(resolved), **change})
    assert experience_for(resolved.cluster, resolved.environment).rows == ()


def test_a_line_cut_short_is_passed_over(resolved) -> None:
    path = store_calibration("CPU", record_of(resolved))
    path.write_text(path.read_text("utf-8") + '{"schema": 3, "ti', "utf-8")
    assert path == calibration_file("CPU")
    assert len(experience_for(resolved.cluster, resolved.environment).rows) == 1


def test_imagined_hardware_has_no_rehearsals(resolved) -> None:
    store_calibration("A10", record_of(resolved))
    assert plan_preset("qwen2.5-7b-8k-1x24g").plan.calibration is None


def test_the_ladder_finds_the_rungs_that_were_rehearsed(resolved) -> None:
    store_calibration("CPU", record_of(resolved))
    measured = measured_used(resolved.cluster)
    assert measured == {resolved.config.hash(): record_of(resolved)["measured_used_bytes"]}
    assert ladder_for(resolved).rungs
