"""The forward and backward of one decoder layer, written out by hand: what is kept, and in which order it is undone.

    x --norm--> n --q k v--> RoPE --attend--> out --o--> + x = h --norm--> m --gate up--> SwiGLU --down--> + h = y

Everything but attention works row by row, so the part behind attention runs in tiles of rows, and nothing as wide as
the MLP exists for more than one tile; attention runs by groups of KV heads. Between forward and backward a layer keeps
its input x, and by policy attention's output and log-sum-exp, or everything that a matrix product made. Backward
recomputes the rest, but never the down projection: its output is not part of its own backward.

Called by core/layer/engine.py, one object a layer. Bytes and FLOPs: docs/engine.md. The order of head groups is that of
Untied Ulysses (arXiv 2602.21196), tiles those of ALST (arXiv 2506.13996) without the second recompute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from core.attention.kept import KeptOutput
from core.attention.register import window_of
from core.attention.sequence import SequenceAttention
from core.layer.linears import Pass, Projections, frozen_linear
from core.layer.row_ops import RowOps, Update
from core.parallel.layout import SequenceLayout
from planner.layer_policy import LayerPolicy, tile_bounds

ATTENTION_LINEARS = ("q_proj", "k_proj", "v_proj")
MLP_LINEARS = ("gate_proj", "up_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPart:
    """The row at hand as the layers see it."""

    cos: Tensor  # (T, h)
    sin: Tensor
    layout: SequenceLayout
    attention: SequenceAttention  # also over several ranks: T is what this one holds


@dataclass(slots=True)
class Kept:
    """What one layer keeps from its forward to its backward; lists by head group and by tile."""

    out: Tensor | None = None  # (T, q)
    lse: list[Tensor] = field(default_factory=list)  # (1, H / groups, T)
    qkv: list[tuple[Tensor, ...]] = field(default_factory=list)  # as projected, before norm and RoPE
    mlp: list[tuple[Tensor, ...]] = field(default_factory=list)  # (h, gate, up) of each tile


class DecoderLayer:
    """One layer of Llama, Mistral, Qwen2 or Qwen3 over frozen weights."""

    def __init__(self, module: nn.Module, policy: LayerPolicy, ops: RowOps) -> None:
        attention, mlp = module.self_attn, module.mlp
        self.policy, self.ops = policy, ops
        self.qkv = Projections([frozen_linear(getattr(attention, name)) for name in ATTENTION_LINEARS])
        self.o = Projections([frozen_linear(attention.o_proj)])
        self.gate_up = Projections([frozen_linear(getattr(mlp, name)) for name in MLP_LINEARS])
        self.down = Projections([frozen_linear(mlp.down_proj)])
        self._norms = module.input_layernorm, module.post_attention_layernorm
        self._head_norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        self._head_dim, self._scale, self._window = attention.head_dim, attention.scaling, window_of(attention)
        self._groups = _head_groups(attention, policy.head_groups)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Adapters in the order of the gradients that ``backward`` returns."""
        return [p for part in (self.qkv, self.o, self.gate_up, self.down) for p in part.parameters]

    # --- forward ---

    def forward(self, x: Tensor, row: RowPart, *, keeps: bool) -> tuple[Tensor, Kept]:
        """x (T, d) -> (T, d), and what backward will need beside x (nothing, unless ``keeps``)."""
        kept = Kept()
        out = self._attend(x, row, kept, keeps_products=keeps and self.policy.keeps_products)
        if not (keeps and (self.policy.keeps_attention or self.policy.keeps_products)):
            kept.lse = []
        else:
            kept.out = out
        o, gate_up, down = (part.open(x.dtype) for part in (self.o, self.gate_up, self.down))
        y = torch.empty_like(x)
        for start, end in self._tiles(x):
            tile = slice(start, end)
            products = self._mlp(y[tile], x[tile], out[tile], o, gate_up, down)
            if keeps and self.policy.keeps_products:
                kept.mlp.append(products)
            del products  # before the next tile's are made
        return y, kept

    def _mlp(self, y: Tensor, x: Tensor, out: Tensor, o: Pass, gate_up: Pass, down: Pass) -> tuple[Tensor, ...]:
        """Of some rows: ``y`` is written; (h, gate, up) as a layer that keeps its products keeps them."""
        h, (gate, up), _, _, xa = self._into_mlp(x, out, o, gate_up)
        product = self.ops.swiglu(gate, up, _updates(gate_up, xa))
        down.add(0, h, product, down.narrow(product), out=y)
        return h, gate, up

    def _attend(self, x: Tensor, row: RowPart, kept: Kept, *, keeps_products: bool) -> Tensor:
        """Attention's output (T, q) of every group; its log-sum-exps go to ``kept``."""
        qkv = self.qkv.open(x.dtype)
        n = self._norm(0, x)
        xa = qkv.narrow(n)
        out = None
        kept.lse = []
        for rows in self._groups:
            group_out = self._attend_group(qkv, n, xa, rows, row, kept, keeps_products=keeps_products)
            if len(self._groups) == 1:
                return group_out
            out = x.new_empty(x.shape[0], self._groups[-1][0].stop) if out is None else out
            out[:, rows[0]] = group_out
            del group_out  # before the next group's is made
        return out

    def _attend_group(
        self, qkv: Pass, n: Tensor, xa: Tensor | None, rows: tuple[slice, slice], row: RowPart, kept: Kept, *,
        keeps_products: bool,
    ) -> Tensor:  # fmt: skip
        """(T, query heads of the group * h)"""
        projected = self._project(qkv, n, xa, *rows)
        if keeps_products:
            kept.qkv.append(projected)
        q, k, v = self._prepare(projected, row, in_place=not keeps_products)
        cell = KeptOutput()
        out = row.attention(q, k, v, row.layout, self._scale, cell, self._window)
        kept.lse.append(cell.read()[1])
        return _by_row(out)

    def _project(
        self, qkv: Pass, n: Tensor, xa: Tensor | None, query_rows: slice, kv_rows: slice
    ) -> tuple[Tensor, ...]:
        """q, k, v of a head group, each (T, heads * h), before norm and RoPE."""
        return tuple(qkv.project(i, n, xa, rows) for i, rows in enumerate((query_rows, kv_rows, kv_rows)))

    def _prepare(self, projected: tuple[Tensor, ...], row: RowPart, *, in_place: bool) -> list[Tensor]:
        """q, k, v (1, heads, T, h) as attention takes them. ``in_place``: q and k may be written over."""
        heads = []
        for x, norm in zip(projected, (*self._head_norms, None)):
            x = x.unflatten(-1, (-1, self._head_dim))
            if norm is not None:
                x = self._head_normed(x, norm)
            elif not in_place and len(heads) < 2:
                x = x.clone()
            if len(heads) < 2:
                self.ops.rotate_(x, row.cos, row.sin)
            heads.append(x.transpose(0, 1)[None])
        return heads

    def _into_mlp(
        self, x: Tensor, out: Tensor, o: Pass, gate_up: Pass
    ) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor, Tensor | None, Tensor | None]:
        """Of some rows: h, (gate, up) without their adapters, m, and the narrow products of o, and of gate and up."""
        xa_o = o.narrow(out)
        h = o.add(0, x, out, xa_o)
        m = self._norm(1, h)
        xa = gate_up.narrow(m)
        return h, (gate_up.project_base(0, m), gate_up.project_base(1, m)), m, xa_o, xa

    # --- backward ---

    def backward(
        self, dy: Tensor, x: Tensor, kept: Kept, row: RowPart, *, wants_dx: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """``dy`` (T, d) is written over and becomes dx, where that is wanted; and the gradients of ``parameters``."""
        out = kept.out
        if out is None:
            out = self._attend(x, row, kept, keeps_products=False)
        o, gate_up, down = (part.open(x.dtype) for part in (self.o, self.gate_up, self.down))
        dout = torch.empty_like(out)
        for start, end in self._tiles(x):
            tile = slice(start, end)
            mlp = [kept.mlp.pop(0)] if kept.mlp else []  # in a list, so that it is let go of inside
            self._mlp_backward(dy[tile], dout[tile], x[tile], out[tile], mlp, o, gate_up, down)
        late = [*o.gradients(), *gate_up.gradients(), *down.gradients()]
        del o, gate_up, down  # and with them weights that were dequantised
        return dy, [*self._attention_backward(dy, dout, x, out, kept, row, wants_dx=wants_dx), *late]

    def _mlp_backward(
        self, dh: Tensor, dout: Tensor, x: Tensor, out: Tensor, mlp: list[tuple[Tensor, ...]], o: Pass, gate_up: Pass,
        down: Pass,
    ) -> None:  # fmt: skip
        """Of some rows: ``dh`` comes as dy and leaves as the gradient of h; that of ``out`` is written to ``dout``."""
        if not mlp:
            h, (gate, up), m, xa_o, xa = self._into_mlp(x, out, o, gate_up)
        else:
            h, gate, up = mlp.pop()
            m, xa_o = self._norm(1, h), o.narrow(out)
            xa = gate_up.narrow(m)
        dxa = down.new_dxa(dh)
        product = down.widen(dxa, down.pull(0, dh, dxa))  # its gradient
        self.ops.swiglu_backward_(gate, up, _updates(gate_up, xa), product)
        dgate, dup = gate, up
        down.count_b(0, dh, down.narrow(product))
        down.count_a(product, dxa)
        del product
        dxa = gate_up.new_dxa(dh)
        dm = gate_up.pull(0, dgate, dxa)
        dm = gate_up.widen(dxa, gate_up.pull(1, dup, dxa, dm))
        for i, dy in enumerate((dgate, dup)):
            gate_up.count_b(i, dy, xa)
        gate_up.count_a(m, dxa)
        self._norm_backward_(1, dh, dm, h)
        dxa = o.new_dxa(dh)
        o.widen(dxa, o.pull(0, dh, dxa, out=dout))
        o.count_b(0, dh, xa_o)
        o.count_a(out, dxa)

    def _attention_backward(
        self, dx: Tensor, dout: Tensor, x: Tensor, out: Tensor, kept: Kept, row: RowPart, *, wants_dx: bool
    ) -> list[Tensor]:
        """``dx`` comes as the gradient of h and leaves as that of x, in place; gradients of q, k, v's adapters."""
        qkv = self.qkv.open(x.dtype)
        n = self._norm(0, x)
        xa, dxa, dn = qkv.narrow(n), qkv.new_dxa(x), None
        for group, (query_rows, kv_rows) in enumerate(self._groups):
            projected = kept.qkv[group] if kept.qkv else self._project(qkv, n, xa, query_rows, kv_rows)
            heads = self._prepare(projected, row, in_place=True)
            out_heads, dout_heads = self._by_head(out[:, query_rows]), self._by_head(dout[:, query_rows])
            grads = self._attended_backward(row, heads, out_heads, kept.lse[group], dout_heads)
            del heads
            if kept.qkv:
                kept.qkv[group] = ()
            for i, rows in enumerate((query_rows, kv_rows, kv_rows)):
                dy = self._unprepare(i, grads[i], projected[i], row)
                qkv.count_b(i, dy, xa, rows)
                dn = qkv.pull(i, dy, dxa, dn, rows, wants_dx=wants_dx)
            del grads, dy, projected
        qkv.count_a(n, dxa)
        if dn is not None:
            self._norm_backward_(0, dx, qkv.widen(dxa, dn), x)
        return qkv.gradients()

    def _attended_backward(
        self, row: RowPart, heads: list[Tensor], out: Tensor, lse: Tensor, dout: Tensor
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Gradients of q, k, v (1, heads, T, h). The output is known, so that nothing attends forward again."""
        cell = KeptOutput()
        cell.fill(*row.attention.known(out, lse))
        leaves = [x.detach().requires_grad_() for x in heads]
        with torch.enable_grad():
            attended = row.attention(*leaves, row.layout, self._scale, cell, self._window)
        return torch.autograd.grad(attended, leaves, dout)

    def _unprepare(self, index: int, dhead: Tensor, projected: Tensor, row: RowPart) -> Tensor:
        """From the gradient of q, k or v (1, heads, T, h) to that of its projection, (T, heads * h)."""
        dy = dhead[0].transpose(0, 1).contiguous()  # (T, heads, h), as the kernels that write by token leave it
        if index < 2:
            self.ops.rotate_(dy, row.cos, row.sin, inverse=True)
            norm = self._head_norms[index]
            if norm is not None:
                total = torch.zeros_like(dy).flatten(0, 1)
                self.ops.rms_norm_backward_(
                    total, dy.flatten(0, 1), projected.reshape(total.shape), norm.weight, norm.variance_epsilon
                )
                dy = total.view(dy.shape)
        return dy.flatten(1)

    # --- small parts ---

    def _tiles(self, x: Tensor) -> Sequence[tuple[int, int]]:
        return tile_bounds(x.shape[0], self.policy.mlp_tiles)

    def _norm(self, which: int, x: Tensor) -> Tensor:
        norm = self._norms[which]
        return self.ops.rms_norm(x, norm.weight, norm.variance_epsilon)

    def _norm_backward_(self, which: int, total: Tensor, dy: Tensor, x: Tensor) -> None:
        norm = self._norms[which]
        self.ops.rms_norm_backward_(total, dy, x, norm.weight, norm.variance_epsilon)

    def _head_normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        """Qwen3: each head by itself. x (T, heads, h) -> a new tensor of that shape."""
        rows = x.reshape(-1, self._head_dim)
        return self.ops.rms_norm(rows, norm.weight, norm.variance_epsilon).view(x.shape)

    def _by_head(self, x: Tensor) -> Tensor:
        """(T, heads * h) -> (1, heads, T, h), a view."""
        return x.unflatten(-1, (-1, self._head_dim)).transpose(0, 1)[None]


def _updates(gate_up: Pass, xa: Tensor | None) -> tuple[Update | None, Update | None]:
    return gate_up.update(0, xa), gate_up.update(1, xa)


def _by_row(x: Tensor) -> Tensor:
    """(1, heads, T, h) -> (T, heads * h); a view of what is laid out by token."""
    return x[0].transpose(0, 1).flatten(1)


def _head_groups(attention: nn.Module, num_groups: int) -> list[tuple[slice, slice]]:
    """Output rows of q, and of k and v, of each group."""
    config, head_dim = attention.config, attention.head_dim
    query, kv = (n // num_groups * head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    return [
        (slice(group * query, (group + 1) * query), slice(group * kv, (group + 1) * kv)) for group in range(num_groups)
    ]
