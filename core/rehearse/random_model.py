"""A model of true shape with random weights, built where it will train: no download, no second copy on the host.

Called by core/rehearse/worker.py. What differs from core/model/load.py is where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from core.attention.register import register_attention
from core.model.load import check_attention, check_experts, freeze_dynamic_rope, implementations, scale_rope
from core.model.placement import Placement
from planner.gemma3 import text_config
from planner.model_spec import model_spec_from_config
from planner.types import ModelSpec, RunConfig

_STD = 0.02  # of the initialisation of the families; activations stay in range at any depth


def random_model(config: RunConfig, raw_config: Mapping[str, Any], device: torch.device) -> tuple[nn.Module, ModelSpec]:
    """As load_model(config, device), for the ``config.json`` of a model.

    Raises: ConfigError as load_model does for what it refuses.
    """
    register_attention()
    raw_config = text_config(config.model, raw_config)
    given = {key: value for key, value in raw_config.items() if value is not None}
    spec = model_spec_from_config(config.model, raw_config)
    # what is absent or null is no window: some families would take their default for it
    model_config = AutoConfig.for_model(**{**given, "sliding_window": spec.sliding_window})
    check_attention(model_config)
    check_experts(model_config)
    scale_rope(model_config, dict(config.rope_scaling))
    model_config.use_cache = False
    dtype = getattr(torch, config.dtype)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config, dtype=dtype, **implementations(spec))
    decoder = model.get_decoder()
    with device:  # its buffers are computed
        decoder.rotary_emb = type(decoder.rotary_emb)(config=model_config)
    _compute_buffers(model, device)
    model.requires_grad_(config.method == "full")
    generator = torch.Generator(device).manual_seed(config.seed)
    placement = Placement(config, device)
    for layer in decoder.layers:
        _fill(layer, device, generator)
        placement.layer(layer)
    model.tie_weights()
    tables = placement.rest(model)
    on_host = () if tables is None else tables.weights
    for table in on_host:
        table.normal_(0.0, _STD, generator=torch.Generator().manual_seed(config.seed))
    _fill(model, device, generator, but=on_host)
    model.tie_weights()
    freeze_dynamic_rope(model, config.max_length)
    return model.train(), spec


def _compute_buffers(model: nn.Module, device: torch.device) -> None:
    """Other buffers that a family computes, as Gemma does the scale of its embeddings; weights are still to come."""
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_meta:
                module.register_buffer(name, torch.empty_like(buffer, device=device), persistent=False)
                model._init_weights(module)


def _fill(
    module: nn.Module, device: torch.device, generator: torch.Generator, *, but: Sequence[nn.Parameter] = ()
) -> None:
    """Numbers for every parameter that has none yet: ones for norms, zeros for biases, small noise for the rest."""
    for name, parameter in list(module.named_parameters()):
        if not parameter.is_meta or any(parameter is one for one in but):
            continue
        parent = module.get_submodule(name.rpartition(".")[0])
        data = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        if parameter.ndim == 1:
            data.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            data.normal_(0.0, _STD, generator=generator)
        setattr(parent, name.rpartition(".")[2], nn.Parameter(data, requires_grad=parameter.requires_grad))
