"""Which layers slide, by config.json alone and by the modules that transformers builds from it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from core.attention.register import window_of
from planner.model_spec import model_spec_from_config

SHAPE: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 9, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "max_position_embeddings": 512, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
MIXTRAL = {"num_local_experts": 2, "num_experts_per_tok": 1}
CASES: dict[str, dict[str, Any]] = {
    "gemma3_text, the last of six attends to all": {"model_type": "gemma3_text", "sliding_window": 16},
    "gemma3_text, window absent": {"model_type": "gemma3_text"},
    "gemma3_text, window null": {"model_type": "gemma3_text", "sliding_window": None},
    "gemma3_text, every third": {"model_type": "gemma3_text", "sliding_window": 16, "sliding_window_pattern": 3},
    "gemma3_text, fewer layers than the pattern": {
        "model_type": "gemma3_text", "sliding_window": 16, "sliding_window_pattern": 10,
    },
    "gemma3_text, by layer": {
        "model_type": "gemma3_text", "sliding_window": 16, "sliding_window_pattern": 2,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"] * 3,
    },
    "mistral": {"model_type": "mistral", "sliding_window": 16},
    "mistral, absent": {"model_type": "mistral"},
    "mistral, null": {"model_type": "mistral", "sliding_window": None},
    "mixtral": {"model_type": "mixtral", "sliding_window": 16, **MIXTRAL},
    "mixtral, absent": {"model_type": "mixtral", **MIXTRAL},
    "phi3": {"model_type": "phi3", "sliding_window": 16},
    "qwen2, the last layers": {
        "model_type": "qwen2", "sliding_window": 16, "use_sliding_window": True, "max_window_layers": 5,
    },
    "qwen2, not used": {"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": False},
    "qwen3, fewer layers than slide": {
        "model_type": "qwen3", "sliding_window": 16, "use_sliding_window": True, "max_window_layers": 28,
    },
    "qwen3, by layer": {
        "model_type": "qwen3", "sliding_window": 16, "use_sliding_window": True,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"] * 3,
    },
    "qwen2_moe, every other": {
        "model_type": "qwen2_moe", "sliding_window": 16, "use_sliding_window": True, "max_window_layers": 6,
        "shared_expert_intermediate_size": 16, **EXPERTS,
    },
    "qwen3_moe": {"model_type": "qwen3_moe", "sliding_window": 16, "use_sliding_window": True, **EXPERTS},
    "qwen3_moe, not used": {"model_type": "qwen3_moe", "sliding_window": 16, "use_sliding_window": False, **EXPERTS},
    "smollm3, layers without rotation": {"model_type": "smollm3", "sliding_window": 16, "use_sliding_window": True},
    "smollm3, given layers": {
        "model_type": "smollm3", "sliding_window": 16, "use_sliding_window": True,
        "no_rope_layers": [1, 1, 1, 1, 1, 1, 1, 0, 1],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_windows_of_a_config_are_those_of_its_modules(name):
    config = {**SHAPE, **CASES[name]}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    attentions = [layer.self_attn for layer in model.get_decoder().layers]
    windows = [window for module in attentions if (window := window_of(module)) is not None]
    spec = model_spec_from_config("model", config)
    assert (spec.sliding_window, spec.sliding_layers) == (windows[0] if windows else None, len(windows))
