"""Gemma 3 with pictures: its text model trains as plain transformers does, and what is saved fits what people have."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
)

from core.attention.register import window_of
from core.infer import Source, load, max_positions
from core.model.load import load_model
from core.optimizations import REGISTRY
from core.parallel.mesh import Mesh
from core.rehearse.random_model import random_model
from core.train.build import build_setup
from core.train.saved_state import load_weights, save_weights
from planner.catalog.models import MODELS
from planner.errors import ConfigError
from planner.model_spec import model_spec_from_config
from planner.types import ParallelDegrees
from tests.core.model.tiny_models import (
    CPU,
    VOCABULARY,
    assert_same_gradients,
    loss_and_gradients,
    plain_loss_and_gradients,
    random_row,
    run_config,
    setting,
)

TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 12, "sliding_window_pattern": 2,
    "max_position_embeddings": 256, "query_pre_attn_scalar": 20, "bos_token_id": 0, "eos_token_id": 1,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}  # fmt: skip
VISION = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56,
    "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
ROW = random_row((23, 9, 14))
EVERYTHING = (setting("gradient_checkpointing", save_attention=True), setting("fused_loss", chunk_tokens=9),
              setting("packing"))  # fmt: skip
LORA = setting("lora", rank=3)


@pytest.fixture
def folder(tmp_path):
    """A checkpoint as it is published: of the whole model, in names of older transformers."""
    torch.manual_seed(0)
    config = Gemma3Config(text_config=Gemma3TextConfig(**TEXT), vision_config=VISION, mm_tokens_per_image=4)
    model = Gemma3ForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))
    path = tmp_path / "whole"
    model.save_pretrained(path)
    assert any(name.startswith("language_model.model.layers") for name in load_file(path / "model.safetensors"))
    return path


@pytest.mark.parametrize("size", ["270m", "1b-it", "4b-it", "12b-it", "27b-it"])
def test_published_shapes_have_the_parameters_linears_and_windows_of_their_classes(size):
    """Of the text model; the whole of 4B has 4,300,079,472."""
    name = f"google/gemma-3-{size}"
    config, spec = dict(MODELS[name]), model_spec_from_config(name, MODELS[name])
    text = {key: value for key, value in config.get("text_config", config).items() if value is not None}
    with torch.device("meta"):
        model = Gemma3ForCausalLM(Gemma3TextConfig(**text))
        if size == "4b-it":
            whole = Gemma3Config(text_config=text, vision_config=config["vision_config"])
            assert sum(p.numel() for p in Gemma3ForConditionalGeneration(whole).parameters()) == 4_300_079_472
    assert spec.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    shapes = {
        module_name.rpartition(".")[2]: (module.in_features, module.out_features)
        for module_name, module in model.model.layers[0].named_modules()
        if isinstance(module, nn.Linear)
    }
    assert shapes == spec.linears
    windows = [window_of(layer.self_attn) for layer in model.model.layers]
    assert windows.count(spec.sliding_window) == spec.sliding_layers
    assert windows.count(None) == spec.num_layers // 6
    ropes = model.config.rope_parameters
    assert (ropes["full_attention"]["rope_type"] != "default") == spec.rope_is_stretched
    assert (ropes["full_attention"]["rope_theta"], ropes["sliding_attention"]["rope_theta"]) == (1e6, 1e4)


def trained(folder, *optimizations):
    config = run_config((*optimizations, *EVERYTHING), model=str(folder))
    model, spec = load_model(config, CPU)
    mesh = Mesh(degrees=ParallelDegrees(), rank=0)
    return build_setup(config, spec, model, mesh, CPU, lambda *_: None, REGISTRY)


def test_the_tower_is_no_part_of_a_run(folder):
    for optimizations in ((), (LORA,)):
        model, spec = load_model(run_config(optimizations, model=str(folder)), CPU)
        assert (spec.family, spec.tower_parameters) == ("gemma3_text", 0)
        assert spec.num_parameters == sum(parameter.numel() for parameter in model.parameters())
        assert not any("vision" in name or "projector" in name for name, _ in model.named_modules())


def test_whole_training_is_that_of_plain_transformers_and_saves_a_text_model(folder, tmp_path):
    setup = trained(folder)
    plain = Gemma3ForConditionalGeneration.from_pretrained(folder, attn_implementation="sdpa")
    loss, got = loss_and_gradients(setup, ROW)
    want_loss, want = plain_loss_and_gradients(plain, ROW)
    assert abs(loss - want_loss) <= 1e-5 * want_loss
    want = {name.replace("model.language_model", "model"): gradient for name, gradient in want.items()}
    assert_same_gradients(got, want, 2e-4)
    torch.optim.SGD(setup.model.parameters(), lr=1e-2).step()
    save_weights(setup.model, tmp_path / "step")
    read, found = AutoModelForCausalLM.from_pretrained(tmp_path / "step", output_loading_info=True)
    assert type(read) is Gemma3ForCausalLM
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    for name, parameter in setup.causal_lm.named_parameters():
        assert torch.equal(read.get_parameter(name), parameter), name
    again = trained(folder)  # as resume does
    load_weights(again.model, tmp_path / "step")
    assert loss_and_gradients(again, ROW)[0] == loss_and_gradients(setup, ROW)[0]
    assert trained(tmp_path / "step").spec == setup.spec.__class__(**_fields(setup.spec, name=str(tmp_path / "step")))


def _fields(spec, **changes):
    return {**{name: getattr(spec, name) for name in spec.__slots__}, **changes}


def test_an_adapter_is_that_of_plain_peft_on_the_whole_model(folder, tmp_path):
    setup = trained(folder, LORA)
    for name, parameter in setup.model.named_parameters():
        if ".lora_B." in name:
            parameter.data += torch.linspace(-0.1, 0.1, parameter.numel()).view_as(parameter)
    loss, got = loss_and_gradients(setup, ROW)
    save_weights(setup.model, tmp_path / "step")
    whole = Gemma3ForConditionalGeneration.from_pretrained(folder, attn_implementation="sdpa")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # PEFT's of missing adapters
        theirs = PeftModel.from_pretrained(whole, tmp_path / "step", is_trainable=True)
    assert not any("lora" in name and "vision" in name for name, _ in theirs.named_parameters())
    want_loss, want = plain_loss_and_gradients(theirs, ROW)
    assert abs(loss - want_loss) <= 1e-5 * want_loss
    want = {name.removeprefix("base_model.model."): gradient for name, gradient in want.items()}
    assert len(want) == 3 * 2 * 7
    assert_same_gradients(got, want, 2e-4)
    again = trained(folder, LORA)
    load_weights(again.model, tmp_path / "step")
    assert loss_and_gradients(again, ROW)[0] == loss


def test_an_answer_comes_from_the_whole_model_with_the_adapter(folder, tmp_path, monkeypatch):
    setup = trained(folder, LORA)
    save_weights(setup.model, tmp_path / "step")
    monkeypatch.setattr("core.infer.AutoTokenizer.from_pretrained", lambda _: None)
    model, _ = load(Source(model=str(folder), adapter=tmp_path / "step", dtype="float32"), CPU)
    assert isinstance(model.get_base_model(), Gemma3ForConditionalGeneration)
    assert max_positions(model.config) == 256


@pytest.mark.parametrize(
    "lost", ["language_model.model.layers.1.mlp.up_proj.weight", "language_model.model.norm.weight"]
)
def test_a_missing_weight_is_an_error(folder, lost):
    tensors = load_file(folder / "model.safetensors")
    del tensors[lost]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=f"1 are missing.*{lost.rpartition('model.')[2]}"):
        load_model(run_config(model=str(folder)), CPU)


def test_a_weight_that_is_left_over_is_an_error(folder):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["text_config"] |= {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    file.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"0 are missing.* 13 of the layers are left over"):
        load_model(run_config(model=str(folder)), CPU)


def test_a_rehearsal_builds_the_text_model_alone(folder):
    config = json.loads((folder / "config.json").read_text())
    model, spec = random_model(run_config((LORA,)), config, CPU)
    loaded, _ = load_model(run_config((LORA,), model=str(folder)), CPU)
    assert sum(parameter.numel() for parameter in model.parameters()) == spec.num_parameters
    theirs = dict(loaded.get_decoder().named_buffers())
    for name, buffer in model.get_decoder().named_buffers():
        assert torch.equal(buffer, theirs[name]), name
    assert {name.partition("_inv_freq")[0] for name, _ in model.get_decoder().rotary_emb.named_buffers()} == {
        "full_attention", "full_attention_original", "sliding_attention", "sliding_attention_original"
    }  # fmt: skip
