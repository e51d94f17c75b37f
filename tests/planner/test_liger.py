"""The plan of Liger's kernels: less saved in the layer at work, less memory traffic, refused where it cannot run."""

from __future__ import annotations

import pytest

from tests.planner.plans import LEAN_LORA, cluster_of, codes, cpu_cluster, environment_of, plan_of

GIB = 1024**3
BF16_LORA = {**LEAN_LORA, "lora": {"rank": 64, "adapter_dtype": "bfloat16"}}
LIGER = {**BF16_LORA, "liger": {}}


@pytest.mark.parametrize("length", [8192, 32768])
def test_it_needs_less_and_is_faster(length):
    plain, liger = (plan_of(optimizations, max_length=length) for optimizations in (BF16_LORA, LIGER))
    assert liger.worst_gpu.allocated.peak_bytes < plain.worst_gpu.allocated.peak_bytes
    assert liger.tokens_per_second > plain.tokens_per_second


@pytest.mark.parametrize(("length", "measured_gib"), [(8192, 18.49), (32768, 28.48)])
def test_the_peak_is_near_that_of_transformers_with_liger_on_one_h200(length, measured_gib):
    """Another engine with the same kernels: its loss differs, so this is a bound on blunders, not a golden row."""
    planned = plan_of(LIGER, max_length=length).worst_gpu.allocated.peak_bytes / GIB
    assert planned == pytest.approx(measured_gib, rel=0.1)


def test_it_is_refused_without_a_gpu_or_the_package():
    assert "liger-device" in codes(plan_of({**LEAN_LORA, "liger": {}}, cluster=cpu_cluster(), dtype="float32"))
    cluster = cluster_of()
    environment = environment_of(cluster, ("peft",), source="detected")
    assert "package-liger" in codes(plan_of(LIGER, cluster=cluster, environment=environment))
