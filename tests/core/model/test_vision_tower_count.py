"""The planner's count of models that read pictures against their real classes, built without memory (meta device)."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from planner.catalog.models import MODELS
from planner.model_spec import model_spec_from_config

NAMES = ("Qwen/Qwen2-VL-2B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-4B-Instruct")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_counted(name: str) -> None:
    flat = dict(MODELS[name])
    family, vision = flat.pop("model_type"), flat.pop("vision_config")
    config = AutoConfig.for_model(
        family, text_config=flat, vision_config=vision, tie_word_embeddings=flat["tie_word_embeddings"]
    )
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    model.tie_weights()
    assert model_spec_from_config(name, MODELS[name]).num_parameters == sum(p.numel() for p in model.parameters())
    tower = model_spec_from_config(name, MODELS[name]).tower_parameters
    assert tower == sum(p.numel() for n, p in model.named_parameters() if "visual" in n)
