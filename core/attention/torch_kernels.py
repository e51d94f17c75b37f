"""The attention kernels that torch brings along for CUDA: FlashAttention-2, also over segments, and cuDNN.

Built by core/attention/choose.py. Shapes: core/attention/kernel.py; T tokens of a packed row.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from core.attention.kernel import INT32_ELEMENTS
from planner.attention_kernels import KernelName, cudnn_takes

_MOST_BOUNDS = 8  # of a few rows and their chunks


class DeviceBounds:
    """Segment bounds as int32 on the device, copied once for each row, not once for each layer. A layer that slides
    asks in turn for its chunks and for the batches of pairs of them (core/attention/windows.py)."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, ...], torch.device], tuple[Tensor, int]] = {}

    def __call__(self, bounds: tuple[int, ...], device: torch.device) -> tuple[Tensor, int]:
        """(bounds (n + 1,) int32, tokens of the longest segment)."""
        key = bounds, device
        if key not in self._known:
            if len(self._known) == _MOST_BOUNDS:
                self._known.clear()
            tensor = torch.tensor(bounds, dtype=torch.int32).to(device, non_blocking=True)
            self._known[key] = tensor, max(end - start for start, end in pairwise(bounds))
        return self._known[key]


def by_token(x_1HLD: Tensor) -> Tensor:
    """(1, H, L, D) -> (L, H, D) with the head dim contiguous; a view, except of expanded tensors."""
    x = x_1HLD[0].transpose(0, 1)
    return x if x.stride(-1) == 1 else x.contiguous()


def by_head(x_LHD: Tensor) -> Tensor:
    """(L, H, D) -> (1, H, L, D), a view."""
    return x_LHD.transpose(0, 1)[None]


class TorchFlashKernel:
    """FlashAttention-2 as shipped in torch: bfloat16 and float16, head dims up to 256 in steps of 8, GQA native."""

    key: KernelName = "torch"
    takes_segments = True
    max_elements: int | None = INT32_ELEMENTS

    def __init__(self) -> None:
        self.name = f"torch CUDA flash {torch.__version__}"
        self._bounds = DeviceBounds()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
        return out, lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        no_rng = _no_rng(q)
        return torch.ops.aten._scaled_dot_product_flash_attention_backward(
            dout, q, k, v, out, lse.contiguous(), None, None, q.shape[2], k.shape[2], 0.0, causal, no_rng, no_rng,
            scale=scale,
        )  # fmt: skip

    def forward_segments(
        self, q: Tensor, k: Tensor, v: Tensor, *, bounds: tuple[int, ...], scale: float
    ) -> tuple[Tensor, Tensor]:
        cu_seqlens, longest = self._bounds(bounds, q.device)
        out_THD, lse_HT, *_ = torch.ops.aten._flash_attention_forward(
            by_token(q), by_token(k), by_token(v), cu_seqlens, cu_seqlens, longest, longest, 0.0, True, False,
            scale=scale,
        )  # fmt: skip
        return by_head(out_THD), lse_HT[None]

    def backward_segments(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, bounds: tuple[int, ...],
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        cu_seqlens, longest = self._bounds(bounds, q.device)
        no_rng = _no_rng(q)
        grads = torch.ops.aten._flash_attention_backward(
            *(by_token(x) for x in (dout, q, k, v, out)), lse[0].contiguous(), cu_seqlens, cu_seqlens, longest,
            longest, 0.0, True, no_rng, no_rng, scale=scale,
        )  # fmt: skip
        dq, dk, dv = (by_head(x) for x in grads)
        return dq, dk, dv


class CudnnKernel(TorchFlashKernel):
    """cuDNN's fused attention for dense blocks; segments, and lengths that would each compile a graph, go to
    FlashAttention-2. Its log-sum-exp is of the same kind, so that either backward may follow either forward."""

    key: KernelName = "cudnn"

    def __init__(self) -> None:
        super().__init__()
        self.name = f"cuDNN {torch.backends.cudnn.version()} (packed rows: {self.name})"

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        if not _is_for_cudnn(q, k):
            return super().forward(q, k, v, causal=causal, scale=scale)
        out, lse_HL1, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, causal, False, scale=scale
        )
        return out, lse_HL1.reshape(q.shape[:3])

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not _is_for_cudnn(q, k):
            return super().backward(dout, q, k, v, out, lse, causal=causal, scale=scale)
        no_rng = torch.zeros((), dtype=torch.int64, device=q.device)
        return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            dout, q, k, v, out, lse.contiguous()[..., None], no_rng, no_rng, None, None, None, q.shape[2], k.shape[2],
            0.0, causal, scale=scale,
        )  # fmt: skip


def _is_for_cudnn(q: Tensor, k: Tensor) -> bool:
    return cudnn_takes(q.shape[2]) and cudnn_takes(k.shape[2])


def _no_rng(q: Tensor) -> Tensor:
    """Philox state, read only with dropout."""
    return torch.zeros(2, dtype=torch.uint64, device=q.device)
