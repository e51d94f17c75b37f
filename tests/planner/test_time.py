"""Seconds of a step: measured rows, and what has to move them in which direction."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.catalog.gpus import GPUS
from planner.effects import Work
from planner.time import micro_batch_seconds, seconds_by_kind
from planner.types import ParallelDegrees
from tests.planner.plans import LEAN_LORA, account_of, cluster_of, plan_of

H200 = GPUS["H200"]


def gemm(amount: int, overlapped: bool = False, kind: str = "gemm") -> Work:
    return Work(key=f"{kind}.{amount}", kind=kind, amount=amount, formula="", overlapped=overlapped)  # type: ignore[arg-type]


def test_overlapped_work_costs_only_what_sticks_out() -> None:
    second = int(H200.gemm_flops)
    link = int(H200.link_bytes_per_s)
    assert micro_batch_seconds(H200, [gemm(second)]) == pytest.approx(1)
    assert micro_batch_seconds(H200, [gemm(second), gemm(link // 2, True, "link")]) == pytest.approx(1)
    assert micro_batch_seconds(H200, [gemm(second), gemm(3 * link, True, "link")]) == pytest.approx(3)
    assert micro_batch_seconds(H200, [gemm(second), gemm(link, False, "link")]) == pytest.approx(2)


def test_flops_are_those_of_the_recompute_policy() -> None:
    """LoRA with full recompute executes 6NS + 4HS + 4.5a (notes on long context, section 5), adapters aside."""
    work = {item.key: item.amount for item in account_of(max_length=32768).combined.work}
    model, length = account_of().ctx.model, 32768
    causal = 2 * model.num_layers * model.q_width * length**2
    products = sum(v for k, v in work.items() if k.startswith("gemm.") and k != "gemm.adapters")
    head = model.vocab_size * model.hidden_size
    assert products == (6 * model.num_linear_parameters + 4 * head) * length
    assert sum(v for k, v in work.items() if k.startswith("attention.")) == 4.5 * causal
    full = {item.key: item.amount for item in account_of({}, max_length=32768).combined.work}
    assert sum(v for k, v in full.items() if k.startswith("gemm.")) == (
        (6 * model.num_linear_parameters + 6 * head) * length
    )
    assert sum(v for k, v in full.items() if k.startswith("attention.")) == 3.5 * causal


@pytest.mark.parametrize(
    ("length", "dtype", "autocast", "attention", "measured"),
    [  # HF + Liger on one H200: Liger's kernels spare element-wise traffic, so the plan may only be slower
        (8192, "bfloat16", True, 550e12, 10227),
        (32768, "bfloat16", True, 550e12, 7446),
        (131072, "bfloat16", True, 550e12, 3260),
        (8192, "bfloat16", True, 325e12, 9032),
        (32768, "bfloat16", True, 325e12, 5631),
        (8192, "float32", True, 550e12, 8743),
        (32768, "float32", True, 550e12, 6620),
        (8192, "float32", False, 550e12, 6611),
        (32768, "float32", False, 550e12, 5366),
    ],
)
def test_adapter_dtype_autocast_and_kernel_are_told_apart(
    length: int, dtype: str, autocast: bool, attention: float, measured: float
) -> None:
    lora = {**LEAN_LORA, "lora": {"rank": 64, "adapter_dtype": dtype}}
    cluster = cluster_of(replace(H200, attention_flops=attention))
    plan = plan_of(lora, cluster=cluster, max_length=length, autocast=autocast)
    assert plan.tokens_per_second == pytest.approx(measured, rel=0.15)


def test_every_part_of_the_time_is_named() -> None:
    combined = account_of().combined
    seconds = seconds_by_kind(H200, combined.work)
    assert set(seconds) == {"gemm", "gemm_fp32", "attention", "memory", "overhead"}
    assert all(value > 0 for value in seconds.values())
    assert all(item.formula for item in combined.work)


def test_checkpointing_costs_about_a_forward_and_sequence_ranks_pay_for_their_link() -> None:
    lean = plan_of(LEAN_LORA)
    kept = plan_of({k: v for k, v in LEAN_LORA.items() if k != "gradient_checkpointing"})
    assert 1.2 < lean.seconds_per_step / kept.seconds_per_step < 1.5
    two = cluster_of(count=2)
    spread = plan_of(LEAN_LORA, parallel=ParallelDegrees(ulysses=2), cluster=two, max_length=65536)
    slow_link = cluster_of(replace(H200, link_bytes_per_s=10e9), 2)
    slower = plan_of(LEAN_LORA, parallel=ParallelDegrees(ulysses=2), cluster=slow_link, max_length=65536)
    assert spread.seconds_per_step < slower.seconds_per_step


def test_accumulation_repeats_micro_batches_and_not_the_update() -> None:
    once, four = (plan_of({}, gradient_accumulation_steps=n).seconds_per_step for n in (1, 4))
    assert 3 * once < four < 4 * once
