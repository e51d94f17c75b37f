"""QLoRA on the CPU: the gradients of LoRA on the dequantised base, real bytes saved, proof."""

from __future__ import annotations

import pytest
import torch

from core.model.nf4 import dequantised, quantise_linears, quantised_linears
from core.optimizations import REGISTRY
from core.optimizations.evidence import NotActive
from core.train.build import verify_setup
from planner.parts.nf4 import nf4_linear_bytes
from tests.core.model.tiny_models import (
    CPU,
    FAMILIES,
    assert_same_gradients,
    loss_and_gradients,
    random_row,
    setting,
    tiny_model,
    tiny_setup,
)

bitsandbytes = pytest.importorskip("bitsandbytes")
ROW = random_row((26, 1, 14))
# linears of 64 and 128 columns: whole blocks of 64 weights
SHAPE = {"heads": 8, "kv_heads": 4, "head_dim": 8, "hidden_size": 64, "intermediate_size": 128}
CHECKPOINTING = setting("gradient_checkpointing", save_attention=True)


def with_the_same_adapters(setup):
    for name, parameter in setup.model.named_parameters():
        if ".lora_B." in name:  # zero at the start, which would hide what A gets
            parameter.data += torch.linspace(-0.1, 0.1, parameter.numel()).view_as(parameter).to(parameter.dtype)
    return setup


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("others", [(), (CHECKPOINTING, setting("fused_loss"))], ids=["", "checkpointing"])
@pytest.mark.parametrize("double_quant", [False, True])
def test_gradients_are_those_of_lora_on_the_dequantised_base(family, others, double_quant):
    model = tiny_model(family, dtype=torch.float32, **SHAPE)
    qlora = with_the_same_adapters(tiny_setup(model, setting("qlora", rank=3, double_quant=double_quant), *others))
    loss, got = loss_and_gradients(qlora, ROW)

    plain = tiny_model(family, dtype=torch.float32, **SHAPE)
    for linear, quantised in zip(
        [m for m in plain.get_decoder().layers.modules() if type(m) is torch.nn.Linear],
        quantised_linears(qlora.causal_lm),
    ):
        linear.weight.data = dequantised(quantised)
    lora = with_the_same_adapters(tiny_setup(plain.requires_grad_(False), setting("lora", rank=3), *others))
    want_loss, want = loss_and_gradients(lora, ROW)
    assert abs(loss - want_loss) < 1e-5 * want_loss
    assert all("lora_" in name for name in got)
    assert_same_gradients(got, want, 2e-4)


@pytest.mark.parametrize("double_quant", [False, True])
def test_weights_take_the_bytes_that_the_plan_counts(double_quant):
    model = tiny_model(dtype=torch.float32, **SHAPE)
    quantise_linears(model.get_decoder().layers, double_quant=double_quant, dtype=torch.float32, device=CPU)
    assert len(quantised_linears(model)) == 14
    for linear in quantised_linears(model):
        state = linear.weight.quant_state
        held = linear.weight.numel() + state.absmax.numel() * state.absmax.element_size()
        held += state.state2.absmax.numel() * 4 if double_quant else 0
        assert held == nf4_linear_bytes(linear.in_features * linear.out_features, double_quant=double_quant)


def test_head_embeddings_and_norms_stay_as_they_are_and_a_second_pass_changes_nothing():
    model = tiny_model(dtype=torch.float32, **SHAPE)
    layers = model.get_decoder().layers
    quantise_linears(layers, double_quant=True, dtype=torch.float32, device=CPU)
    first = quantised_linears(model)[0].weight.data.clone()
    assert type(model.lm_head) is torch.nn.Linear
    quantise_linears(layers, double_quant=True, dtype=torch.float32, device=CPU)
    assert len(quantised_linears(model)) == 14
    assert torch.equal(quantised_linears(model)[0].weight.data, first)


def test_the_proof_names_nf4_linears_and_can_fail():
    setup = tiny_setup(tiny_model(dtype=torch.float32, **SHAPE), setting("qlora", rank=3, double_quant=True))
    loss_and_gradients(setup, ROW)
    [evidence] = verify_setup(setup, REGISTRY)
    assert evidence.claim.startswith("14 decoder linears are NF4 (")
    assert "gradients reached both matrices of 14 adapters" in evidence.claim
    layer = setup.causal_lm.get_decoder().layers[0].mlp
    layer.down_proj.base_layer = torch.nn.Linear(128, 64)
    with pytest.raises(NotActive, match=r"13 of 14 decoder linears are NF4|base parameters are not frozen"):
        verify_setup(setup, REGISTRY)


def test_sixteen_bit_compute_under_autocast_trains_float32_adapters():
    setup = tiny_setup(
        tiny_model(dtype=torch.bfloat16, **SHAPE), setting("qlora", rank=3), CHECKPOINTING, dtype="bfloat16",
        autocast=True, adapter_dtype=torch.float32,
    )  # fmt: skip
    loss, got = loss_and_gradients(setup, ROW)
    assert torch.isfinite(loss)
    assert {gradient.dtype for gradient in got.values()} == {torch.float32}
    assert all(torch.isfinite(gradient).all() for gradient in got.values())


@pytest.mark.parametrize("double_quant", [True, False])
def test_the_layer_engine_attends_in_head_groups_of_four_bit_weights(double_quant):
    qlora = setting("qlora", rank=3, double_quant=double_quant)
    shape = {**SHAPE, "heads": 8, "kv_heads": 4}
    runs = (({"engine": "module"}, ()), ({"engine": "layer"}, (setting("fake_parallel", groups=4),)))
    (want_loss, want), (loss, got) = (
        loss_and_gradients(
            with_the_same_adapters(tiny_setup(tiny_model(dtype=torch.float32, **shape), qlora, *others, **engine)), ROW
        )
        for engine, others in runs
    )
    torch.testing.assert_close(loss, want_loss, rtol=1e-6, atol=0)
    assert_same_gradients(got, want, 2e-4)


def test_head_groups_on_four_bit_weights_are_refused_of_modules_in_the_plan_and_at_the_build():
    from planner.errors import ConfigError
    from tests.planner.plans import codes, plan_of

    both = {"qlora": {}, "fake_parallel": {"groups": 2}}
    assert "qlora-fake-parallel" in codes(plan_of(both, engine="module"))
    assert "qlora-fake-parallel" not in codes(plan_of(both, engine="layer"))
    with pytest.raises(ConfigError, match="cannot cut q_proj, a Linear4bit"):
        tiny_setup(
            tiny_model(dtype=torch.float32, **SHAPE), setting("qlora", rank=3), setting("fake_parallel", groups=2)
        )
