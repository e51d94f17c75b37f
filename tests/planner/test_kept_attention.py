"""The plan of kept attention outputs: their bytes, and the attention that is not done again."""

from __future__ import annotations

import pytest

from tests.planner.plans import LEAN_LORA, QWEN_7B, account_of

KEEPING = {**LEAN_LORA, "gradient_checkpointing": {"save_attention": True}}


def kept_bytes(result, instant):
    return sum(
        spec.bytes
        for spec in result.combined.specs
        if spec.key.startswith("kept_attention") and instant in spec.instants
    )


def attention_work(result):
    return {work.key: work.amount for work in result.combined.work if work.kind == "attention"}


@pytest.mark.parametrize(("groups", "at_work"), [(1, 0), (2, 1)])
def test_outputs_of_all_layers_are_there_once(groups, at_work):
    extra = {} if groups == 1 else {"fake_parallel": {"groups": groups}}
    result = account_of({**KEEPING, **extra}, max_length=8192)
    one_layer = (2 * QWEN_7B.q_width + 4 * QWEN_7B.num_attention_heads) * 8192
    layers = QWEN_7B.num_layers
    assert kept_bytes(result, "forward_loss") == layers * one_layer
    assert kept_bytes(result, "layer_backward") == (layers - 1 + at_work) * one_layer
    assert kept_bytes(result, "backward_end") == (1 + at_work) * one_layer  # of the first layer, and of the second
    assert kept_bytes(result, "evaluation") == 0
    assert set(attention_work(result)) == {"attention.forward", "attention.backward"}


def test_outputs_that_wait_on_the_host_leave_their_log_sum_exps():
    result = account_of({**KEEPING, "checkpoint_offload": {}}, max_length=8192)
    output, lse = 2 * QWEN_7B.q_width * 8192, 4 * QWEN_7B.num_attention_heads * 8192
    layers = QWEN_7B.num_layers
    assert kept_bytes(result, "forward_loss") == layers * lse + output
    assert kept_bytes(result, "layer_backward") == (layers - 1) * lse + output  # beside that of the layer at work
    assert kept_bytes(result, "backward_end") == lse + output
    moved = 27 * (output + 2 * QWEN_7B.hidden_size * 8192)
    assert next(work.amount for work in result.combined.work if work.key == "pcie.offload") == 2 * moved


def test_outputs_of_head_groups_stay_on_the_gpu():
    keeping = {**KEEPING, "fake_parallel": {"groups": 2}}
    without, offloaded = (
        account_of({**keeping, **extra}, max_length=8192) for extra in ({}, {"checkpoint_offload": {}})
    )
    assert kept_bytes(offloaded, "layer_backward") == kept_bytes(without, "layer_backward")


def test_it_costs_memory_and_saves_time():
    plain, keeping = (account_of(optimizations, max_length=65536) for optimizations in (LEAN_LORA, KEEPING))
    assert max(keeping.combined.bytes_by_instant().values()) > max(plain.combined.bytes_by_instant().values())
    assert sum(attention_work(keeping).values()) * 4.5 == sum(attention_work(plain).values()) * 3.5
