"""Attention within a sliding window: against scores written out with their mask, and through whole models."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from core.attention import windows
from core.attention.kernel import CpuFlashKernel, ReferenceKernel
from core.attention.sequence import LocalAttention
from core.attention.windows import WindowedSegments
from core.data.row import Row
from core.parallel.layout import shard_row
from core.parallel.ring import RingAttention
from core.verify.flash_allocations import FlashAllocations
from core.verify.live_bytes import LiveBytes
from tests.core.model.tiny_models import (
    CPU,
    assert_same_gradients,
    loss_and_gradients,
    plain_loss_and_gradients,
    random_row,
    setting,
    tiny_model,
    tiny_setup,
)

SCALE = 0.3
CASES = {  # bounds of segments, window
    "one segment of whole chunks": ((0, 32), 8),
    "one segment, the last chunk cut": ((0, 37), 8),
    "a last chunk of one token": ((0, 33), 8),
    "a last chunk of all but one token": ((0, 31), 8),
    "segments, some within the window": ((0, 3, 20, 28, 29, 61), 8),
    "a window of the longest segment": ((0, 16, 20), 16),
    "a window that ends one before the segment": ((0, 16, 20), 15),
    "each token alone": ((0, 9, 14), 1),
    "a token and the one before": ((0, 9, 14), 2),
}
HEADS = {"as many KV heads": (4, 4), "grouped": (6, 2), "one KV head": (3, 1)}


class SegmentsAtOnce(ReferenceKernel):
    """A kernel that takes segments in one call, as those of GPUs do, and none longer than it was promised."""

    takes_segments = True

    def forward_segments(self, q: Tensor, k: Tensor, v: Tensor, *, bounds: tuple[int, ...], scale: float):
        parts = [slice(*pair) for pair in pairwise(bounds)]
        outs = [self.forward(*(x[:, :, part] for x in (q, k, v)), causal=True, scale=scale) for part in parts]
        return torch.cat([out for out, _ in outs], 2), torch.cat([lse for _, lse in outs], 2)

    def backward_segments(self, *operands: Tensor, bounds: tuple[int, ...], scale: float):
        parts = [slice(*pair) for pair in pairwise(bounds)]
        grads = [self.backward(*(x[:, :, part] for x in operands), causal=True, scale=scale) for part in parts]
        return tuple(torch.cat(of_parts, 2) for of_parts in zip(*grads))


KERNELS = [CpuFlashKernel(), ReferenceKernel(), SegmentsAtOnce()]


def inputs(heads: int, kv_heads: int, num_tokens: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q, k, v, dout"""
    generator = torch.Generator().manual_seed(1)
    sizes = (heads, kv_heads, kv_heads, heads)
    return [torch.randn(1, h, num_tokens, 8, generator=generator, dtype=torch.float64).to(dtype) for h in sizes]


def written_out(tensors: list[Tensor], bounds: tuple[int, ...], window: int) -> list[Tensor]:
    """out, lse, dq, dk, dv by autograd in float64."""
    q, k, v = (x.double().requires_grad_() for x in tensors[:3])
    group = q.shape[1] // k.shape[1]
    places = torch.arange(bounds[-1])
    segment = torch.bucketize(places, torch.tensor(bounds), right=True)
    behind = places[:, None] - places
    seen = (segment[:, None] == segment) & (behind >= 0) & (behind < window)
    scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * SCALE
    scores = scores.masked_fill(~seen, float("-inf"))
    out = scores.softmax(-1) @ v.repeat_interleave(group, 1)
    return [out, scores.logsumexp(-1), *torch.autograd.grad(out, (q, k, v), tensors[3].double())]


def in_windows(kernel, tensors: list[Tensor], bounds: tuple[int, ...], window: int) -> list[Tensor]:
    q, k, v, dout = tensors
    windowed = WindowedSegments()
    out, lse = windowed.forward(kernel, q, k, v, bounds, SCALE, window)
    return [out, lse, *windowed.backward(kernel, dout, q, k, v, out, lse, bounds, SCALE, window)]


@pytest.mark.parametrize("batch_tokens", [1, windows.BATCH_TOKENS], ids=["pair by pair", "all at once"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_windows_are_attention_written_out_with_its_mask(case, heads, kernel, batch_tokens, monkeypatch):
    monkeypatch.setattr(windows, "BATCH_TOKENS", batch_tokens)
    bounds, window = case
    tensors = inputs(*heads, bounds[-1])
    for got, want in zip(
        in_windows(kernel, tensors, bounds, window), written_out(tensors, bounds, window), strict=True
    ):
        assert got.shape == want.shape
        assert (got - want).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_errors_are_roundings_of_the_dtype(dtype):
    tensors = inputs(6, 2, 61, dtype)
    got = in_windows(CpuFlashKernel(), tensors, (0, 3, 20, 61), 8)
    assert [x.dtype for x in got] == [dtype, torch.float32, dtype, dtype, dtype]
    for ours, exact in zip(got, written_out(tensors, (0, 3, 20, 61), 8)):
        assert (ours - exact).abs().max() / exact.abs().max() < 4 * torch.finfo(dtype).eps


def test_no_score_of_a_stand_in_reaches_a_gradient():
    """Rows beyond the end of a segment repeat its last token, whose scores with keys out of its window are any size."""
    tensors = inputs(2, 1, 21)
    tensors[0] *= 200
    for got, want in zip(in_windows(CpuFlashKernel(), tensors, (0, 21), 8), written_out(tensors, (0, 21), 8)):
        assert torch.isfinite(got).all()
        assert torch.allclose(got, want, rtol=1e-10, atol=1e-10)


def test_indices_are_made_once_for_all_layers_of_a_row_and_anew_for_the_next():
    windowed, device = WindowedSegments(), torch.device("cpu")
    first = windowed._cut((0, 40), 8, device)
    assert windowed._cut((0, 40), 8, device)[1] is first[1]
    assert windowed._cut((0, 20, 40), 8, device)[0] == (0, 8, 16, 20, 28, 36, 40)
    assert windowed._cut((0, 40), 8, device)[0] == (0, 8, 16, 24, 32, 40)


@pytest.mark.parametrize("length", [64, 61], ids=["whole chunks", "the last chunk cut"])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_a_batch_holds_six_bytes_an_element_to_be_joined_or_what_its_call_holds(heads, length):
    """16-bit operands: beside output and log-sum-exp of the whole row, which are there before and after."""
    q, k, v, _ = inputs(*heads, length, torch.bfloat16)
    windowed = WindowedSegments()
    windowed._cut((0, length), 8, CPU)
    with LiveBytes([q, k, v]) as live:
        out, lse = windowed.forward(FlashAllocations(), q, k, v, (0, length), SCALE, 8)
    row = 2 * q.numel() + 4 * lse.numel()
    assert live.live_bytes == row
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    queries, real = 7 * 7, length - 8 - 7 + (length % 8 > 0)  # 7 of each chunk but the first
    num_heads, num_kv_heads = heads
    call = queries * (2 * 8 * (2 * num_heads + 2 * num_kv_heads) + 4 * num_heads)
    join = real * (6 * 8 * num_heads + 4 * 4 * num_heads)
    assert live.peaks[""] == row + max(call, join)


SLIDING = {
    "every layer": ("mistral", {"sliding_window": 8}),
    "the last layer": ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}),
    "by layer": (
        "qwen3",
        {"sliding_window": 5, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "fused q, k, v": ("phi3", {"sliding_window": 8, "pad_token_id": None}),
}
WAYS = {
    "plain": (),
    "kept outputs": (setting("gradient_checkpointing", save_attention=True),),
    "packing, fused loss": (setting("packing"), setting("fused_loss", chunk_tokens=9)),
}


@pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("name", SLIDING)
def test_rows_longer_than_the_window_train_as_plain_transformers(name, ways):
    family, overrides = SLIDING[name]
    row = random_row((23, 9, 14))
    setup = tiny_setup(tiny_model(family, **overrides), *ways)
    assert_equal_to_plain(setup, family, overrides, row)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("name", ["every layer", "by layer"])
def test_head_groups_keep_the_window(name, groups):
    family, overrides = SLIDING[name]
    setup = tiny_setup(tiny_model(family, **overrides), setting("fake_parallel", groups=groups))
    assert_equal_to_plain(setup, family, overrides, random_row((23, 9, 14)))


def assert_equal_to_plain(setup, family: str, overrides: dict, row: Row) -> None:
    """``sdpa`` gets the mask of the window from transformers."""
    loss, got = loss_and_gradients(setup, row)
    plain = tiny_model(family, attention="sdpa", **overrides)
    want_loss, want = plain_loss_and_gradients(plain, row)
    full = tiny_model(family, attention="sdpa", **{**overrides, "sliding_window": None, "layer_types": None})
    assert abs(plain_loss_and_gradients(full, row)[0] - want_loss) > 1e-4 * want_loss  # the window matters
    assert abs(loss - want_loss) < 1e-12 * want_loss
    assert_same_gradients(got, want, 1e-10)


def test_a_ring_refuses_a_sample_longer_than_the_window():
    row = random_row((12,))
    setup = tiny_setup(tiny_model("mistral"))
    layout = shard_row(row, setup.mesh, CPU).layout
    q = torch.randn(1, 2, 12, 8)
    with pytest.raises(RuntimeError, match="12 tokens attends to 8 only"):
        RingAttention(CpuFlashKernel(), None)(q, q, q, layout, SCALE, None, 8)


def test_a_window_that_no_sample_outgrows_is_attention_without_one():
    row = random_row((12, 7))
    layout = shard_row(row, tiny_setup(tiny_model("mistral")).mesh, CPU).layout
    tensors = inputs(4, 2, 19)
    attention = LocalAttention(CpuFlashKernel())
    within = attention(*tensors[:3], layout, SCALE, None, 12)
    assert torch.equal(within, attention(*tensors[:3], layout, SCALE))
    assert not torch.equal(within, attention(*tensors[:3], layout, SCALE, None, 11))
