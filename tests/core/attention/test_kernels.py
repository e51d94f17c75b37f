"""Each kernel against softmax(q k^T) v written out, forward and backward, in float64 and in what it is used for."""

from __future__ import annotations

import pytest
import torch

from core.attention import kernel as kernel_module
from core.attention.kernel import CpuFlashKernel, ReferenceKernel

SCALE = 0.3
KERNELS = [CpuFlashKernel(), ReferenceKernel()]
SHAPES = {  # query heads, KV heads, query tokens, key tokens, causal
    "causal": (4, 4, 37, 37, True),
    "grouped heads": (6, 2, 37, 37, True),
    "one KV head": (3, 1, 1, 1, True),
    "more keys": (4, 2, 5, 33, False),
    "more queries": (4, 2, 33, 5, False),
    "longer than a block of the kernel": (2, 1, 1100, 1100, True),
}


def inputs(shape, dtype=torch.float64):
    heads, kv_heads, num_queries, num_keys, causal = shape
    generator = torch.Generator().manual_seed(1)
    sizes = ((heads, num_queries), (kv_heads, num_keys), (kv_heads, num_keys), (heads, num_queries))
    return [torch.randn(1, h, n, 8, generator=generator, dtype=torch.float64).to(dtype) for h, n in sizes], causal


def written_out(q, k, v, dout, causal):
    """out, lse, dq, dk, dv by autograd in float64."""
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * SCALE
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    out = scores.softmax(-1) @ v.repeat_interleave(group, 1)
    return [out, scores.logsumexp(-1), *torch.autograd.grad(out, (q, k, v), dout.double())]


def by_kernel(kernel, q, k, v, dout, causal):
    out, lse = kernel.forward(q, k, v, causal=causal, scale=SCALE)
    return [out, lse, *kernel.backward(dout, q, k, v, out, lse, causal=causal, scale=SCALE)]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_kernel_equals_attention_written_out(kernel, shape):
    tensors, causal = inputs(shape)
    for got, want in zip(by_kernel(kernel, *tensors, causal), written_out(*tensors, causal)):
        assert got.shape == want.shape
        assert (got - want).abs().max() < 1e-12


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_statistics_are_float32_and_errors_are_roundings_of_the_dtype(kernel, dtype):
    tensors, causal = inputs(SHAPES["grouped heads"], dtype)
    got = by_kernel(kernel, *tensors, causal)
    assert [x.dtype for x in got] == [dtype, torch.float32, dtype, dtype, dtype]
    for ours, exact in zip(got, written_out(*tensors, causal)):
        assert (ours - exact).abs().max() / exact.abs().max() < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_slices_and_other_memory_layouts_give_the_same(kernel):
    """A ring hands over sub-ranges, and a log-sum-exp that it merged itself."""
    (q, k, v, dout), _ = inputs(SHAPES["grouped heads"])
    rows, keys = slice(5, 30), slice(20, 37)
    views = [q[:, :, rows], k[:, :, keys], v[:, :, keys], dout[:, :, rows]]
    by_token = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in views]
    want = by_kernel(kernel, *(x.contiguous() for x in views), False)
    for layout in (views, by_token):
        q_, k_, v_, dout_ = layout
        out, lse = kernel.forward(q_, k_, v_, causal=False, scale=SCALE)
        wide_lse = torch.zeros(*lse.shape[:2], 50, dtype=lse.dtype)
        wide_lse[:, :, 9:34] = lse
        grads = kernel.backward(dout_, q_, k_, v_, out, wide_lse[:, :, 9:34], causal=False, scale=SCALE)
        for got, expected in zip((out, lse, *grads), want):
            assert torch.equal(got, expected)


def test_backward_with_the_rows_statistics_gives_each_blocks_share(monkeypatch):
    """The sum over key blocks of gradients taken with the global out and lse is the gradient over all keys."""
    monkeypatch.setattr(kernel_module, "QUERY_BLOCK", 7)
    (q, k, v, dout), _ = inputs(SHAPES["more keys"])
    for kernel in KERNELS:
        out, lse, dq, dk, dv = by_kernel(kernel, q, k, v, dout, False)
        blocks = [
            kernel.backward(dout, q, k[:, :, part], v[:, :, part], out, lse, causal=False, scale=SCALE)
            for part in (slice(0, 10), slice(10, 33))
        ]
        assert (blocks[0][0] + blocks[1][0] - dq).abs().max() < 1e-13
        for index, whole in ((1, dk), (2, dv)):
            assert (torch.cat([block[index] for block in blocks], 2) - whole).abs().max() < 1e-13


def test_an_expanded_gradient_is_read_as_its_values():
    """``out.sum().backward()`` hands over a gradient with strides of 0."""
    tensors, causal = inputs(SHAPES["grouped heads"])
    ones = torch.ones(()).double().expand_as(tensors[3])
    for kernel in KERNELS:
        got = by_kernel(kernel, *tensors[:3], ones, causal)
        for ours, want in zip(got, by_kernel(kernel, *tensors[:3], ones.contiguous(), causal)):
            assert (ours - want).abs().max() < 1e-13
