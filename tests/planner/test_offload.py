"""The plan of offloaded layer inputs: less on the GPU, the same bytes on the host, copies that hide behind compute."""

from __future__ import annotations

import pytest

from tests.planner.plans import (
    LEAN_LORA,
    QWEN_7B,
    SMOLLM2,
    account_of,
    cluster_of,
    codes,
    cpu_cluster,
    issue_of,
    plan_of,
)

GIB = 1024**3
OFFLOADED = {**LEAN_LORA, "checkpoint_offload": {}}


def layer_inputs(result, instant):
    specs = result.combined.specs
    return sum(spec.bytes for spec in specs if spec.key.startswith("layer_inputs") and instant in spec.instants)


@pytest.mark.parametrize(("kept", "on_gpu"), [(1, (2, 1, 2)), (10, (11, 10, 10)), (99, (28, 28, 28))])
def test_kept_layers_and_one_on_its_way_stay_on_the_gpu(kept, on_gpu):
    one = 2 * QWEN_7B.hidden_size * 8192
    result = account_of({**LEAN_LORA, "checkpoint_offload": {"kept_layers": kept}})
    instants = ("layer_forward", "forward_loss", "attention_backward")
    assert tuple(layer_inputs(result, instant) // one for instant in instants) == on_gpu


def test_what_leaves_the_gpu_is_needed_on_the_host():
    plain, offloaded = (plan_of(optimizations, max_length=131072) for optimizations in (LEAN_LORA, OFFLOADED))
    moved = 27 * 2 * QWEN_7B.hidden_size * 131072
    assert offloaded.host_bytes - plain.host_bytes == moved
    saved = plain.worst_gpu.allocated.bytes_at("forward_loss") - offloaded.worst_gpu.allocated.bytes_at("forward_loss")
    assert saved == moved
    assert offloaded.seconds_per_step == pytest.approx(plain.seconds_per_step)  # 55 GB/s hides behind compute


def test_a_host_that_is_too_small_is_told():
    plan = plan_of(OFFLOADED, max_length=131072, cluster=cluster_of("H200", host_bytes_per_node=20 * GIB))
    assert plan.host_verdict == "over"


def test_on_a_cpu_it_moves_nothing_out_of_the_process():
    keeping = {"lora": {}, "gradient_checkpointing": {"save_attention": True}}
    plain, offloaded = (
        plan_of({**keeping, **extra}, cluster=cpu_cluster(), dtype="float32", max_length=2048, model=SMOLLM2)
        for extra in ({}, {"checkpoint_offload": {}})
    )
    assert offloaded.worst_gpu.used_bytes == plain.worst_gpu.used_bytes
    assert offloaded.host_bytes == plain.host_bytes
    assert "offload-on-cpu" in codes(offloaded)


def test_it_asks_for_checkpointing():
    without = {name: knobs for name, knobs in OFFLOADED.items() if name != "gradient_checkpointing"}
    plan = plan_of(without)
    assert "offload-without-checkpointing" in codes(plan)
    assert issue_of(plan, "offload-without-checkpointing").suggestion == (("gradient_checkpointing", True),)
