"""Seconds of an optimizer step from declared work and a card's sustained rates: a roofline with overlap.

HF rows of one H200 are predicted within 15 % when adapter dtype, autocast and attention kernel are told apart
(tests/planner/test_time.py); other cards have assumed rates until a rehearsal replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.effects import TermSpec, Work
from planner.optimization import PlanContext
from planner.types import GpuSpec

STEP_TRAFFIC = 4  # times the bytes of gradients and states: read, written, square roots, quotients


def rate(gpu: GpuSpec, kind: str) -> float:
    """Units of a kind of work per second."""
    return {
        "gemm": gpu.gemm_flops,
        "gemm_fp32": gpu.fp32_flops or gpu.gemm_flops / 12,
        "attention": gpu.attention_flops,
        "memory": gpu.memory_bytes_per_s,
        "pcie": gpu.pcie_bytes_per_s,
        "link": gpu.link_bytes_per_s,
        "overhead": 1e9,
    }[kind]


def micro_batch_seconds(gpu: GpuSpec, work: Sequence[Work]) -> float:
    """Work in turn, and beside it what overlaps: that costs only what sticks out."""
    in_turn = sum(item.amount / rate(gpu, item.kind) for item in work if not item.overlapped)
    beside: dict[str, float] = {}
    for item in work:
        if item.overlapped:
            beside[item.kind] = beside.get(item.kind, 0.0) + item.amount / rate(gpu, item.kind)
    return max([in_turn, *beside.values()])


def seconds_by_kind(gpu: GpuSpec, work: Sequence[Work]) -> dict[str, float]:
    """For faces: where the time of a micro-batch goes."""
    seconds: dict[str, float] = {}
    for item in work:
        seconds[item.kind] = seconds.get(item.kind, 0.0) + item.amount / rate(gpu, item.kind)
    return seconds


def step_seconds(ctx: PlanContext, work: Sequence[Work], specs: Sequence[TermSpec]) -> float:
    """Accumulation times micro-batches, the gradient reduction over all ranks, the update."""
    gpu, config = ctx.cluster.gpu, ctx.config
    gradients = sum(spec.bytes for spec in specs if spec.key.startswith("gradients.") and spec.key.endswith(".all"))
    states = sum(spec.bytes for spec in specs if spec.key.startswith("optimizer."))
    world = config.parallel.world
    reduction = 2 * gradients * (world - 1) / world / rate(gpu, "link")
    update = STEP_TRAFFIC * (gradients + states) / rate(gpu, "memory")
    return config.gradient_accumulation_steps * micro_batch_seconds(gpu, work) + reduction + update
