"""Host processes: what loading a checkpoint holds, by the dtype it lies on the disk in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.measured import is_comparable
from planner.types import MemoryBreakdown
from tests.planner.plans import SMOLLM2, cpu_cluster, plan_of

MIB = 1024**2


def breakdown(dtype: str, checkpoint_dtype: str) -> MemoryBreakdown:
    model = replace(SMOLLM2, checkpoint_dtype=checkpoint_dtype)
    plan = plan_of({"lora": {"rank": 16}}, model=model, cluster=cpu_cluster(), dtype=dtype, max_length=256)
    return plan.worst_gpu.allocated


def load_bytes(dtype: str, checkpoint_dtype: str) -> int:
    return breakdown(dtype, checkpoint_dtype).bytes_at("load")


@pytest.mark.parametrize(
    ("dtype", "checkpoint_dtype", "copies"),
    [("bfloat16", "float32", 6), ("float32", "bfloat16", 6), ("float32", "float32", 0), ("bfloat16", "bfloat16", 0)],
)
def test_a_checkpoint_in_another_dtype_is_held_beside_the_parameters(
    dtype: str, checkpoint_dtype: str, copies: int
) -> None:
    """Measured for bfloat16 from float32: 779 MiB above the start, 256 of parameters, 513 of the file, 10 of code."""
    beside = load_bytes(dtype, "float32" if dtype == "float32" else "bfloat16")  # mapped: adapters and libraries only
    assert load_bytes(dtype, checkpoint_dtype) - beside == copies * SMOLLM2.num_parameters


def test_the_measured_peak_of_loading() -> None:
    above = load_bytes("bfloat16", "float32") - load_bytes("bfloat16", "bfloat16")
    assert above / MIB == pytest.approx(256 + 513, abs=2)


@pytest.mark.parametrize(("checkpoint_dtype", "expected"), [("float32", False), ("bfloat16", True)])
def test_the_loading_of_mapped_weights_is_not_held_against_the_plan(checkpoint_dtype: str, expected: bool) -> None:
    terms = [(term.key, term.instants) for term in breakdown("float32", checkpoint_dtype).terms]
    assert is_comparable("load", terms) is expected
    assert is_comparable("backward", terms)
