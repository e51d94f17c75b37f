"""Measured rows of one H200: Qwen2.5-7B shape, LoRA r64 on all linears, per-layer checkpointing, stock loss, batch 1.

torch 2.11, transformers 5.17, peft 0.21, torch AdamW, third step, fp32 adapters without autocast, allocator without
expandable segments, attention at cuDNN's speed. GiB and tokens/s.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.types import Plan
from tests.planner.plans import GIB, QWEN_7B, plan_of

ROWS = [  # length, allocated, reserved, NVML used, tokens/s
    (8192, 31.62, 36.02, 36.77, 6038),
    (16384, 47.19, 53.07, 53.82, 5685),
    (32768, 78.32, 89.38, 90.13, 4945),
]
STATIC_AFTER_BUILDING = 14.79


def golden_plan(length: int) -> Plan:
    return plan_of(
        {"lora": {"rank": 64, "adapter_dtype": "float32"}, "gradient_checkpointing": {}},
        max_length=length, expandable_segments=False,
    )  # fmt: skip


@pytest.mark.parametrize(("length", "allocated", "reserved", "used", "speed"), ROWS)
def test_measured_rows(length: int, allocated: float, reserved: float, used: float, speed: float) -> None:
    plan = golden_plan(length)
    gpu = plan.gpus[0]
    assert gpu.allocated.peak_bytes / GIB == pytest.approx(allocated, rel=0.001)
    assert gpu.reserved_bytes / GIB == pytest.approx(reserved, rel=0.04)
    assert gpu.used_bytes / GIB == pytest.approx(used, rel=0.04)
    assert plan.tokens_per_second == pytest.approx(speed, rel=0.15)
    assert plan.peak_instant == "loss_backward"


def test_static_bytes_after_building() -> None:
    assert golden_plan(8192).gpus[0].allocated.bytes_at("load") / GIB == pytest.approx(STATIC_AFTER_BUILDING, abs=0.005)


def test_logits_of_a_large_vocabulary_are_seen_and_vanish_with_the_fused_loss() -> None:
    """65,536 tokens x 262,144 words: one fp32 copy of the logits is 64 GiB (bug case k10_logits)."""
    model = replace(QWEN_7B, vocab_size=262144, max_position_embeddings=65536)
    stock = plan_of({"lora": {}, "gradient_checkpointing": {}}, model=model, max_length=65536)
    logits = {term.key: term.bytes for term in stock.gpus[0].allocated.terms if term.part == "logits"}
    assert logits["logits.backward"] == 3 * 64 * GIB
    assert stock.verdict == "over"
    fused = plan_of({"lora": {}, "gradient_checkpointing": {}, "fused_loss": {}}, model=model, max_length=65536)
    assert max(term.bytes for term in fused.gpus[0].allocated.terms if term.part == "logits") < 4 * GIB
