"""Adapters on mixtures of experts against plain transformers, whose experts run one by one: loss, gradients, routes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.qwen3_moe import modeling_qwen3_moe

from core.model.load import implementations
from core.model.nf4 import dequantised
from core.optimizations.fake_parallel import FakeParallel
from core.optimizations.liger import Liger
from core.optimizations.qlora import QLora
from planner.errors import ConfigError
from planner.model_spec import model_spec_from_config
from planner.types import OptimizationSetting
from tests.core.model.test_liger_ops import FUNCTIONS
from tests.core.model.tiny_models import (
    EXPERT_FAMILIES,
    assert_same_gradients,
    loss_and_gradients,
    plain_loss_and_gradients,
    random_row,
    setting,
    tiny_model,
    tiny_setup,
)

LENGTHS = (13, 1, 30, 9)
LORA = setting("lora", rank=4, alpha=8)
RUNS = {
    "plain": (),
    "checkpointing": (setting("gradient_checkpointing"),),
    "everything": (
        setting("packing"),
        setting("gradient_checkpointing", save_attention=True),
        setting("fused_loss", chunk_tokens=7),
    ),
}
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 2e-4


def experts_model(family: str, *, experts: str = "grouped_mm", **overrides: Any) -> PreTrainedModel:
    """Eight experts in each of three layers, two or three of them for a token, in float32."""
    shape: dict[str, Any] = {
        "heads": 8, "kv_heads": 2, "layers": 3, "dtype": torch.float32, "intermediate_size": 40, "num_experts": 8,
        "num_local_experts": 8, "num_experts_per_tok": 2 if family == "mixtral" else 3, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 28, "experts_implementation": experts,
    }  # fmt: skip
    model = tiny_model(family, **{**shape, **overrides})
    assert model.config._experts_implementation == experts
    return model


def fill_adapters(model: nn.Module) -> None:
    """Both matrices of every adapter, in the order of their names: a B of zeros would hide A's gradient."""
    generator = torch.Generator().manual_seed(5)
    for _, parameter in sorted((n, p) for n, p in model.named_parameters() if ".lora_" in n):
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)


def plain_adapters(family: str, **overrides: Any) -> nn.Module:
    """transformers and PEFT as they come: their attention, their logits, their experts one by one."""
    model = experts_model(family, experts="eager", attention="sdpa", **overrides).requires_grad_(False)
    spec = model_spec_from_config("tiny", model.config.to_dict())
    peft_model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=list(spec.linears)))
    fill_adapters(peft_model)
    return peft_model.get_base_model()


def descend(model: nn.Module, gradients: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in gradients:
                parameter -= 0.01 * gradients[name]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("family", EXPERT_FAMILIES)
def test_two_steps_have_the_loss_and_every_gradient_of_plain_transformers(family: str, run: str) -> None:
    plain = plain_adapters(family)
    setup = tiny_setup(experts_model(family), LORA, *RUNS[run])
    fill_adapters(setup.model)
    for seed in (1, 2):
        row = random_row(LENGTHS, seed=seed)
        want_loss, want = plain_loss_and_gradients(plain, row)
        loss, got = loss_and_gradients(setup, row)
        assert abs(loss - want_loss) < LOSS_TOLERANCE * want_loss
        assert all(".lora_" in name for name in want)
        assert_same_gradients(got, want, GRADIENT_TOLERANCE)
        descend(plain, want)
        descend(setup.causal_lm, got)


@pytest.mark.parametrize("family", EXPERT_FAMILIES)
def test_a_recompute_sends_every_token_to_the_experts_of_the_forward(family: str) -> None:
    setup = tiny_setup(experts_model(family), LORA, *RUNS["everything"])
    fill_adapters(setup.model)
    routes: list[list[Tensor]] = [[] for _ in setup.causal_lm.get_decoder().layers]
    for layer, seen in zip(setup.causal_lm.get_decoder().layers, routes):
        layer.mlp.gate.register_forward_hook(lambda _module, _inputs, out, seen=seen: seen.append(out[2]))
    loss_and_gradients(setup, random_row(LENGTHS))
    for seen in routes:
        forward, recompute = seen
        assert torch.equal(forward, recompute)
        assert len(forward.unique()) > 4  # not all to the same


def test_the_test_model_names_the_experts_that_a_run_pins() -> None:
    spec = model_spec_from_config("tiny", experts_model("qwen3_moe").config.to_dict())
    assert implementations(spec)["experts_implementation"] == experts_model("qwen3_moe").config._experts_implementation
    assert "experts_implementation" not in implementations(
        model_spec_from_config("tiny", tiny_model("qwen3").config.to_dict())
    )


@pytest.mark.parametrize("family", EXPERT_FAMILIES)
def test_router_and_experts_stay_as_they_are_and_hold_no_gradient(family: str) -> None:
    setup = tiny_setup(experts_model(family), LORA, *RUNS["everything"])
    loss_and_gradients(setup, random_row(LENGTHS))
    frozen = {n: p for n, p in setup.causal_lm.named_parameters() if ".lora_" not in n}
    assert {"gate_up_proj", "down_proj"} <= {name.rpartition(".")[2] for name in frozen}
    assert not [name for name, p in frozen.items() if p.requires_grad or p.grad is not None]


def test_four_bit_attention_beside_experts_in_full_width() -> None:
    """qlora quantises the linears, and trains like plain transformers over the weights that they are dequantised to."""
    pytest.importorskip("bitsandbytes")
    setup = tiny_setup(experts_model("qwen3_moe", head_dim=8), setting("qlora", rank=4, alpha=8), *RUNS["everything"])
    fill_adapters(setup.model)
    plain = plain_adapters("qwen3_moe", head_dim=8)
    for name, module in setup.causal_lm.named_modules():
        if isinstance(module, nn.Linear) and hasattr(module.weight, "quant_state"):
            plain.get_submodule(name).weight.data = dequantised(module)
    row = random_row(LENGTHS)
    want_loss, want = plain_loss_and_gradients(plain, row)
    loss, got = loss_and_gradients(setup, row)
    assert abs(loss - want_loss) < LOSS_TOLERANCE * want_loss
    assert_same_gradients(got, want, GRADIENT_TOLERANCE)
    untouched = {n: p for n, p in plain.named_parameters() if ".experts." in n or n.endswith("mlp.gate.weight")}
    assert len(untouched) == 3 * 3
    assert all(torch.equal(setup.causal_lm.get_parameter(name), parameter) for name, parameter in untouched.items())
    proof = dict(QLora().verify(setup).counts)
    assert (proof["linears"], proof["adapters"]) == (12, 12)


@pytest.mark.parametrize("others", [(), RUNS["everything"]], ids=["alone", "with the others"])
@pytest.mark.parametrize("family", EXPERT_FAMILIES)
def test_head_groups_keep_loss_and_every_gradient(family: str, others: tuple[OptimizationSetting, ...]) -> None:
    setup = tiny_setup(experts_model(family), LORA, *others, setting("fake_parallel", groups=2))
    fill_adapters(setup.model)
    row = random_row(LENGTHS)
    want_loss, want = plain_loss_and_gradients(plain_adapters(family), row)
    loss, got = loss_and_gradients(setup, row)
    assert abs(loss - want_loss) < LOSS_TOLERANCE * want_loss
    assert_same_gradients(got, want, GRADIENT_TOLERANCE)
    assert FakeParallel(groups=2).verify(setup).counts == (("modules", 3), ("groups", 2))


@pytest.mark.parametrize("family", EXPERT_FAMILIES)
def test_liger_replaces_norms_and_rope_and_no_experts(family: str) -> None:
    """The functions are torch's arithmetic behind Liger's signatures (test_liger_ops.py); their norm rounds later."""
    setup = tiny_setup(experts_model(family), LORA, *RUNS["everything"])
    fill_adapters(setup.model)
    liger = Liger(swiglu=False)
    liger.replace(setup, FUNCTIONS)
    row = random_row(LENGTHS)
    want_loss, want = plain_loss_and_gradients(plain_adapters(family), row)
    try:
        loss, got = loss_and_gradients(setup, row)
        evidence = liger.verify(setup)
    finally:
        setup.restore()
    assert abs(loss - want_loss) < LOSS_TOLERANCE * want_loss
    assert_same_gradients(got, want, 5e-4)
    norms = 13 if family == "qwen3_moe" else 7
    assert evidence.claim == f"RMSNorm of {norms} modules, RoPE of 3 modules; not SwiGLU, the loss"


def test_swiglu_of_experts_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no SwiGLU that it knows in Qwen3MoeForCausalLM"):
        Liger().replace(tiny_setup(experts_model("qwen3_moe"), LORA), FUNCTIONS)
    assert modeling_qwen3_moe.apply_rotary_pos_emb.__module__ == modeling_qwen3_moe.__name__  # nothing is left behind


@pytest.mark.parametrize("family", EXPERT_FAMILIES)
def test_float32_adapters_over_sixteen_bit_experts_train_with_and_without_autocast(family: str) -> None:
    row = random_row(LENGTHS)
    exact, _ = plain_loss_and_gradients(plain_adapters(family), row)
    for autocast in (False, True):
        setup = tiny_setup(
            experts_model(family, dtype=torch.bfloat16), LORA, *RUNS["everything"], adapter_dtype=torch.float32,
            dtype="bfloat16", autocast=autocast,
        )  # fmt: skip
        fill_adapters(setup.model)
        loss, got = loss_and_gradients(setup, row)
        assert abs(loss - exact) < 2e-2 * exact
        assert {gradient.dtype for gradient in got.values()} == {torch.float32}
        assert all(gradient.any() for gradient in got.values())
