"""The text model alone of one that reads pictures too. Called by core/model/load.py.

With adapters it keeps its place in the whole model, so that they are saved under the names that PEFT looks for in the
model as people have it. Trained whole it becomes a text model of its own: a checkpoint in the whole model's layout
would lack the tower, which transformers then fills with random numbers.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import Gemma3ForCausalLM, Gemma3ForConditionalGeneration

TOWER = ("vision_tower", "multi_modal_projector")  # what text does not pass through, by name in the inner model


def text_model(model: nn.Module, *, whole: bool) -> nn.Module:
    """``model`` itself unless it reads pictures; else the same weights without the tower. ``whole``: every weight of it
    is trained and saved."""
    if not isinstance(model, Gemma3ForConditionalGeneration):
        return model
    if not whole:
        for name in TOWER:
            delattr(model.model, name)
        return model
    with torch.device("meta"):
        alone = Gemma3ForCausalLM(model.config.text_config)
    alone.model, alone.lm_head = model.model.language_model, model.lm_head
    alone.generation_config = model.generation_config
    return alone


def is_of_tower(parameter: str) -> bool:
    """Whether a parameter of a model that reads pictures is none of its text model."""
    return any(f"{name}." in parameter for name in TOWER)
