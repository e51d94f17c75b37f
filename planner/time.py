"""Seconds of an optimizer step from declared work and a card's sustained rates: a roofline with overlap.

Rows of one H200 are predicted within 5 % for longfit and within 10 % for transformers with Liger
(tests/planner/test_time.py, test_golden_peers.py); other cards have assumed rates until a rehearsal replaces them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.effects import TermSpec, Work, WorkKind
from planner.optimization import PlanContext
from planner.types import GpuSpec, ModelSpec

STEP_TRAFFIC = 4  # times the bytes of gradients and states: read, written, square roots, quotients
STEP_OVERHEAD_S = 0.031  # of one step on a GPU: batch to device, first and last launches, the loop's Python
REFERENCE_SIZE = 3584  # hidden size for which a catalog entry says its GEMM rate
HALF_RATE_SIZE, GPU_OF_HALF_RATE = 512, 740e12  # hidden size of half the full rate, on a card of this GEMM rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Units of each kind of work per second, for the shapes of one model on one card."""

    gemm: float
    gemm_fp32: float
    attention: float
    memory: float
    pcie: float
    link: float
    overhead: float = 1e9

    def seconds(self, item: Work) -> float:
        return float(item.amount / getattr(self, item.kind))


def rates_of(gpu: GpuSpec, model: ModelSpec) -> Rates:
    """Thin matrices and narrow heads do not fill a large card.

    On one H200 products of a hidden size of 3584 reach 740 and of 896 about 560 TFLOP/s: d / (d + d0) of what wide
    ones reach, where d0 = 512 grows with the card. Attention with heads of 64 reaches 0.9 of that with heads of 128.
    """
    half_size = HALF_RATE_SIZE * gpu.gemm_flops / GPU_OF_HALF_RATE if gpu.kind == "cuda" else 0.0
    share = model.hidden_size / (model.hidden_size + half_size)
    reference = REFERENCE_SIZE / (REFERENCE_SIZE + half_size)
    heads = min(1.0, 0.8 + 0.2 * model.head_dim / 128) if gpu.kind == "cuda" else 1.0
    return Rates(
        gemm=gpu.gemm_flops * share / reference, gemm_fp32=gpu.fp32_flops or gpu.gemm_flops / 12,
        attention=gpu.attention_flops * heads, memory=gpu.memory_bytes_per_s, pcie=gpu.pcie_bytes_per_s,
        link=gpu.link_bytes_per_s,
    )  # fmt: skip


def micro_batch_seconds(rates: Rates, work: Sequence[Work]) -> float:
    """Work in turn, and beside it what overlaps: that costs only what sticks out of its window of the compute."""
    in_turn = sum(rates.seconds(item) for item in work if not item.overlapped)
    beside: dict[WorkKind, dict[float, float]] = {}  # seconds by window
    for item in work:
        if item.overlapped:
            windows = beside.setdefault(item.kind, {})
            windows[item.window] = windows.get(item.window, 0.0) + rates.seconds(item)
    return in_turn + max((_sticking_out(windows, in_turn) for windows in beside.values()), default=0.0)


def _sticking_out(windows: Mapping[float, float], in_turn: float) -> float:
    """Of one kind: of each window, or of the whole, whichever is more."""
    by_window = sum(max(0.0, seconds - window * in_turn) for window, seconds in windows.items())
    return max(by_window, sum(windows.values()) - in_turn)


def step_seconds(ctx: PlanContext, work: Sequence[Work], specs: Sequence[TermSpec]) -> float:
    """Accumulation times micro-batches, the gradient reduction over all ranks, the update, and a fixed overhead."""
    gpu, config = ctx.cluster.gpu, ctx.config
    rates = rates_of(gpu, ctx.model)
    gradients = sum(spec.bytes for spec in specs if spec.key.startswith("gradients.") and spec.key.endswith(".all"))
    states = sum(spec.bytes for spec in specs if spec.key.startswith("optimizer."))
    world = config.parallel.world
    is_reduced = config.optimization("fsdp") is not None  # within the backward: its work
    reduction = 0.0 if is_reduced else 2 * gradients * (world - 1) / world / rates.link
    update = STEP_TRAFFIC * (gradients + states) / rates.memory
    fixed = STEP_OVERHEAD_S if gpu.kind == "cuda" else 0.0
    return config.gradient_accumulation_steps * micro_batch_seconds(rates, work) + reduction + update + fixed
