"""Attention of a layer by head groups: what the virtual ranks of Ulysses would do, one after another on one device.

`fake_parallel` (core/optimizations/fake_parallel.py) puts a HeadGroups in place of the forward of each attention
module. For each group of KV heads and the query heads that share them:

    x (1, L, d) --rows of W_q, W_k, W_v--> q k v of the group --RoPE, attend--> o --columns of W_o--> added into out

Nothing of a group outlives it: backward projects and attends again, group by group, so that full-width q, k, v, o and
their gradients never exist, neither saved nor at work. LoRA rides along: rows of B on q, k, v, columns of A on o.
A run that keeps attention outputs (core/attention/kept.py) keeps each group's, and backward only projects again.
Idea: Untied Ulysses (arXiv 2602.21196), with a group where it has a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.mixtral import modeling_mixtral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen2_moe import modeling_qwen2_moe
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe

from core.attention.kept import KeptOutput
from core.attention.kernel import wide_dtype
from core.attention.register import RowAttention, window_of
from core.model.adapters import ADAPTER_NAME
from planner.errors import ConfigError

# Exact classes only: the forward below is theirs, rearranged. The RoPE function is the one that their own
# forward calls: a global of the file, which `liger` may have replaced.
ROPE: dict[type, ModuleType] = {
    modeling_llama.LlamaAttention: modeling_llama,
    modeling_mistral.MistralAttention: modeling_mistral,
    modeling_qwen2.Qwen2Attention: modeling_qwen2,
    modeling_qwen3.Qwen3Attention: modeling_qwen3,
    modeling_mixtral.MixtralAttention: modeling_mixtral,
    modeling_qwen2_moe.Qwen2MoeAttention: modeling_qwen2_moe,
    modeling_qwen3_moe.Qwen3MoeAttention: modeling_qwen3_moe,
}


# Which dimension each tensor of a module is cut along, in the order (weight, bias, LoRA A, LoRA B) of q, k, v and o,
# then the norms of q and k. None: every group uses it whole; but the output's bias is added once, by the first group.
_CUT_DIMS = (0, 0, None, 0) * 3 + (1, None, 1, None) + (None, None)
_OUTPUT_BIAS = 13


class HeadGroups:
    """The forward of one attention module, in ``num_groups`` groups of KV heads."""

    def __init__(self, module: nn.Module, num_groups: int) -> None:
        """
        Raises:
            ConfigError: not one of the classes of ROPE, groups that do not divide the KV heads, or an adapter that
                cannot be cut: LoRA dropout, DoRA, a LoRA bias.
        """
        if type(module) not in ROPE:
            raise ConfigError(
                f"fake_parallel cannot split {type(module).__name__}.",
                why="It rearranges the forward of classes that it knows exactly.",
                fix=f"Remove fake_parallel, or use a model with one of {', '.join(known.__name__ for known in ROPE)}.",
            )
        num_kv_heads = module.config.num_key_value_heads
        if num_kv_heads % num_groups:
            legal = ", ".join(str(n) for n in range(1, num_kv_heads + 1) if num_kv_heads % n == 0)
            raise ConfigError(
                f"fake_parallel: {num_groups} groups cannot share {num_kv_heads} KV heads.",
                why="A group holds whole KV heads.",
                fix=f"Choose one of {legal}.",
            )
        self.module = module
        self.num_groups = num_groups
        self.num_calls = 0
        self._rope = ROPE[type(module)].apply_rotary_pos_emb
        self._linears = [_linear_of(name, getattr(module, name)) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
        self._norms = [getattr(module, name, None) for name in ("q_norm", "k_norm")]  # Qwen3: over each head
        self._window = window_of(module)

    def __call__(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        *,
        longfit_row: RowAttention,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """hidden_states (1, L, d) and (cos, sin), each (1, L, D) -> ((1, L, d), no weights)."""
        assert attention_mask is None, "our attention takes no mask"
        assert past_key_values is None, "training has no cache"
        self.num_calls += 1
        tensors = [x for linear in self._linears for x in linear.tensors]
        tensors += [None if norm is None else norm.weight for norm in self._norms]
        cells = [longfit_row.cell() for _ in range(self.num_groups)]
        return _GroupedAttention.apply(hidden_states, *position_embeddings, self, longfit_row, cells, *tensors), None

    def cut(self, tensors: Sequence[Tensor | None], group: int) -> list[Tensor | None]:
        """The views of the module's tensors that this group works with; None where it has no part."""
        parts: list[Tensor | None] = []
        for x, dim in zip(tensors, _CUT_DIMS):
            if x is None or dim is None:
                parts.append(x)
            else:
                size = x.shape[dim] // self.num_groups
                parts.append(x.narrow(dim, group * size, size))
        if group > 0:
            parts[_OUTPUT_BIAS] = None
        return parts

    def attend(
        self, x: Tensor, cos: Tensor, sin: Tensor, row: RowAttention, kept: KeptOutput | None,
        parts: list[Tensor | None],
    ) -> Tensor:  # fmt: skip
        """One group's summand of the module's output: (1, L, d) -> (1, L, d)."""
        scalings = [linear.scaling for linear in self._linears]
        q, k, v = (
            _linear(x, *parts[4 * index : 4 * index + 4], scalings[index]).unflatten(-1, (-1, self.module.head_dim))
            for index in range(3)
        )
        q, k = (
            y if norm is None else functional_call(norm, {"weight": weight}, (y,))
            for y, norm, weight in zip((q, k), self._norms, parts[16:])
        )
        q, k = self._rope(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        out = row(q, k, v.transpose(1, 2), self.module.scaling, kept, self._window).transpose(1, 2).flatten(2)
        return _linear(out, *parts[12:16], scalings[3])


class _GroupedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, groups: HeadGroups, row: RowAttention,
        cells: list[KeptOutput | None], *tensors: Tensor | None,
    ) -> Tensor:  # fmt: skip
        out = None
        for group in range(groups.num_groups):
            part = groups.attend(x, cos, sin, row, cells[group], groups.cut(tensors, group))
            out = part if out is None else out.add_(part)
        ctx.save_for_backward(x, cos, sin, *tensors)
        ctx.groups, ctx.row, ctx.cells = groups, row, cells
        device_type = x.device.type
        ctx.autocast = {
            "device_type": device_type,
            "enabled": torch.is_autocast_enabled(device_type),
            "dtype": torch.get_autocast_dtype(device_type),
        }
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x, cos, sin, *tensors = ctx.saved_tensors
        groups = ctx.groups
        wants_x, wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[6:]
        dx = torch.zeros_like(x, dtype=wide_dtype(x.dtype)) if wants_x else None
        # of a tensor that is cut each group owns a part; what all groups use whole sums over them, so it sums wide
        sums = [
            torch.zeros_like(t, dtype=wide_dtype(t.dtype) if dim is None else t.dtype) if want else None
            for t, want, dim in zip(tensors, wanted, _CUT_DIMS)
        ]
        for group in range(groups.num_groups):
            leaf = x.detach().requires_grad_(wants_x)
            parts = groups.cut(tensors, group)
            leaves = [None if part is None else part.detach().requires_grad_(want) for part, want in zip(parts, wanted)]
            inputs = [y for y in (leaf, *leaves) if y is not None and y.requires_grad]
            with torch.enable_grad(), torch.autocast(**ctx.autocast):
                out = groups.attend(leaf, cos, sin, ctx.row, ctx.cells[group], leaves)
            grads = iter(torch.autograd.grad(out, inputs, dout))
            del out
            if dx is not None:
                dx += next(grads)
            for total, y in zip(groups.cut(sums, group), leaves):
                if y is not None and y.requires_grad:
                    total += next(grads)
        dtensors = [None if total is None else total.to(t.dtype) for total, t in zip(sums, tensors)]
        return None if dx is None else dx.to(x.dtype), None, None, None, None, None, *dtensors


@dataclass(frozen=True, slots=True)
class _Linear:
    """A linear and the adapter on it, if any."""

    base: nn.Linear
    lora_a: nn.Linear | None = None
    lora_b: nn.Linear | None = None
    scaling: float = 0.0

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """As they are now: (weight, bias, LoRA A, LoRA B)."""
        adapter = (None, None) if self.lora_a is None else (self.lora_a.weight, self.lora_b.weight)
        return self.base.weight, self.base.bias, *adapter


def _linear_of(name: str, module: nn.Module) -> _Linear:
    base = module.base_layer if isinstance(module, LoraLayer) else module
    if type(base) is not nn.Linear:
        raise ConfigError(
            f"fake_parallel cannot cut {name}, a {type(base).__name__}.",
            why="It takes rows and columns of a plain weight matrix.",
            fix="Remove fake_parallel or what replaced the linear.",
        )
    if not isinstance(module, LoraLayer):
        return _Linear(base)
    lora_b = module.lora_B[ADAPTER_NAME]
    if not isinstance(module.lora_dropout[ADAPTER_NAME], nn.Identity) or module.lora_variant or lora_b.bias is not None:
        raise ConfigError(
            f"fake_parallel cannot cut the adapter on {name}.",
            why="Each group must see the same adapter in forward and backward: no LoRA dropout, no DoRA, no LoRA bias.",
            fix="Set lora.dropout to 0.0, or remove fake_parallel.",
        )
    return _Linear(base, module.lora_A[ADAPTER_NAME], lora_b, module.scaling[ADAPTER_NAME])


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, lora_a: Tensor | None, lora_b: Tensor | None, scaling: float
) -> Tensor:
    """What PEFT's Linear computes, casts included."""
    y = functional.linear(x, weight, bias)
    if lora_a is None:
        return y
    update = functional.linear(functional.linear(x.to(lora_a.dtype), lora_a), lora_b) * scaling
    return (y + update).to(y.dtype)
