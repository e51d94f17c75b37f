"""Fake-parallel at level 1: gradients equal those of the whole module, and full-width q, k, v never exist."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from core.attention.head_groups import HeadGroups
from core.attention.register import RowAttention
from core.parallel.layout import sequence_layout
from planner.errors import ConfigError
from tests.core.model.tiny_models import (
    FAMILIES,
    assert_same_gradients,
    loss_and_gradients,
    random_row,
    setting,
    tiny_model,
    tiny_setup,
)

# queries 12 x 8 = 96 wide, keys 3 x 8 = 24, a group's queries 32, hidden states 72: no two widths are alike
WIDE = {"heads": 12, "kv_heads": 3, "head_dim": 8}
LENGTH = 41


def both(model_arguments, *optimizations, groups, row, family="llama"):
    """(loss, gradients) of the run as it is, and with head groups."""
    results = []
    for extra in ((), (setting("fake_parallel", groups=groups),)):
        setup = tiny_setup(tiny_model(family, **model_arguments), *optimizations, *extra)
        for name, parameter in setup.model.named_parameters():
            if ".lora_B." in name:
                parameter.data += torch.linspace(-0.1, 0.1, parameter.numel(), dtype=parameter.dtype).view_as(parameter)
        results.append(loss_and_gradients(setup, row))
    return results


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("groups", [1, 3])
def test_full_training_has_the_same_gradients(family, groups):
    shape = {**WIDE, "attention_bias": True} if family in ("llama", "qwen3") else WIDE
    (want_loss, want), (loss, got) = both(shape, groups=groups, row=random_row((13, 1, 30, 9)), family=family)
    assert abs(loss - want_loss) < 1e-9
    assert_same_gradients(got, want, 1e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize(
    "others",
    [(), (setting("gradient_checkpointing"), setting("packing"), setting("fused_loss", chunk_tokens=7))],
    ids=["alone", "with the others"],
)
def test_lora_has_the_same_gradients(dtype, groups, others):
    shape = {"heads": 8, "kv_heads": 4, "dtype": dtype}
    together = (setting("lora", rank=3, alpha=6), *others)
    (want_loss, want), (loss, got) = both(shape, *together, groups=groups, row=random_row((26, 15)), family="qwen2")
    assert abs(loss - want_loss) < (1e-9 if dtype == torch.float64 else 1e-3)
    assert all("lora_" in name for name in got)
    assert_same_gradients(got, want, 1e-8 if dtype == torch.float64 else 2e-4)


def test_adapters_on_some_linears_only():
    (_, want), (_, got) = both(
        WIDE, setting("lora", rank=3, targets="k_proj,o_proj,down_proj"), groups=3, row=random_row((26, 15))
    )
    assert_same_gradients(got, want, 1e-8)


class WidthWatcher(TorchDispatchMode):
    """Remembers how many elements per token every tensor of LENGTH tokens had."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and LENGTH in x.shape:
                self.widths.add(x.numel() // LENGTH)
        return out


def attention_alone(groups: int, *optimizations):
    """(widths seen in forward and backward, bytes saved between them) of one attention module."""
    setup = tiny_setup(tiny_model(layers=1, **WIDE), *optimizations, setting("packing"))
    if groups > 1:
        module = setup.causal_lm.get_decoder().layers[0].self_attn
        module.forward = HeadGroups(module, groups)
    saved: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        if LENGTH in x.shape:
            saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    row = RowAttention(
        setup.attention, sequence_layout((0, 17, LENGTH), ring_degree=1, ring_rank=0, ulysses_degree=1, ulysses_rank=0)
    )
    generator = torch.Generator().manual_seed(3)
    x, cos, sin = (torch.randn(1, LENGTH, n, dtype=torch.float64, generator=generator) for n in (72, 8, 8))
    x.requires_grad_()
    module = setup.causal_lm.get_decoder().layers[0].self_attn
    with WidthWatcher() as watcher:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            out, _ = module(hidden_states=x, position_embeddings=(cos, sin), attention_mask=None, longfit_row=row)
        out.sum().backward()
    return watcher.widths, sum(saved.values()), out.detach(), x.grad


@pytest.mark.parametrize("optimizations", [(), (setting("lora", rank=5),)], ids=["full", "lora"])
def test_full_width_queries_keys_and_values_never_exist(optimizations):
    widths, saved_bytes, out, dx = attention_alone(3, *optimizations)
    plain_widths, plain_saved_bytes, plain_out, plain_dx = attention_alone(1, *optimizations)
    assert {96, 24} <= plain_widths
    assert widths & {96, 24} == set()
    assert {32, 8} <= widths
    # one input and cos and sin; the plain module saves q, k, v, out, their rotated forms and more
    assert saved_bytes == (72 + 2 * 8) * LENGTH * 8
    assert plain_saved_bytes > 3 * saved_bytes
    assert (out - plain_out).abs().max() < 1e-12
    assert (dx - plain_dx).abs().max() < 1e-12


def test_patches_are_taken_back():
    setup = tiny_setup(tiny_model(), setting("fake_parallel", groups=3))
    attention = setup.causal_lm.get_decoder().layers[0].self_attn
    assert isinstance(attention.forward, HeadGroups)
    setup.restore()
    assert attention.forward.__func__ is type(attention).forward


class LikeAttention(torch.nn.Module):
    pass


def test_only_known_classes_are_rearranged():
    with pytest.raises(ConfigError, match=r"cannot split LikeAttention.*LlamaAttention"):
        HeadGroups(LikeAttention(), 2)


def test_groups_must_hold_whole_kv_heads():
    with pytest.raises(ConfigError, match=r"2 groups cannot share 3 KV heads.*Choose one of 1, 3"):
        tiny_setup(tiny_model(), setting("fake_parallel", groups=2))


def test_lora_dropout_is_refused_because_forward_and_backward_would_differ():
    with pytest.raises(ConfigError, match="no LoRA dropout"):
        tiny_setup(tiny_model(), setting("lora", rank=2, dropout=0.1), setting("fake_parallel", groups=3))
