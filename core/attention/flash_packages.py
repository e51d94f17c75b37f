"""FlashAttention 2, 3 and 4 from their own packages, behind the kernel contract. Built by core/attention/choose.py.

All three take tokens before heads, (1, L, H, D) dense and (T, H, D) over segments, serve GQA natively, and give the
log-sum-exp as (1, H, L) and (H, T) float32. Each adapter is three facts: the version, a forward and a backward.
    2  flash_attn.flash_attn_interface    package flash-attn, built from source
    3  flash_attn_interface               the hopper folder of Dao-AILab/flash-attention; unverified: contract test only
    4  flash_attn.cute                    package flash-attn-4; not through torch's registry, which looks for package 2
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Any

import torch
from torch import Tensor

from core.attention.kernel import INT32_ELEMENTS
from core.attention.torch_kernels import DeviceBounds, by_head, by_token
from planner.attention_kernels import PACKAGES, TITLES, KernelName

Import = Callable[[str], Any]


class FlashPackage(ABC):
    """What the three have in common. ``lengths`` below: {} for a dense block, else bounds and longest segment."""

    key: KernelName
    takes_segments = True
    max_elements: int | None = INT32_ELEMENTS
    _module: str

    def __init__(self, *, load: Import = import_module) -> None:
        """Raises: ImportError."""
        self._interface = load(self._module)
        self.name = f"{TITLES[self.key]} {_version(PACKAGES[self.key][0])}"
        self._bounds = DeviceBounds()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        out_1LHD, lse = self._forward(*(_tokens_first(x) for x in (q, k, v)), causal=causal, scale=scale, lengths={})
        return out_1LHD.transpose(1, 2), lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv = (x.transpose(1, 2) for x in self._backward(
            *(_tokens_first(x) for x in (dout, q, k, v, out)), lse.contiguous(), causal=causal, scale=scale, lengths={},
        ))  # fmt: skip
        return dq, dk, dv

    def forward_segments(
        self, q: Tensor, k: Tensor, v: Tensor, *, bounds: tuple[int, ...], scale: float
    ) -> tuple[Tensor, Tensor]:
        lengths = self._lengths(bounds, q.device)
        out_THD, lse_HT = self._forward(*(by_token(x) for x in (q, k, v)), causal=True, scale=scale, lengths=lengths)
        return by_head(out_THD), lse_HT[None]

    def backward_segments(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, bounds: tuple[int, ...],
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        lengths = self._lengths(bounds, q.device)
        dq, dk, dv = (by_head(x) for x in self._backward(
            *(by_token(x) for x in (dout, q, k, v, out)), lse[0].contiguous(), causal=True, scale=scale,
            lengths=lengths,
        ))  # fmt: skip
        return dq, dk, dv

    def _lengths(self, bounds: tuple[int, ...], device: torch.device) -> dict[str, Any]:
        cu_seqlens, longest = self._bounds(bounds, device)
        return {
            "cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "max_seqlen_q": longest, "max_seqlen_k": longest
        }  # fmt: skip

    @abstractmethod
    def _forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float, lengths: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """(out as q, lse (1, H, L) or (H, T) float32)."""

    @abstractmethod
    def _backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float,
        lengths: dict[str, Any],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """(dq, dk, dv) as q, k, v."""


class FlashAttention2(FlashPackage):
    key: KernelName = "flash2"
    _module = "flash_attn.flash_attn_interface"

    def _forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float, lengths: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        call = self._interface._flash_attn_varlen_forward if lengths else self._interface._flash_attn_forward
        out, lse, *_ = call(
            q, k, v, **lengths, dropout_p=0.0, softmax_scale=scale, causal=causal, window_size_left=-1,
            window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False,
        )  # fmt: skip
        return out, lse

    def _backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float,
        lengths: dict[str, Any],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        dq, dk, dv = _empty_like(q, k, v)
        call = self._interface._flash_attn_varlen_backward if lengths else self._interface._flash_attn_backward
        call(
            dout, q, k, v, out, lse, dq, dk, dv, **lengths, dropout_p=0.0, softmax_scale=scale, causal=causal,
            window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, deterministic=_deterministic(),
        )  # fmt: skip
        return dq, dk, dv


class FlashAttention3(FlashPackage):
    key: KernelName = "flash3"
    _module = "flash_attn_interface"

    def _forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float, lengths: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        out, lse, *_ = self._interface._flash_attn_forward(q, k, v, **lengths, softmax_scale=scale, causal=causal)
        return out, lse

    def _backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float,
        lengths: dict[str, Any],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        dq, dk, dv = _empty_like(q, k, v)
        self._interface._flash_attn_backward(
            dout, q, k, v, out, lse, **lengths, dq=dq, dk=dk, dv=dv, softmax_scale=scale, is_causal=causal,
            deterministic=_deterministic(),
        )  # fmt: skip
        return dq, dk, dv


class FlashAttention4(FlashPackage):
    key: KernelName = "flash4"
    _module = "flash_attn.cute.interface"

    def _forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float, lengths: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        out, lse, *_ = self._interface._flash_attn_fwd(
            q, k, v, **lengths, softmax_scale=scale, causal=causal, return_lse=True
        )
        return out, lse

    def _backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float,
        lengths: dict[str, Any],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        dq, dk, dv, *_ = self._interface._flash_attn_bwd(
            q, k, v, out, dout, lse, softmax_scale=scale, causal=causal, deterministic=_deterministic(), **lengths
        )
        return dq, dk, dv


def _tokens_first(x_1HLD: Tensor) -> Tensor:
    """(1, H, L, D) -> (1, L, H, D) with the head dim contiguous."""
    x = x_1HLD.transpose(1, 2)
    return x if x.stride(-1) == 1 else x.contiguous()


def _empty_like(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors)


def _deterministic() -> bool:
    return torch.are_deterministic_algorithms_enabled()


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(version unknown)"
