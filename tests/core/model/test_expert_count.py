"""The planner's count of mixtures of experts, and what adapters reach, against the real classes on the meta device."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from core.model.adapters import linear_names
from planner.catalog.models import MODELS
from planner.model_spec import model_spec_from_config

NAMES = ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen1.5-MoE-A2.7B", "mistralai/Mixtral-8x7B-v0.1")


def empty_model(name: str) -> nn.Module:
    given = {key: value for key, value in MODELS[name].items() if value is not None}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**given))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_parameters_and_linears_are_those_of_the_class(name: str) -> None:
    model, spec = empty_model(name), model_spec_from_config(name, MODELS[name])
    assert spec.num_parameters == sum(p.numel() for p in model.parameters())
    assert set(linear_names(model)) == set(spec.linears)
    layer = model.get_decoder().layers[0]
    shapes = {n.rpartition(".")[2]: tuple(m.weight.shape) for n, m in layer.named_modules() if isinstance(m, nn.Linear)}
    assert shapes == {linear: (outputs, inputs) for linear, (inputs, outputs) in spec.linears.items()}
