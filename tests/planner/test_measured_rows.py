"""The plan against what one H200 really held (benchmarks/results, written by benchmarks/plan_against_gpu.py)."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from app.services.hardware import parse_cluster
from app.services.planning import plan_resolved
from app.services.resolve import resolve
from planner.types import Plan, Preset

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-29-h200-plan-against-measured.csv"
ROWS = list(csv.DictReader(RESULTS.open()))


ALLOCATED_TOLERANCE = 0.002
USED_TOLERANCE = {"full-0.5b-16384": 0.10}  # of 6 GB, where holes and context weigh most


def planned(row: dict[str, str]) -> Plan:
    values = {
        "model": row["model"], "max_length": int(row["length"]), "data": {"train": ["random"]}, "engine": "module",
    }  # fmt: skip
    preset = Preset(name=row["row"], description="", values={**values, **json.loads(row["values"])})
    return plan_resolved(resolve(preset, cluster=parse_cluster("H200")))


def with_the_loss_of_that_commit(plan: Plan) -> int:
    """The allocated peak. These rows were measured when a chunk's loss was several kernels: fp32 logits, log-sum-exp
    beside them, and the 16-bit gradient of the chunk before, 10 bytes a logit where one kernel now holds 4."""
    breakdown, chunk = plan.worst_gpu.allocated, 1024
    now = next((term.bytes for term in breakdown.terms if term.key == "fused_loss.chunk"), None)
    then = 10 * plan.model.vocab_size * chunk
    more = 0 if now is None else then - now
    return max(size + more * (instant == "forward_loss") for instant, size in breakdown.by_instant().items())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["row"])
def test_allocated_peak_is_close_to_measured(row: dict[str, str]) -> None:
    peak, measured = with_the_loss_of_that_commit(planned(row)), int(row["measured_allocated"])
    assert abs(peak / measured - 1) <= ALLOCATED_TOLERANCE, peak / measured - 1


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["row"])
def test_used_bytes_are_close_to_measured(row: dict[str, str]) -> None:
    gpu, measured = planned(row).worst_gpu, int(row["measured_used"])
    tolerance = USED_TOLERANCE.get(row["row"], 0.04)
    assert abs(gpu.used_bytes / measured - 1) <= tolerance, gpu.used_bytes / measured - 1


def test_the_rows_say_where_they_come_from() -> None:
    assert len(ROWS) >= 14
    for row in ROWS:
        assert row["gpu"] == "NVIDIA H200"
        assert row["commit"]
        assert row["date"] == "2026-11-29"
