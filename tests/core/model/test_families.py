"""The families people ask for: two steps as plain transformers takes them, or refused by name before weights."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from core.model.load import load_model
from core.model.nf4 import dequantised, quantised_linears
from core.optimizations.fake_parallel import FakeParallel
from core.optimizations.liger import Liger
from planner.catalog.models import MODELS
from planner.errors import ConfigError
from planner.layer_policy import layer_engine_obstacle
from planner.model_spec import model_spec_from_config
from tests.core.model.tiny_models import (
    CPU,
    assert_same_gradients,
    loss_and_gradients,
    plain_loss_and_gradients,
    random_row,
    run_config,
    setting,
    tiny_model,
    tiny_setup,
)
from tests.planner.plans import codes, plan_of

GEMMA3 = {  # the first layer slides, and samples are longer; the second attends to the whole row
    "tie_word_embeddings": True, "sliding_window": 8, "sliding_window_pattern": 2, "query_pre_attn_scalar": 20,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}  # fmt: skip
TRAINED = {
    "Llama 3": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    "Qwen2.5": ("qwen2", {}),
    "Qwen3": ("qwen3", {}),
    "Mistral": ("mistral", {}),
    "Gemma": ("gemma", {"tie_word_embeddings": True}),
    "Gemma 3": ("gemma3_text", GEMMA3),
    "Gemma 3, with biases, a head of its own, samples within the window": (
        "gemma3_text",
        {**GEMMA3, "attention_bias": True, "tie_word_embeddings": False, "rope_scaling": None, "sliding_window": 64},
    ),
    "GLM-4-9B": ("glm", {"pad_token_id": None}),
    "GLM-4-0414": ("glm4", {"pad_token_id": None, "attention_bias": False}),
    "GLM-4-0414, with biases": ("glm4", {"pad_token_id": None, "attention_bias": True, "tie_word_embeddings": True}),
    "Phi-4": ("phi3", {"pad_token_id": None}),
    "Phi-4-mini, rotates part of a head": (
        "phi3",
        {"pad_token_id": None, "partial_rotary_factor": 0.7, "tie_word_embeddings": True, "sliding_window": 256},
    ),
    "SmolLM3, a layer without rotation": ("smollm3", {"no_rope_layers": [1, 0], "pad_token_id": None}),
}
REFUSED = {
    "Gemma 2": "gemma2", "Gemma 3n": "gemma3n_text",
    "InternLM3": "internlm3",
    "a family nobody knows": "madeup_lm",
}  # fmt: skip
EVERYTHING = (setting("gradient_checkpointing", save_attention=True), setting("fused_loss", chunk_tokens=9),
              setting("packing"))  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_two_steps_are_those_of_plain_transformers_in_float32(name):
    family, overrides = TRAINED[name]
    row = random_row((23, 9, 14))
    ours = tiny_setup(tiny_model(family, dtype=torch.float32, **overrides), *EVERYTHING)
    plain = tiny_model(family, attention="sdpa", dtype=torch.float32, **overrides)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in (ours.model, plain)]
    for _ in range(2):
        loss, got = loss_and_gradients(ours, row)
        want_loss, want = plain_loss_and_gradients(plain, row)
        assert abs(loss - want_loss) <= 1e-5 * want_loss
        assert_same_gradients(got, want, 2e-4)  # of the largest entry; the whole gradient is nearer:
        error = sum((got[n] - want[n]).norm() ** 2 for n in want) / sum(g.norm() ** 2 for g in want.values())
        assert error**0.5 <= 1e-5
        for optimizer in optimizers:
            optimizer.step()


WITHOUT_MEMORY = {"Phi-4": "microsoft/phi-4", "GLM-4-0414": "THUDM/GLM-4-9B-0414", "Gemma 3": "google/gemma-3-1b-it"}


@pytest.mark.parametrize("name", WITHOUT_MEMORY)
def test_the_planners_count_and_linears_are_those_of_the_class(name):
    config = MODELS[WITHOUT_MEMORY[name]]
    with torch.device("meta"):
        given = {key: value for key, value in config.items() if value is not None}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**given))
    spec = model_spec_from_config(name, config)
    assert spec.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    layer = model.get_decoder().layers[0]
    shapes = {n.rpartition(".")[2]: tuple(m.weight.shape) for n, m in layer.named_modules() if isinstance(m, nn.Linear)}
    assert shapes == {linear: (outputs, inputs) for linear, (inputs, outputs) in spec.linears.items()}


@pytest.mark.parametrize("name", WITHOUT_MEMORY)
def test_adapters_on_all_linears_get_the_gradients_of_plain_peft(name):
    family, overrides = TRAINED[name]
    row = random_row((23, 9, 14))
    setup = with_the_same_adapters(tiny_setup(tiny_model(family, **overrides), setting("lora", rank=3), *EVERYTHING))
    loss, got = loss_and_gradients(setup, row)
    plain = tiny_model(family, attention="sdpa", **overrides)
    targets = list(setup.spec.linears)
    theirs = get_peft_model(plain, LoraConfig(r=3, lora_alpha=_alpha(setup), target_modules=targets)).double()
    theirs.load_state_dict({n: p for n, p in setup.model.state_dict().items() if "lora_" in n}, strict=False)
    want_loss, want = plain_loss_and_gradients(theirs, row)
    assert abs(loss - want_loss) < 1e-9 * want_loss
    want = {n.removeprefix("base_model.model."): gradient for n, gradient in want.items()}
    assert len(want) == 2 * 2 * len(targets)
    assert_same_gradients(got, want, 1e-7)


@pytest.mark.parametrize("name", WITHOUT_MEMORY)
def test_qlora_keeps_every_linear_in_four_bits(name):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    family, overrides = TRAINED[name]
    shape = {"heads": 8, "kv_heads": 4, "head_dim": 8, "hidden_size": 64, "intermediate_size": 128, **overrides}
    model = tiny_model(family, dtype=torch.float32, **shape)
    setup = with_the_same_adapters(tiny_setup(model, setting("qlora", rank=3), *EVERYTHING))
    loss, got = loss_and_gradients(setup, random_row((23, 9, 14)))
    plain = tiny_model(family, dtype=torch.float32, **shape)
    linears = [module for module in plain.get_decoder().layers.modules() if type(module) is nn.Linear]
    quantised = quantised_linears(setup.causal_lm)
    assert len(quantised) == len(linears) == 2 * len(setup.spec.linears)
    assert all(isinstance(linear, bitsandbytes.nn.Linear4bit) for linear in quantised)
    for linear, four_bit in zip(linears, quantised):
        linear.weight.data = dequantised(four_bit)
    lora = with_the_same_adapters(tiny_setup(plain.requires_grad_(False), setting("lora", rank=3), *EVERYTHING))
    want_loss, want = loss_and_gradients(lora, random_row((23, 9, 14)))
    assert abs(loss - want_loss) < 1e-5 * want_loss
    assert_same_gradients(got, want, 2e-4)


@pytest.mark.parametrize("name", WITHOUT_MEMORY)
@pytest.mark.parametrize("optimization", ["fake_parallel", "liger"])
def test_what_knows_exact_classes_refuses_in_the_plan_and_at_the_build(name, optimization):
    family, overrides = TRAINED[name]
    spec = model_spec_from_config(name, MODELS[WITHOUT_MEMORY[name]])
    assert f"{optimization.replace('_', '-')}-family" in codes(plan_of({optimization: {}}, model=spec))
    assert f"this model is {family}" in (layer_engine_obstacle(run_config([setting("lora")]), spec) or "")
    setup = tiny_setup(tiny_model(family, **overrides))
    at_build = (
        partial(Liger().replace, setup, None) if optimization == "liger" else partial(FakeParallel().apply, setup)
    )
    with pytest.raises(ConfigError, match=r"cannot split|finds no RMSNorm"):
        at_build()


def with_the_same_adapters(setup):
    for name, parameter in setup.model.named_parameters():
        if ".lora_B." in name:  # zero at the start, which would hide what A gets
            parameter.data += torch.linspace(-0.1, 0.1, parameter.numel()).view_as(parameter).to(parameter.dtype)
    return setup


def _alpha(setup):
    adapted = next(module for module in setup.model.modules() if hasattr(module, "lora_alpha"))
    return adapted.lora_alpha["default"]


@pytest.mark.parametrize("name", REFUSED)
def test_other_families_are_refused_by_name_before_weights_are_looked_for(name, tmp_path):
    model_type = REFUSED[name]
    config = {"model_type": model_type, "architectures": ["X"], "hidden_size": 64, "num_attention_heads": 4,
              "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100,
              "auto_map": {"AutoConfig": "configuration.Evil"}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigError, match=rf"model_type '{model_type}' is not supported.*gemma, gemma3_text, glm, glm4, llama, mistral"
    ):
        load_model(run_config(model=str(tmp_path)), CPU)
