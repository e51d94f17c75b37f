"""The families people ask for: two steps as plain transformers takes them, or refused by name before weights."""

from __future__ import annotations

import json

import pytest
import torch

from core.model.load import load_model
from planner.errors import ConfigError
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

TRAINED = {
    "Llama 3": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    "Qwen2.5": ("qwen2", {}),
    "Qwen3": ("qwen3", {}),
    "Mistral": ("mistral", {}),
    "Gemma": ("gemma", {"tie_word_embeddings": True}),
    "SmolLM3, a layer without rotation": ("smollm3", {"no_rope_layers": [1, 0], "pad_token_id": None}),
}
REFUSED = {
    "Gemma 2": "gemma2", "Gemma 3": "gemma3_text", "Phi-4": "phi3",
    "InternLM3": "internlm3", "GLM-4": "glm4",
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


@pytest.mark.parametrize("name", REFUSED)
def test_other_families_are_refused_by_name_before_weights_are_looked_for(name, tmp_path):
    model_type = REFUSED[name]
    config = {"model_type": model_type, "architectures": ["X"], "hidden_size": 64, "num_attention_heads": 4,
              "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100,
              "auto_map": {"AutoConfig": "configuration.Evil"}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=rf"model_type '{model_type}' is not supported.*gemma, llama, mistral"):
        load_model(run_config(model=str(tmp_path)), CPU)
