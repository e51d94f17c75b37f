"""RowOps of a GPU: one Triton kernel each, every operand read once and every result written once.

Rounding is that of core/layer/row_ops.py: statistics in float32, results in the operands' dtype. Offsets are 64-bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ELEMENTS = 4096  # of one program of the elementwise kernels


class TritonRowOps:
    """For bfloat16, float16 and float32 rows with a stride of 1 inside a row."""

    name = f"Triton {triton.__version__}"

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        num_rows, width = x.shape
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        block = triton.next_power_of_2(width)
        rows = _rows_of_program(block)
        _rms_norm[(triton.cdiv(num_rows, rows),)](
            x, weight, y, num_rows, x.stride(0), width, eps, ROWS=rows, BLOCK=block, num_warps=_warps(rows * block)
        )
        return y

    def rms_norm_backward_(self, total: Tensor, dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
        num_rows, width = x.shape
        block = triton.next_power_of_2(width)
        rows = _rows_of_program(block)
        _rms_norm_backward[(triton.cdiv(num_rows, rows),)](
            total, dy, x, weight, num_rows, total.stride(0), dy.stride(0), x.stride(0), width, eps, ROWS=rows,
            BLOCK=block, num_warps=_warps(rows * block),
        )  # fmt: skip

    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> None:
        num_tokens, num_heads, head_dim = x.shape
        half = head_dim // 2
        _rotate[(num_tokens,)](
            x, cos, sin, x.stride(0), x.stride(1), cos.stride(0), sin.stride(0), num_heads, half,
            SIGN=-1.0 if inverse else 1.0, HEADS=triton.next_power_of_2(num_heads), HALF=triton.next_power_of_2(half),
            num_warps=4,
        )  # fmt: skip

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        product = torch.empty_like(gate)
        _swiglu[(triton.cdiv(gate.numel(), _ELEMENTS),)](gate, up, product, gate.numel(), BLOCK=_ELEMENTS, num_warps=8)
        return product

    def swiglu_backward_(self, gate: Tensor, up: Tensor, dproduct: Tensor) -> None:
        grid = (triton.cdiv(gate.numel(), _ELEMENTS),)
        _swiglu_backward[grid](gate, up, dproduct, gate.numel(), BLOCK=_ELEMENTS, num_warps=8)


def _rows_of_program(block: int) -> int:
    """Heads are narrow: several rows share a program."""
    return max(1, 2048 // block)


def _warps(elements: int) -> int:
    return min(16, max(1, elements // 512))


@triton.jit
def _rms_norm(x_ptr, w_ptr, y_ptr, num_rows, x_stride, width, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows < num_rows) & (columns < width)
    x = tl.load(x_ptr + rows * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + columns, mask=columns < width, other=0.0)
    inverse_rms = 1.0 / tl.sqrt(tl.sum(x * x, axis=1)[:, None] / width + eps)
    y = (x * inverse_rms).to(w.dtype) * w
    tl.store(y_ptr + rows * width + columns, y, mask=inside)


@triton.jit
def _rms_norm_backward(
    total_ptr, dy_ptr, x_ptr, w_ptr, num_rows, total_stride, dy_stride, x_stride, width, eps, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows < num_rows) & (columns < width)
    x = tl.load(x_ptr + rows * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + rows * dy_stride + columns, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + columns, mask=columns < width, other=0.0).to(tl.float32)
    inverse_rms = 1.0 / tl.sqrt(tl.sum(x * x, axis=1)[:, None] / width + eps)
    normed, dnormed = x * inverse_rms, dy * w
    mean = tl.sum(dnormed * normed, axis=1)[:, None] / width
    total = tl.load(total_ptr + rows * total_stride + columns, mask=inside, other=0.0).to(tl.float32)
    total += (dnormed - normed * mean) * inverse_rms
    tl.store(total_ptr + rows * total_stride + columns, total.to(total_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _rotate(
    x_ptr, cos_ptr, sin_ptr, token_stride, head_stride, cos_stride, sin_stride, num_heads, half, SIGN: tl.constexpr,
    HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    heads, columns = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    inside = (heads < num_heads) & (columns < half)
    cos = tl.load(cos_ptr + token * cos_stride + columns, mask=columns < half, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * sin_stride + columns, mask=columns < half, other=0.0).to(tl.float32) * SIGN
    first_ptr = x_ptr + token * token_stride + heads * head_stride + columns
    first = tl.load(first_ptr, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(first_ptr + half, mask=inside, other=0.0).to(tl.float32)
    tl.store(first_ptr, (first * cos - second * sin).to(x_ptr.dtype.element_ty), mask=inside)
    tl.store(first_ptr + half, (second * cos + first * sin).to(x_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu(gate_ptr, up_ptr, product_ptr, num_elements, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < num_elements
    gate = tl.load(gate_ptr + index, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + index, mask=inside, other=0.0)
    silu = (gate * tl.sigmoid(gate)).to(up.dtype)
    tl.store(product_ptr + index, silu * up, mask=inside)


@triton.jit
def _swiglu_backward(gate_ptr, up_ptr, dproduct_ptr, num_elements, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < num_elements
    gate = tl.load(gate_ptr + index, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + index, mask=inside, other=0.0).to(tl.float32)
    dproduct = tl.load(dproduct_ptr + index, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    dtype = gate_ptr.dtype.element_ty
    tl.store(gate_ptr + index, (dproduct * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))).to(dtype), mask=inside)
    tl.store(up_ptr + index, (dproduct * silu).to(dtype), mask=inside)
    tl.store(dproduct_ptr + index, (silu * up).to(dtype), mask=inside)
