"""Operands of more elements than a kernel can index: handed over by KV heads, with the same numbers; or refused."""

from __future__ import annotations

import pytest
import torch

from core.attention.kernel import CpuFlashKernel
from core.attention.segments import backward_segments, forward_segments
from core.loss import chunked
from core.loss.chunked import ChunkedLoss
from planner.errors import ConfigError


class Small(CpuFlashKernel):
    """Remembers the largest operand of a call."""

    def __init__(self, max_elements):
        self.max_elements = max_elements
        self.largest = 0

    def forward(self, q, k, v, *, causal, scale):
        self.largest = max(self.largest, q.numel())
        return super().forward(q, k, v, causal=causal, scale=scale)

    def backward(self, dout, q, k, v, out, lse, *, causal, scale):
        self.largest = max(self.largest, q.numel())
        return super().backward(dout, q, k, v, out, lse, causal=causal, scale=scale)


def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 40, h, 8, generator=generator, dtype=torch.float64).transpose(1, 2) for h in (12, 4, 4, 12)]


def run(kernel, bounds):
    q, k, v, dout = inputs()
    out, lse = forward_segments(kernel, q, k, v, bounds, 0.3)
    return [out, lse, *backward_segments(kernel, dout, q, k, v, out, lse, bounds, 0.3)]


@pytest.mark.parametrize("bounds", [(0, 40), (0, 1, 17, 40)], ids=["dense", "packed"])
@pytest.mark.parametrize("limit", [12 * 40 * 8 - 1, 6 * 40 * 8, 3 * 40 * 8])
def test_calls_stay_below_the_limit_and_change_no_number(bounds, limit):
    kernel = Small(limit)
    for got, want in zip(run(kernel, bounds), run(CpuFlashKernel(), bounds)):
        assert (got - want).abs().max() < 1e-13  # threads split fewer heads otherwise, and sum in another order
    assert 0 < kernel.largest <= limit


def test_heads_of_one_kv_head_that_are_too_many_are_refused_with_numbers():
    with pytest.raises(ConfigError, match=r"40 tokens and 3 heads for each KV head have more than 959 elements"):
        run(Small(3 * 40 * 8 - 1), (0, 40))


def test_a_chunk_of_the_loss_is_cut_to_what_can_be_indexed(monkeypatch):
    monkeypatch.setattr(chunked, "INT32_ELEMENTS", 5 * 97)
    generator = torch.Generator().manual_seed(0)
    hidden, head = torch.randn(1, 30, 8, generator=generator), torch.randn(97, 8, generator=generator)
    labels = torch.randint(0, 97, (1, 30), generator=generator)
    small, whole = ChunkedLoss(10**9), ChunkedLoss(5)
    assert torch.equal(small(hidden, head, labels), whole(hidden, head, labels))
    assert small.num_chunks == whole.num_chunks == 6
