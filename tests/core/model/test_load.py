from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from core.infer import max_positions
from core.model.load import load_model
from planner.errors import ConfigError
from planner.model_spec import model_spec_from_config
from tests.core.model.tiny_models import CPU, run_config, setting, tiny_model


@pytest.fixture
def folder(tmp_path):
    def save(family="llama", **overrides):
        tiny_model(family, dtype=torch.float32, **overrides).save_pretrained(tmp_path)
        return str(tmp_path)

    return save


def test_weights_dtype_shape_and_training_mode(folder):
    path = folder("qwen3", head_dim=8)
    model, spec = load_model(run_config(model=path, dtype="bfloat16"), CPU)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.config._attn_implementation == "longfit"
    assert not model.config.use_cache
    assert model.training
    assert (spec.family, spec.num_attention_heads, spec.num_kv_heads, spec.head_dim) == ("qwen3", 9, 3, 8)
    assert spec.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    saved = tiny_model("qwen3", head_dim=8, dtype=torch.float32).state_dict()
    assert all(torch.equal(value, saved[name].bfloat16()) for name, value in model.state_dict().items())


def test_the_base_is_frozen_for_lora_and_trainable_for_full(folder):
    path = folder()
    frozen, _ = load_model(run_config([setting("lora")], model=path), CPU)
    trainable, _ = load_model(run_config(model=path), CPU)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert all(parameter.requires_grad for parameter in trainable.parameters())


@pytest.mark.parametrize(
    ("scaling", "seq_len"),
    [
        ({"type": "linear", "factor": 2.0}, None),
        ({"type": "yarn", "factor": 4.0}, None),
        ({"type": "dynamic", "factor": 2.0}, 500),
    ],
    ids=["linear", "yarn", "dynamic"],
)
def test_rope_scaling_gives_the_frequencies_of_transformers(folder, scaling, seq_len):
    path = folder()
    model, _ = load_model(run_config(model=path, max_length=500, rope_scaling=tuple(scaling.items())), CPU)
    rope = model.get_decoder().rotary_emb
    want, attention_scaling = ROPE_INIT_FUNCTIONS[scaling["type"]](model.config, CPU, seq_len=seq_len)
    plain = tiny_model().get_decoder().rotary_emb.inv_freq
    assert torch.equal(rope.inv_freq, want)
    assert not torch.equal(rope.inv_freq, plain)
    assert rope.attention_scaling == attention_scaling
    assert model.config.rope_parameters["rope_theta"] == 10000.0
    # what a checkpoint of this model will say, read back by stock transformers
    assert model.config.to_dict()["rope_parameters"]["rope_type"] == scaling["type"]


def test_dynamic_rope_does_not_depend_on_which_part_of_a_row_a_rank_holds(folder):
    path = folder()
    scaling = (("type", "dynamic"), ("factor", 2.0))
    model, _ = load_model(run_config(model=path, max_length=500, rope_scaling=scaling), CPU)
    rope, x = model.get_decoder().rotary_emb, torch.zeros(1, 4, 6)
    early, late = torch.arange(4)[None], torch.arange(396, 400)[None]
    before = rope(x, early)[0]
    rope(x, late)
    assert torch.equal(rope(x, early)[0], before)


LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0], "long_factor": [1.0, 4.0, 9.0], "rope_theta": 500.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize("max_length", [64, 65], ids=["short factors", "long factors"])
def test_longrope_is_what_transformers_takes_for_a_row_of_max_length_in_every_part_of_it(folder, max_length):
    given = {"pad_token_id": None, "rope_parameters": LONGROPE, "original_max_position_embeddings": 64}
    path = folder("phi3", **given)
    model, spec = load_model(run_config(model=path, max_length=max_length), CPU)
    plain = tiny_model("phi3", dtype=torch.float32, **given)
    assert (spec.max_position_embeddings, spec.positions_before_scaling) == (256, 64)
    assert plain.config.rope_parameters["rope_type"] == "longrope"
    rope, theirs, x = model.get_decoder().rotary_emb, plain.get_decoder().rotary_emb, torch.zeros(1, 1, 6)
    whole = torch.arange(max_length)[None]
    want_cos, want_sin = theirs(x, whole)
    for part in (slice(40, max_length), slice(0, 40)):  # a rank's, or a short sample
        cos, sin = rope(x, whole[:, part])
        assert torch.equal(cos, want_cos[:, part])
        assert torch.equal(sin, want_sin[:, part])
    differs = not torch.equal(theirs(x, whole[:, :40])[0], want_cos[:, :40])
    assert differs == (max_length > 64)  # what is avoided


def test_a_preset_cannot_scale_the_rope_of_phi3(folder):
    path = folder("phi3", pad_token_id=None)
    with pytest.raises(ConfigError, match="a model of type phi3 takes none"):
        load_model(run_config(model=path, rope_scaling=(("type", "yarn"), ("factor", 4.0))), CPU)


GEMMA3 = {"sliding_window": 16, "sliding_window_pattern": 2, "tie_word_embeddings": True}


@pytest.mark.parametrize(
    ("scaling", "reached"),
    [
        ({"type": "linear", "factor": 2.0}, 512),
        ({"type": "yarn", "factor": 4.0}, 1024),
        ({"type": "dynamic", "factor": 2.0}, 256),
    ],
    ids=["linear", "yarn", "dynamic"],
)
def test_rope_scaling_of_gemma_3_is_that_of_the_layers_that_attend_to_the_whole_row(folder, tmp_path, scaling, reached):
    path = folder("gemma3_text", **GEMMA3)
    model, spec = load_model(run_config(model=path, max_length=500, rope_scaling=tuple(scaling.items())), CPU)
    rope = model.get_decoder().rotary_emb
    want, attention_scaling = ROPE_INIT_FUNCTIONS[scaling["type"]](
        model.config, CPU, seq_len=500, layer_type="full_attention"
    )
    plain = tiny_model("gemma3_text", **GEMMA3).get_decoder().rotary_emb
    assert torch.equal(rope.full_attention_inv_freq, want)
    assert not torch.equal(want, plain.full_attention_inv_freq)
    assert rope.full_attention_attention_scaling == attention_scaling
    assert torch.equal(rope.sliding_attention_inv_freq, plain.sliding_attention_inv_freq)
    assert not spec.rope_is_stretched
    # what stock transformers reads from a checkpoint of this model: the same for a row of this length
    model.save_pretrained(tmp_path / "step")
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "step")
    assert read.config.max_position_embeddings == reached
    assert max_positions(read.config) == max(reached, 512)
    whole = torch.arange(500)[None]
    for layer_type in ("full_attention", "sliding_attention"):
        theirs, part = (emb(torch.zeros(1), whole, layer_type) for emb in (read.get_decoder().rotary_emb, rope))
        assert torch.equal(theirs[0], part[0])
        assert torch.equal(rope(torch.zeros(1), whole[:, :4], layer_type)[0], part[0][:, :4])  # as another rank does
    again = model_spec_from_config("step", read.config.to_dict())
    assert (again.rope_is_stretched, again.max_position_embeddings) == (True, reached)


def test_a_preset_cannot_scale_the_rope_of_gemma_3_where_it_came_stretched(folder):
    path = folder("gemma3_text", **GEMMA3, rope_scaling={"rope_type": "linear", "factor": 8.0})
    model, spec = load_model(run_config(model=path), CPU)
    assert spec.rope_is_stretched
    plain = tiny_model("gemma3_text", **GEMMA3).get_decoder().rotary_emb.full_attention_inv_freq
    assert torch.equal(model.get_decoder().rotary_emb.full_attention_inv_freq, plain / 8)
    with pytest.raises(ConfigError, match="does not say from how many positions"):
        load_model(run_config(model=path, rope_scaling=(("type", "linear"), ("factor", 16.0))), CPU)


def test_yarn_starts_from_the_length_before_an_earlier_scaling(folder):
    path = folder(
        rope_parameters={
            "rope_type": "yarn",
            "factor": 2.0,
            "rope_theta": 500.0,
            "original_max_position_embeddings": 64,
        }
    )
    model, _ = load_model(run_config(model=path, rope_scaling=(("type", "yarn"), ("factor", 8.0))), CPU)
    assert model.config.rope_parameters == {
        "rope_type": "yarn", "factor": 8.0, "rope_theta": 500.0, "original_max_position_embeddings": 64,
    }  # fmt: skip


def test_missing_folder_is_bad_input():
    with pytest.raises(ConfigError, match=r"'/no/such/folder' could not be loaded. There is no such folder"):
        load_model(run_config(model="/no/such/folder"), CPU)


MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "num_local_experts": 4,
    "num_experts_per_tok": 2,
}  # fmt: skip
ADAPTERS = (setting("lora", rank=4),)


def test_full_training_of_experts_is_refused_before_weights_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    with pytest.raises(ConfigError, match="4 experts in 2 of 2 layers: full fine-tuning of it is planned only"):
        load_model(run_config(model=str(tmp_path)), CPU)


@pytest.mark.parametrize(("key", "value"), [("output_router_logits", True), ("router_jitter_noise", 0.01)])
def test_what_a_router_would_train_with_is_refused_by_name(tmp_path, key, value):
    (tmp_path / "config.json").write_text(json.dumps({**MIXTRAL, key: value}))
    with pytest.raises(ConfigError, match=key):
        load_model(run_config(ADAPTERS, model=str(tmp_path)), CPU)


def test_experts_run_by_grouped_products(tmp_path):
    from core.rehearse.random_model import random_model

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    saved = tiny_model("qwen3_moe", heads=8, kv_heads=2, dtype=torch.float32, **experts)
    saved.save_pretrained(tmp_path)
    config = run_config(ADAPTERS, model=str(tmp_path))
    loaded, spec = load_model(config, CPU)
    drawn, _ = random_model(config, json.loads((tmp_path / "config.json").read_text()), CPU)
    assert spec.experts is not None
    for model in (loaded, drawn):
        assert model.config._experts_implementation == "grouped_mm"
        assert not any(parameter.requires_grad for parameter in model.parameters())
    for name, parameter in saved.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter), name


def test_a_folder_without_weights_is_bad_input(folder, tmp_path):
    path = folder()
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="safetensors"):
        load_model(run_config(model=path), CPU)


def test_attention_dropout_is_refused(folder):
    path = folder(attention_dropout=0.1)
    with pytest.raises(ConfigError, match=r"attention_dropout 0\.1"):
        load_model(run_config(model=path), CPU)
