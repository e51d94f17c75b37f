"""Liger op by op, on fakes with liger-kernel 0.8's signatures: exact classes, the same gradients, proof, way back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from core.optimizations.evidence import NotActive
from core.optimizations.liger import Liger
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

ROW = random_row((26, 1, 14))


def fake(compute):
    """A class with ``apply``, as of an autograd Function."""
    return SimpleNamespace(apply=compute)


def rms_norm(x, weight, eps, offset=0.0, casting_mode="llama", in_place=True, row_mode=None):
    assert (offset, casting_mode) == (0.0, "llama")
    wide = x.double()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def silu_mul(a, b, gate_multiplier=1.0, down_multiplier=1.0):
    return functional.silu(a) * b


def rope(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    def rotate(x):
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * cos[:, None] + turned * sin[:, None]

    assert unsqueeze_dim == 1
    return rotate(q), rotate(k)


FUNCTIONS = SimpleNamespace(
    LigerRMSNormFunction=fake(rms_norm), LigerSiLUMulFunction=fake(silu_mul), LigerRopeFunction=fake(rope)
)


@pytest.fixture
def with_liger():
    setups = []

    def build(model, *optimizations, liger=None):
        setup = tiny_setup(model, *optimizations)
        setups.append(setup)
        (liger or Liger()).replace(setup, FUNCTIONS)
        return setup

    yield build
    for setup in setups:
        setup.restore()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("others", [(), (setting("lora", rank=3), setting("gradient_checkpointing"))], ids=["", "lora"])
def test_every_family_keeps_loss_and_gradients(with_liger, family, others):
    """transformers' norm rounds through float32 where the fake does not: equal to that rounding."""
    want_loss, want = loss_and_gradients(tiny_setup(tiny_model(family), *others), ROW)
    setup = with_liger(tiny_model(family), *others)
    loss, got = loss_and_gradients(setup, ROW)
    assert abs(loss - want_loss) < 1e-5 * want_loss
    assert_same_gradients(got, want, 1e-4)
    evidence = Liger().verify(setup)
    norms = 9 if family == "qwen3" else 5  # two a layer and the last; Qwen3's heads have two more
    assert evidence.claim == f"RMSNorm of {norms} modules, SwiGLU of 2 modules, RoPE of 2 modules; not the loss"


def test_head_groups_rotate_with_the_replaced_function(with_liger):
    setup = tiny_setup(tiny_model("qwen3"))
    Liger().replace(setup, FUNCTIONS)
    from core.attention.head_groups import HeadGroups

    for layer in setup.causal_lm.get_decoder().layers:
        layer.self_attn.forward = HeadGroups(layer.self_attn, 3)
    loss, got = loss_and_gradients(setup, ROW)
    assert setup.liger.calls["rope"] == 2 * 3 * 2  # layers, groups, forward and backward
    setup.restore()
    want_loss, want = loss_and_gradients(tiny_setup(tiny_model("qwen3")), ROW)
    assert abs(loss - want_loss) < 1e-5 * want_loss
    assert_same_gradients(got, want, 1e-4)


def test_patches_are_taken_back(with_liger):
    setup = with_liger(tiny_model())
    setup.restore()
    loss_and_gradients(setup, ROW)
    assert not setup.liger.calls


def test_a_subclass_is_left_alone_and_said_so(with_liger):
    model = tiny_model()
    for module in model.modules():
        if type(module).__name__ == "LlamaMLP":
            module.__class__ = type("OtherMLP", (type(module),), {})
    with pytest.raises(ConfigError, match="no SwiGLU that it knows in LlamaForCausalLM"):
        with_liger(model)


def test_an_activation_that_is_not_silu_is_left_alone(with_liger):
    with pytest.raises(ConfigError, match="no SwiGLU"):
        with_liger(tiny_model(hidden_act="gelu"))


def test_ops_can_be_switched_off_one_by_one(with_liger):
    liger = Liger(swiglu=False, rope=False)
    setup = with_liger(tiny_model(), liger=liger)
    loss_and_gradients(setup, ROW)
    assert set(setup.liger.calls) == {"rms_norm"}
    assert liger.verify(setup).claim == "RMSNorm of 5 modules; not SwiGLU, RoPE, the loss"


def test_an_op_that_never_computed_stops_the_run(with_liger):
    setup = with_liger(tiny_model())
    with pytest.raises(NotActive, match="RMSNorm, SwiGLU, RoPE never computed"):
        Liger().verify(setup)
