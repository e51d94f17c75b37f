"""The contract with the FlashAttention packages, on fakes that have the packages' signatures and compute on the CPU.

Signatures: flash-attn 2.8 flash_attn_interface.py, hopper/flash_attn_interface.py (FlashAttention-3, unverified on a
GPU), flash-attn-4 4.0.0b36 cute/interface.py. A call with another name or in another layout fails here.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from core.attention.flash_packages import FlashAttention2, FlashAttention3, FlashAttention4
from core.attention.kernel import ReferenceKernel
from core.attention.segments import backward_segments, forward_segments

REFERENCE = ReferenceKernel()
H, K, D, T = 6, 2, 8, 40


def heads_first(x):
    return x.transpose(0, 1)[None]


def fake_forward(q, k, v, scale, causal, cu_seqlens):
    """q (L, H, D) -> out (L, H, D), lse (H, L)."""
    assert all(x.stride(-1) == 1 for x in (q, k, v))
    outs, lses = [], []
    for a, b in pairwise(cu_seqlens or (0, q.shape[0])):
        keys = slice(a, b) if cu_seqlens else slice(None)
        out, lse = REFERENCE.forward(
            heads_first(q[a:b]), heads_first(k[keys]), heads_first(v[keys]), causal=causal, scale=scale
        )
        outs.append(out[0].transpose(0, 1))
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, 1)


def fake_backward(dout, q, k, v, out, lse, scale, causal, cu_seqlens):
    assert lse.is_contiguous()
    assert all(x.stride(-1) == 1 for x in (dout, q, k, v, out))
    grads = []
    for a, b in pairwise(cu_seqlens or (0, q.shape[0])):
        keys = slice(a, b) if cu_seqlens else slice(None)
        grads.append(
            REFERENCE.backward(
                *(heads_first(x) for x in (dout[a:b], q[a:b], k[keys], v[keys], out[a:b])), lse[None, :, a:b],
                causal=causal, scale=scale,
            )
        )  # fmt: skip
    return [torch.cat([g[i][0].transpose(0, 1) for g in grads]) for i in range(3)]


def bounds_of(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
    if cu_seqlens_q is None:
        return None
    assert cu_seqlens_q.dtype == torch.int32
    assert torch.equal(cu_seqlens_q, cu_seqlens_k)
    bounds = tuple(cu_seqlens_q.tolist())
    assert max_seqlen_q == max_seqlen_k == max(b - a for a, b in pairwise(bounds))
    return bounds


def fake_flash2():
    def fwd(
        q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes,
        return_softmax,
    ):  # fmt: skip
        assert (dropout_p, window_size_left, window_size_right, softcap, alibi_slopes) == (0.0, -1, -1, 0.0, None)
        assert not return_softmax
        out, lse = fake_forward(q[0], k[0], v[0], softmax_scale, causal, None)
        return out[None], lse[None], torch.empty(0), torch.empty(2)

    def varlen_fwd(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
        window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False,
        block_table=None, leftpad_k=None, seqused_k=None,
    ):  # fmt: skip
        bounds = bounds_of(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        return (*fake_forward(q, k, v, softmax_scale, causal, bounds), torch.empty(0), torch.empty(2))

    def bwd(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left,
        window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
    ):  # fmt: skip
        grads = fake_backward(dout[0], q[0], k[0], v[0], out[0], softmax_lse[0], softmax_scale, causal, None)
        for grad, into in zip(grads, (dq, dk, dv)):
            into[0].copy_(grad)
        return torch.empty(0)

    def varlen_bwd(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, deterministic,
        rng_state=None,
    ):  # fmt: skip
        bounds = bounds_of(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        for grad, into in zip(
            fake_backward(dout, q, k, v, out, softmax_lse, softmax_scale, causal, bounds), (dq, dk, dv)
        ):
            into.copy_(grad)
        return torch.empty(0)

    return SimpleNamespace(
        _flash_attn_forward=fwd, _flash_attn_varlen_forward=varlen_fwd, _flash_attn_backward=bwd,
        _flash_attn_varlen_backward=varlen_bwd,
    )  # fmt: skip


def fake_flash3():
    def fwd(
        q, k, v, k_new=None, v_new=None, qv=None, out_=None, cu_seqlens_q=None, cu_seqlens_k=None,
        cu_seqlens_k_new=None, seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None, page_table=None,
        kv_batch_idx=None, leftpad_k=None, rotary_cos=None, rotary_sin=None, seqlens_rotary=None, q_descale=None,
        k_descale=None, v_descale=None, softmax_scale=None, causal=False, window_size_left=-1, window_size_right=-1,
        attention_chunk=0, softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, num_splits=1, pack_gqa=None,
        sm_margin=0,
    ):  # fmt: skip
        bounds = bounds_of(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        if bounds:
            out, lse = fake_forward(q, k, v, softmax_scale, causal, bounds)
            return out, lse, torch.empty(0), torch.empty(0)
        out, lse = fake_forward(q[0], k[0], v[0], softmax_scale, causal, None)
        return out[None], lse[None], torch.empty(0), torch.empty(0)

    def bwd(
        dout, q, k, v, out, softmax_lse, cu_seqlens_q=None, cu_seqlens_k=None, sequed_q=None, sequed_k=None,
        max_seqlen_q=None, max_seqlen_k=None, dq=None, dk=None, dv=None, softmax_scale=None, is_causal=False,
        window_size_left=-1, window_size_right=-1, softcap=0.0, deterministic=False, sm_margin=0,
    ):  # fmt: skip
        bounds = bounds_of(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        tensors = (dout, q, k, v, out, softmax_lse)
        grads = fake_backward(*(tensors if bounds else (x[0] for x in tensors)), softmax_scale, is_causal, bounds)
        for grad, into in zip(grads, (dq, dk, dv)):
            (into if bounds else into[0]).copy_(grad)
        return torch.empty(0)

    return SimpleNamespace(_flash_attn_forward=fwd, _flash_attn_backward=bwd)


def fake_flash4():
    def fwd(
        q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None, max_seqlen_q=None,
        max_seqlen_k=None, min_seqlen_k=None, page_table=None, softmax_scale=None, causal=False, return_lse=False,
        out=None, lse=None,
    ):  # fmt: skip
        assert return_lse
        bounds = bounds_of(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        if bounds:
            return (*fake_forward(q, k, v, softmax_scale, causal, bounds), None, None, None)
        out, lse = fake_forward(q[0], k[0], v[0], softmax_scale, causal, None)
        return out[None], lse[None], None, None, None

    def bwd(
        q, k, v, out, dout, lse, softmax_scale=None, causal=False, softcap=0.0, window_size_left=None,
        window_size_right=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None,
        max_seqlen_q=None, max_seqlen_k=None, deterministic=False, dq=None, dk=None, dv=None,
    ):  # fmt: skip
        bounds = bounds_of(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        tensors = (dout, q, k, v, out, lse)
        if bounds:
            return tuple(fake_backward(*tensors, softmax_scale, causal, bounds))
        grads = fake_backward(*(x[0] for x in tensors), softmax_scale, causal, None)
        return tuple(grad[None] for grad in grads)

    return SimpleNamespace(_flash_attn_fwd=fwd, _flash_attn_bwd=bwd)


VERSIONS = {
    "2": (FlashAttention2, "flash_attn.flash_attn_interface", fake_flash2),
    "3": (FlashAttention3, "flash_attn_interface", fake_flash3),
    "4": (FlashAttention4, "flash_attn.cute.interface", fake_flash4),
}


def build(version):
    cls, module, fake = VERSIONS[version]
    return cls(load={module: fake()}.__getitem__)


def inputs(num_keys=T):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, n, h, D, generator=generator).transpose(1, 2)
        for h, n in ((H, T), (K, num_keys), (K, num_keys), (H, T))
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("bounds", [(0, T), (0, 1, 17, T)], ids=["dense", "packed"])
def test_dense_and_packed_calls_keep_to_the_packages_signature(version, bounds):
    q, k, v, dout = inputs()
    kernel = build(version)
    out, lse = forward_segments(kernel, q, k, v, bounds, 0.3)
    got = [out, lse, *backward_segments(kernel, dout, q, k, v, out, lse, bounds, 0.3)]
    want_out, want_lse = forward_segments(REFERENCE, q, k, v, bounds, 0.3)
    want = [want_out, want_lse, *backward_segments(REFERENCE, dout, q, k, v, want_out, want_lse, bounds, 0.3)]
    for ours, expected in zip(got, want):
        assert ours.shape == expected.shape
        assert torch.allclose(ours, expected, atol=1e-6)


@pytest.mark.parametrize("version", VERSIONS)
def test_blocks_of_a_ring_and_expanded_gradients(version):
    q, k, v, _ = inputs(num_keys=23)
    kernel = build(version)
    out, lse = kernel.forward(q, k, v, causal=False, scale=0.3)
    wide_lse = torch.zeros(1, H, T + 9)
    wide_lse[:, :, 4 : T + 4] = lse
    ones = torch.ones(()).expand_as(out)
    got = kernel.backward(ones, q, k, v, out, wide_lse[:, :, 4 : T + 4], causal=False, scale=0.3)
    for ours, expected in zip(got, REFERENCE.backward(ones, q, k, v, out, lse, causal=False, scale=0.3)):
        assert torch.allclose(ours, expected, atol=1e-6)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_missing_package_is_an_import_error(version):
    with pytest.raises(ImportError):
        VERSIONS[version][0]()


def test_bounds_go_to_the_device_once_for_each_row():
    kernel = build("4")
    first = kernel._lengths((0, 3, T), torch.device("cpu"))["cu_seqlens_q"]
    assert kernel._lengths((0, 3, T), torch.device("cpu"))["cu_seqlens_q"] is first
    assert kernel._lengths((0, 5, T), torch.device("cpu"))["cu_seqlens_q"].tolist() == [0, 5, T]
