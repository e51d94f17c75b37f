"""From config.json to a shape with the exact number of parameters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.errors import ConfigError
from planner.model_spec import FAMILIES, model_spec_from_config
from planner.types import ModelSpec

DATA = Path(__file__).parent.parent / "data"
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip


def spec(**changes: Any):
    return model_spec_from_config("test", {**LLAMA, **changes})


@pytest.mark.parametrize("name", ["k10_cfg_tied_small", "k10_cfg_headdim_explicit"])
def test_parameters_are_counted_exactly(name: str) -> None:
    config = json.loads((DATA / f"{name}.json").read_text())
    assert model_spec_from_config(name, config).num_parameters == config["expect_params"]


def test_head_dim_null_is_derived_and_explicit_head_dim_is_kept() -> None:
    assert spec(head_dim=None).head_dim == 16
    wide = spec(head_dim=32)
    assert (wide.head_dim, wide.q_width) == (32, 128)


def test_tied_weights_count_once() -> None:
    assert spec().num_parameters - spec(tie_word_embeddings=True).num_parameters == 100 * 64


def test_biases_and_norms_of_each_family() -> None:
    plain = spec(num_key_value_heads=2).num_parameters
    qkv, layers = 64 + 2 * 32, 2
    assert spec(num_key_value_heads=2, model_type="qwen2").num_parameters == plain + layers * qkv
    assert spec(num_key_value_heads=2, attention_bias=True).num_parameters == plain + layers * (qkv + 64)
    assert spec(num_key_value_heads=2, mlp_bias=True).num_parameters == plain + layers * (2 * 128 + 64)
    assert spec(num_key_value_heads=2, model_type="qwen3").num_parameters == plain + layers * 2 * 16
    assert spec(num_key_value_heads=2, model_type="mistral").num_parameters == plain


def test_fused_projections_have_the_weights_of_the_separate_ones() -> None:
    fused = spec(num_key_value_heads=2, model_type="phi3", partial_rotary_factor=0.75)
    assert fused.num_parameters == spec(num_key_value_heads=2).num_parameters
    assert fused.linears == {
        "qkv_proj": (64, 128),
        "o_proj": (64, 64),
        "gate_up_proj": (64, 256),
        "down_proj": (128, 64),
    }
    assert fused.rotary_width == 12
    kept_in_rope = spec(model_type="phi3", rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5})
    assert (kept_in_rope.rotary_width, spec(model_type="phi3").rotary_width) == (8, None)
    assert spec(partial_rotary_factor=0.5).rotary_width is None  # llama's modeling does not read it


def test_glm_has_biases_without_one_at_the_output_and_glm4_two_norms_more() -> None:
    given = {"num_key_value_heads": 2, "head_dim": 16}
    plain = spec(**given).num_parameters
    glm, glm4 = spec(model_type="glm", **given), spec(model_type="glm4", attention_bias=False, **given)
    assert glm.num_parameters == plain + 2 * (64 + 2 * 32)
    assert glm4.num_parameters == plain + 2 * 2 * 64
    assert (glm.rotary_width, glm.o_bias, glm4.qkv_bias) == (8, False, False)
    assert list(glm4.linears) == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"partial_rotary_factor": 0}, "partial_rotary_factor"), ({"partial_rotary_factor": "half"}, "partial_rotary"),
     ({"resid_pdrop": 0.1}, "resid_pdrop"), ({"embd_pdrop": 0.1}, "embd_pdrop")],
)  # fmt: skip
def test_what_fused_families_cannot_have_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        spec(model_type="phi3", **changes)


def test_kv_heads_default_to_the_query_heads_and_to_8_for_mistral() -> None:
    assert spec().num_kv_heads == 4
    assert spec(model_type="mistral", num_attention_heads=16).num_kv_heads == 8


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"model_type": "mistral", "num_key_value_heads": 4, "sliding_window": 4096}, 4096),
        ({"model_type": "mistral", "num_key_value_heads": 4, "sliding_window": None}, None),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, None),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 2}, None),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 1}, 4096),
        ({"model_type": "qwen3", "sliding_window": 4096, "layer_types": ["full_attention"] * 2}, None),
        ({"model_type": "qwen3", "sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"]}, 64),
    ],
)
def test_sliding_window_counts_only_when_a_layer_slides(changes: dict[str, Any], window: int | None) -> None:
    assert spec(**changes).sliding_window == window


@pytest.mark.parametrize("model_type", ["gpt2", "gemma2", None, 7])
def test_other_families_are_refused_by_name(model_type: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        spec(model_type=model_type)
    assert repr(model_type) in refused.value.what
    assert all(family in refused.value.fix for family in FAMILIES)


def test_a_config_of_something_else_says_what_it_is() -> None:
    with pytest.raises(ConfigError, match="is_encoder_decoder is true"):
        model_spec_from_config("t5", {"model_type": "t5", "is_encoder_decoder": True})
    with pytest.raises(ConfigError, match="text_config may be of one"):
        model_spec_from_config("vl", {"model_type": "llava", "text_config": LLAMA})
    with pytest.raises(ConfigError, match="cross-attention layers, which are not counted yet"):
        model_spec_from_config("vl", {"model_type": "mllama", "text_config": LLAMA})
    with pytest.raises(ConfigError, match="no model_type"):
        model_spec_from_config("empty", {})


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"])
@pytest.mark.parametrize("value", [None, 0, -1, "64", 64.0, True])
def test_missing_or_impossible_sizes_name_the_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        spec(**{key: value})


def test_heads_that_do_not_divide_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match="4 query heads cannot share 3 KV heads"):
        spec(num_key_value_heads=3)
    with pytest.raises(ConfigError, match="hidden_size 65 is not a multiple of 4"):
        spec(hidden_size=65)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_size": 10**9}, "hidden_size"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
        ({"vocab_size": 10**10}, "vocab_size"),
        ({"max_position_embeddings": -1}, "max_position_embeddings"),
        ({"head_dim": 0}, "head_dim"),
        ({"head_dim": 10**6}, "head_dim"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings"),
        ({"attention_bias": 1}, "attention_bias"),
        ({"mlp_bias": "no"}, "mlp_bias"),
        ({"sliding_window": 0, "model_type": "mistral", "num_key_value_heads": 4}, "sliding_window"),
        ({"use_sliding_window": "yes", "sliding_window": 8, "model_type": "qwen2"}, "use_sliding_window"),
        ({"dtype": "int3"}, "dtype"),
    ],
)
def test_absurd_values_name_their_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        spec(**changes)


def test_null_stands_for_the_default_where_there_is_one() -> None:
    nulls = dict.fromkeys(
        ("num_key_value_heads", "max_position_embeddings", "tie_word_embeddings", "attention_bias", "sliding_window")
    )
    assert spec(**nulls) == spec()


GEMMA3: dict[str, Any] = {  # as the 4B's text_config is published: what is left out is as in the class
    "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
    "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
}  # fmt: skip


def gemma3(**changes: Any) -> ModelSpec:
    return model_spec_from_config("gemma", {**GEMMA3, **changes})


def test_what_gemma_3_leaves_out_is_as_in_its_class() -> None:
    found = gemma3()
    assert (found.num_attention_heads, found.num_kv_heads, found.head_dim, found.vocab_size) == (8, 4, 256, 262208)
    assert (found.sliding_window, found.sliding_layers, found.max_position_embeddings) == (1024, 29, 131072)
    assert (found.tie_word_embeddings, found.qk_norm, found.norms_outputs, found.norms_in_float32) == (True,) * 4
    assert (found.rotations, found.lowest_rotations, found.rope_is_stretched) == (2, 1, True)
    assert found.original_positions == 131072
    assert (found.last_layer_slides, gemma3(num_hidden_layers=48).last_layer_slides) == (True, False)


def test_gemma_3_with_pictures_is_its_text_model() -> None:
    text = {**GEMMA3, "tie_word_embeddings": True}
    whole = {"model_type": "gemma3", "text_config": text, "vision_config": {}, "torch_dtype": "float32"}
    assert model_spec_from_config("gemma", whole) == replace(gemma3(), checkpoint_dtype="float32")
    untied = {**whole, "tie_word_embeddings": False}  # the head is the whole model's
    assert not model_spec_from_config("gemma", untied).tie_word_embeddings
    with pytest.raises(ConfigError, match="text_config is missing"):
        model_spec_from_config("gemma", {"model_type": "gemma3", "vision_config": {}})


@pytest.mark.parametrize(
    ("changes", "stretched"),
    [
        ({"rope_scaling": None}, False),
        ({"rope_scaling": None, "rope_parameters": {"full_attention": {"rope_type": "default"}}}, False),
        ({"rope_scaling": None, "rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}}, True),
        ({"rope_scaling": None, "rope_parameters": {"sliding_attention": {"rope_type": "linear"}}}, False),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            True,
        ),  # transformers lets the older key win
    ],
)
def test_rope_of_gemma_3_is_that_of_the_layers_that_attend_to_the_whole_row(
    changes: dict[str, Any], stretched: bool
) -> None:
    assert gemma3(**changes).rope_is_stretched == stretched


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        ({"layer_types": ["sliding_attention"]}, "does not say of 34 layers"),
        ({"layer_types": ["chunked_attention"] * 34}, "does not say of 34 layers"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ({"sliding_window": 0}, "sliding_window"),
    ],
)
def test_what_gemma_3_cannot_have_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        gemma3(**changes)


def test_gemma_2_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"'gemma2' is not supported.*cap attention scores by a tanh"):
        gemma3(model_type="gemma2")
