"""Layer inputs in host memory: bit for bit the run without, in every combination, and nothing kept twice."""

from __future__ import annotations

import weakref

import pytest
import torch

from core.offload.host_slots import HostSlots
from core.optimizations import REGISTRY
from core.optimizations.evidence import NotActive
from core.parallel.layout import shard_row
from core.train.build import verify_setup
from core.train.forward import forward_loss
from tests.core.model.tiny_models import loss_and_gradients, random_row, setting, tiny_model, tiny_setup

ROW = random_row((26, 1, 14))
MODEL = {"layers": 4, "dtype": torch.float32}
CHECKPOINTING = setting("gradient_checkpointing")
COMBINATIONS = {
    "full": (CHECKPOINTING,),
    "lora": (setting("lora", rank=3), CHECKPOINTING),
    "lora with dropout": (setting("lora", rank=3, dropout=0.3), CHECKPOINTING),
    "kept attention": (setting("gradient_checkpointing", save_attention=True),),
    "a layer that is not recomputed": (setting("gradient_checkpointing", kept_layers=1),),
    "kept attention, and a layer that is not recomputed": (
        setting("gradient_checkpointing", save_attention=True, kept_layers=1),
    ),
    "head groups": (CHECKPOINTING, setting("fake_parallel", groups=3), setting("fused_loss")),
}


def combination_kept_layers(combination):
    return next(s.as_dict().get("kept_layers", 0) for s in combination if s.name == "gradient_checkpointing")


def two_steps(*optimizations):
    """Losses and gradients of two micro-batches in a row, of unequal length."""
    torch.manual_seed(1)
    setup = tiny_setup(tiny_model(**MODEL), *optimizations)
    return setup, [loss_and_gradients(setup, row) for row in (ROW, random_row((9, 50), seed=3))]


@pytest.mark.parametrize("combination", COMBINATIONS.values(), ids=COMBINATIONS)
@pytest.mark.parametrize("kept_layers", [1, 3, 9])
def test_offloaded_runs_are_bit_for_bit_the_others(combination, kept_layers):
    _, want = two_steps(*combination)
    setup, got = two_steps(*combination, setting("checkpoint_offload", kept_layers=kept_layers))
    for (loss, gradients), (want_loss, want_gradients) in zip(got, want):
        assert loss == want_loss
        assert gradients.keys() == want_gradients.keys()
        assert all(torch.equal(gradients[name], want_gradients[name]) for name in want_gradients)
    inputs = setup.layer_inputs
    num_recomputed = 4 - combination_kept_layers(combination)
    outputs = setup.keeper.host if setup.keeper else None
    assert (outputs is not None) == (setup.keeper is not None and kept_layers < num_recomputed)
    for tensors in (inputs, outputs) if outputs else (inputs,):
        assert tensors.num_out == tensors.num_in == 2 * max(0, num_recomputed - kept_layers)
        assert not tensors._kept
        assert not tensors._arriving


def test_a_forward_without_backward_and_an_evaluation_between_change_nothing():
    setup, steps = two_steps(CHECKPOINTING, setting("checkpoint_offload"))
    forward_loss(setup, shard_row(random_row((40,)), setup.mesh, setup.device))
    setup.model.eval()
    with torch.no_grad():
        forward_loss(setup, shard_row(random_row((17, 3)), setup.mesh, setup.device))
    setup.model.train()
    with torch.no_grad():
        forward_loss(setup, shard_row(random_row((17, 3)), setup.mesh, setup.device))
    loss, gradients = loss_and_gradients(setup, ROW)
    assert loss == steps[0][0]
    assert all(torch.equal(gradients[name], gradient) for name, gradient in steps[0][1].items())


def test_no_layer_input_is_saved_by_the_graph():
    setup = tiny_setup(tiny_model(**MODEL), CHECKPOINTING, setting("checkpoint_offload"))
    seen = []
    for layer in setup.causal_lm.get_decoder().layers:
        layer.register_forward_pre_hook(lambda _module, inputs: seen.append(weakref.ref(inputs[0])))
    loss = forward_loss(setup, shard_row(ROW, setup.mesh, setup.device))
    alive = [reference() is not None for reference in seen]
    assert alive[:3] == [False, False, False]  # the last one is kept
    loss.backward()


def test_the_proof_tells_the_layers_and_can_fail():
    setup, _ = two_steps(CHECKPOINTING, setting("checkpoint_offload"))
    claims = [evidence.claim for evidence in verify_setup(setup, REGISTRY)]
    assert claims[1].startswith("inputs of 3 of 4 layers waited in host memory")
    setup.layer_inputs.num_in -= 1
    with pytest.raises(NotActive, match="did not come back"):
        verify_setup(setup, REGISTRY)


def test_the_proof_tells_attention_outputs_too():
    setup, _ = two_steps(*COMBINATIONS["kept attention"], setting("checkpoint_offload", kept_layers=1))
    claims = [evidence.claim for evidence in verify_setup(setup, REGISTRY)]
    assert claims[1].startswith("inputs and attention outputs of 3 of 4 layers waited in host memory")
    setup.keeper.host.num_in = 0
    with pytest.raises(NotActive, match="did not come back"):
        verify_setup(setup, REGISTRY)


def test_patches_are_taken_back():
    setup = tiny_setup(tiny_model(**MODEL), CHECKPOINTING, setting("checkpoint_offload"))
    inputs = setup.layer_inputs
    loss_and_gradients(setup, ROW)
    moved = inputs.num_out
    assert moved > 0
    setup.restore()
    setup.causal_lm.gradient_checkpointing_enable()
    loss_and_gradients(setup, ROW)
    assert inputs.num_out == moved


def test_a_slot_holds_what_fits_and_no_more():
    slots = HostSlots(2, 24, device=torch.device("cpu"))
    assert slots.num_bytes == 48
    x = torch.arange(6.0).view(1, 3, 2)
    slots.view(1, x).copy_(x)
    assert torch.equal(slots.view(1, x), x)
    assert slots.view(0, x.half()).shape == x.shape
    turned = x.transpose(1, 2)
    slots.view(0, turned).copy_(turned)
    assert torch.equal(slots.view(0, turned), turned)
    assert slots.view(0, turned).stride() == turned.stride()  # a copy of one piece, as it lies
    with pytest.raises(ValueError, match="28 bytes does not fit a slot of 24"):
        slots.view(0, torch.zeros(7))
