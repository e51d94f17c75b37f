"""Attention outputs kept from forward to backward: the same numbers, without attending again."""

from __future__ import annotations

import pytest
import torch

from core.attention.kept import AttentionKeeper
from core.attention.kernel import CpuFlashKernel
from core.optimizations import REGISTRY
from core.optimizations.evidence import NotActive
from core.parallel.layout import shard_row
from core.train.build import verify_setup
from core.train.forward import forward_loss
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
CHECKPOINTING = setting("gradient_checkpointing")
KEEPING = setting("gradient_checkpointing", save_attention=True)
OTHERS = {
    "alone": (),
    "lora": (setting("lora", rank=3),),
    "head groups": (setting("fake_parallel", groups=3),),
    "everything": (
        setting("lora", rank=3), setting("fake_parallel", groups=3), setting("packing"), setting("fused_loss"),
    ),
}  # fmt: skip


class CountingKernel(CpuFlashKernel):
    def __init__(self):
        self.num_forwards = 0

    def forward(self, *args, **kwargs):
        self.num_forwards += 1
        return super().forward(*args, **kwargs)


def counted(*optimizations, row=ROW, **model):
    setup = tiny_setup(tiny_model(**model), *optimizations)
    setup.attention.kernel = CountingKernel()
    return setup, *loss_and_gradients(setup, row)


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_gradients_are_bit_for_bit_those_of_plain_checkpointing(others):
    _, loss, got = counted(*others, KEEPING)
    _, want_loss, want = counted(*others, CHECKPOINTING)
    assert loss == want_loss
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_a_layer_that_is_not_recomputed_changes_no_bit_and_attends_once(others):
    setup, loss, got = counted(*others, setting("gradient_checkpointing", save_attention=True, kept_layers=1))
    plain, want_loss, want = counted(*others, KEEPING)
    assert loss == want_loss
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert setup.attention.kernel.num_forwards == plain.attention.kernel.num_forwards


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_its_gradients(family):
    _, loss, got = counted(KEEPING, family=family)
    _, want_loss, want = counted(family=family)
    assert abs(loss - want_loss) < 1e-9
    assert_same_gradients(got, want, 1e-8)


@pytest.mark.parametrize(("others", "groups"), [((), 1), ((setting("fake_parallel", groups=3),), 3)])
def test_attention_runs_forward_once_instead_of_again_and_again(others, groups):
    num_layers, num_segments = 2, 3
    once = num_layers * num_segments * groups
    assert counted(*others, KEEPING)[0].attention.kernel.num_forwards == once
    again = 3 if groups > 1 else 2  # forward, recompute of the layer, and the groups' own backward
    assert counted(*others, CHECKPOINTING)[0].attention.kernel.num_forwards == again * once


@pytest.mark.parametrize("others", [(), (setting("fake_parallel", groups=3),)])
@pytest.mark.parametrize("kept_layers", [0, 1])
def test_nothing_is_left_after_the_backward(others, kept_layers):
    setup, _, _ = counted(*others, setting("gradient_checkpointing", save_attention=True, kept_layers=kept_layers))
    assert setup.keeper._layers
    assert all(cell._pair is None for layer in setup.keeper._layers for cell in layer)


def test_a_forward_without_backward_and_an_evaluation_between_change_nothing():
    setup, want_loss, want = counted(KEEPING)
    forward_loss(setup, shard_row(random_row((40,)), setup.mesh, setup.device))
    with torch.no_grad():
        forward_loss(setup, shard_row(random_row((17, 3)), setup.mesh, setup.device))
    loss, got = loss_and_gradients(setup, ROW)
    assert loss == want_loss
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_the_proof_counts_kept_outputs_and_can_fail():
    setup, _, _ = counted(KEEPING)
    [evidence] = verify_setup(setup, REGISTRY)
    assert evidence.claim == "2 of 2 decoder layers recompute in backward, 2 attention outputs were kept for it"
    setup.keeper = AttentionKeeper(2)
    with pytest.raises(NotActive, match="no recompute took a kept output"):
        verify_setup(setup, REGISTRY)
