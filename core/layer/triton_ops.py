"""RowOps of a GPU: one Triton kernel each, every operand read once and every result written once.

Rounding is that of core/layer/row_ops.py: statistics in float32, results in the operands' dtype. Offsets are 64-bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from core.layer.row_ops import Update


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

    def swiglu(self, gate: Tensor, up: Tensor, updates: tuple[Update | None, Update | None]) -> Tensor:
        product = torch.empty_like(gate)
        _swiglu[_tiles](gate, up, product, *_tiled(gate, updates), IS_BACKWARD=False, num_warps=_TILE_WARPS)
        return product

    def swiglu_backward_(
        self, gate: Tensor, up: Tensor, updates: tuple[Update | None, Update | None], dproduct: Tensor
    ) -> None:
        _swiglu[_tiles](gate, up, dproduct, *_tiled(gate, updates), IS_BACKWARD=True, num_warps=_TILE_WARPS)


# the fastest of 14 shapes on one H200: 0.79 ms forward and 1.39 ms backward for 16,384 rows of 18,944, rank 64
_TILE_ROWS, _TILE_COLUMNS, _TILE_WARPS = 64, 64, 8


def _tiles(arguments: dict[str, int]) -> tuple[int]:
    """The grid: tiles of a row after each other, so that programs side by side share their part of xa."""
    return (triton.cdiv(arguments["num_rows"], _TILE_ROWS) * triton.cdiv(arguments["width"], _TILE_COLUMNS),)


def _tiled(gate: Tensor, updates: tuple[Update | None, Update | None]) -> tuple[Any, ...]:
    """What a tile needs to know of the updates of gate and of up; both have the same rank, or there is one."""
    (gate_xa, gate_b), (up_xa, up_b) = (update or (gate, gate) for update in updates)
    adapted = [update for update in updates if update is not None]
    xa = adapted[0][0] if adapted else gate
    rank = xa.shape[1] if adapted else 0
    shape = gate.shape[0], gate.shape[1], xa.stride(0), rank
    tile = _TILE_ROWS, _TILE_COLUMNS, max(16, triton.next_power_of_2(rank))
    return gate_xa, gate_b, up_xa, up_b, *shape, updates[0] is not None, updates[1] is not None, *tile


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
def _swiglu(
    gate_ptr, up_ptr, product_ptr, gate_xa_ptr, gate_b_ptr, up_xa_ptr, up_b_ptr, num_rows, width, xa_stride, rank,
    ADAPTS_GATE: tl.constexpr, ADAPTS_UP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RANK: tl.constexpr,
    IS_BACKWARD: tl.constexpr,
):  # fmt: skip
    """Forward: writes the product. Backward: reads its gradient there, and writes all three in place."""
    column_tiles = tl.cdiv(width, COLUMNS)
    rows = (tl.program_id(0) // column_tiles * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.program_id(0) % column_tiles * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows[:, None] < num_rows) & (columns[None, :] < width)
    index = rows[:, None] * width + columns[None, :]
    gate = tl.load(gate_ptr + index, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + index, mask=inside, other=0.0).to(tl.float32)
    if ADAPTS_GATE:
        gate += _update(gate_xa_ptr, gate_b_ptr, rows, columns, num_rows, width, xa_stride, rank, RANK)
    if ADAPTS_UP:
        up += _update(up_xa_ptr, up_b_ptr, rows, columns, num_rows, width, xa_stride, rank, RANK)
    dtype = product_ptr.dtype.element_ty
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    if IS_BACKWARD:
        dproduct = tl.load(product_ptr + index, mask=inside, other=0.0).to(tl.float32)
        dgate = dproduct * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
        tl.store(gate_ptr + index, dgate.to(dtype), mask=inside)
        tl.store(up_ptr + index, (dproduct * silu).to(dtype), mask=inside)
    tl.store(product_ptr + index, (silu * up).to(dtype), mask=inside)


@triton.jit
def _update(xa_ptr, b_ptr, rows, columns, num_rows, width, xa_stride, rank, RANK: tl.constexpr):
    """xa (rows, rank) times b (columns, rank) transposed, in float32."""
    ranks = tl.arange(0, RANK)
    inside_rank = ranks[None, :] < rank
    xa = tl.load(
        xa_ptr + rows[:, None] * xa_stride + ranks[None, :], mask=(rows[:, None] < num_rows) & inside_rank, other=0.0
    )
    b = tl.load(
        b_ptr + columns[:, None] * rank + ranks[None, :], mask=(columns[:, None] < width) & inside_rank, other=0.0
    )
    return tl.dot(xa, tl.trans(b), input_precision="ieee")
