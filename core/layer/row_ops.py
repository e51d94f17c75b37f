"""What a decoder layer does row by row outside its matrix products: RMSNorm, RoPE, SwiGLU, forward and backward.

core/layer/decoder_layer.py calls one RowOps. Here: the contract, and plain torch for every dtype and device; the fused
kernels of a GPU are in core/layer/triton_ops.py. Statistics in ``wide_dtype``, products rounded as transformers does.

    T tokens   w width of a row   f MLP width   H heads   h head dim
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from core.attention.kernel import wide_dtype

Update = tuple[Tensor, Tensor]  # (T, r) and (f, r): their product, the second transposed, is added to a linear's output


class RowOps(Protocol):
    name: str

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """(T, w), (w,) -> weight * x / rms(x), (T, w)."""
        ...

    def rms_norm_backward_(self, total: Tensor, dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
        """Add the gradient of ``x`` to ``total`` (T, w), where ``dy`` is that of the normed rows."""
        ...

    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> None:
        """RoPE on x (T, H, h) in place; cos, sin (T, h), whose halves are equal. ``inverse`` is also its backward."""
        ...

    def swiglu(self, gate: Tensor, up: Tensor, updates: tuple[Update | None, Update | None]) -> Tensor:
        """silu(gate + its update) * (up + its update), each (T, f); gate and up stay as they are."""
        ...

    def swiglu_backward_(
        self, gate: Tensor, up: Tensor, updates: tuple[Update | None, Update | None], dproduct: Tensor
    ) -> None:
        """In place: gate becomes its gradient, up its gradient, and ``dproduct`` becomes the product itself."""
        ...


class TorchRowOps:
    """Plain torch."""

    name = "torch"

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return _normed(x, eps)[0].to(x.dtype) * weight

    def rms_norm_backward_(self, total: Tensor, dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
        normed, inverse_rms = _normed(x, eps)
        dnormed = (dy * weight).to(normed.dtype)
        mean = (dnormed * normed).mean(-1, keepdim=True)
        total += (dnormed - normed * mean).mul_(inverse_rms).to(total.dtype)

    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> None:
        half = x.shape[-1] // 2
        cos, sin = cos[:, None, :half], sin[:, None, :half]
        first, second = x[..., :half].clone(), x[..., half:].clone()
        sign = -1 if inverse else 1
        x[..., :half] = first * cos - second * sin * sign
        x[..., half:] = second * cos + first * sin * sign

    def swiglu(self, gate: Tensor, up: Tensor, updates: tuple[Update | None, Update | None]) -> Tensor:
        return functional.silu(_updated(gate, updates[0])).mul_(_updated(up, updates[1]))

    def swiglu_backward_(
        self, gate: Tensor, up: Tensor, updates: tuple[Update | None, Update | None], dproduct: Tensor
    ) -> None:
        wide = wide_dtype(gate.dtype)
        g, u, dp = _updated(gate, updates[0]).to(wide), _updated(up, updates[1]).to(wide), dproduct.to(wide)
        sigmoid = torch.sigmoid(g)
        silu = g * sigmoid
        # all three before the first is written: in a wide dtype g, u and dp are no copies
        dgate, dup, product = dp * u * sigmoid * (1 + g * (1 - sigmoid)), dp * silu, silu * u
        gate.copy_(dgate)
        up.copy_(dup)
        dproduct.copy_(product)


def _updated(y: Tensor, update: Update | None) -> Tensor:
    return y if update is None else torch.addmm(y, update[0], update[1].t())


def _normed(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x / rms(x), 1 / rms(x)) in the wide dtype."""
    x = x.to(wide_dtype(x.dtype))
    inverse_rms = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * inverse_rms, inverse_rms
