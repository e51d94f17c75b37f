"""Weights from a local folder or the hub into a model whose attention is ours. Called by the worker, once.

Real weights only, safetensors, no remote code.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from core.attention.register import ATTENTION_NAME, register_attention
from core.model.placement import Placement
from core.model.text_model import is_of_tower, text_model
from planner import gemma3
from planner.errors import ConfigError
from planner.model_checks import planned_only_models
from planner.model_spec import model_spec_from_config
from planner.rope import own_scaling
from planner.types import ModelSpec, RunConfig


def load_model(config: RunConfig, device: torch.device) -> tuple[nn.Module, ModelSpec]:
    """The causal LM in training mode on ``device``, in config.dtype, and its shape.

    Every parameter is trainable under method "full" and frozen under "lora" and "qlora" (the adapter brings its own);
    under "qlora" the decoder linears are NF4. With weight_streaming the layers' weights wait in host memory.

    Raises:
        ConfigError: no such model, a family longfit does not know, attention dropout, or weights that are missing.
    """
    register_attention()
    try:
        raw_config, _ = PretrainedConfig.get_config_dict(config.model)
        spec = model_spec_from_config(config.model, raw_config)  # first: it refuses a family by name
        for what, why, fix in planned_only_models(spec, method=config.method):
            raise ConfigError(what, why=why, fix=fix)
        model_config = AutoConfig.from_pretrained(config.model)
        text_config = model_config.get_text_config()
        check_attention(text_config)
        check_experts(text_config)
        scale_rope(text_config, dict(config.rope_scaling))
        text_config.use_cache = False
        model, found = AutoModelForCausalLM.from_pretrained(
            config.model,
            config=model_config,
            dtype=getattr(torch, config.dtype),
            use_safetensors=True,
            output_loading_info=True,
            **implementations(spec),
        )
    except OSError as error:
        raise ConfigError(
            f"The model '{config.model}' could not be loaded.",
            why=_why_not(config.model, error),
            fix="Give a folder with config.json and *.safetensors, or the id of a model on the Hugging Face hub.",
        ) from error
    _require_weights(config.model, found)
    model = text_model(model, whole=config.method == "full")
    freeze_dynamic_rope(model, config.max_length)
    model.requires_grad_(config.method == "full")
    placement = Placement(config, device)  # before the model goes to the device, which need not hold it whole
    for layer in model.get_decoder().layers:
        placement.layer(layer)
    tables = placement.rest(model)
    with nullcontext() if tables is None else tables.aside():
        model.to(device)
    return model.train(), spec


def _require_weights(name: str, found: dict[str, Any]) -> None:
    """``found``: what transformers says of the files. It fills a weight that they lack with random numbers.

    Raises:
        ConfigError: a weight that is trained on or through is missing, or one of the layers is left over.
    """
    missing = sorted(key for key in found["missing_keys"] if not is_of_tower(key))
    left_over = sorted(key for key in found["unexpected_keys"] if ".layers." in key and not is_of_tower(key))
    if missing or left_over:
        raise ConfigError(
            f"The weights of '{name}' are not those of its config.json.",
            why=f"{len(missing)} are missing {missing[:3]}, {len(left_over)} of the layers are left over "
            f"{left_over[:3]}.",
            fix="Download the model again, or name a folder whose weights belong to its config.json.",
        )


def _why_not(model: str, error: OSError) -> str:
    """transformers takes a folder that is not there for a hub id and complains about the spelling."""
    if model.startswith((".", "/", "~")) and not os.path.isdir(model):
        return "There is no such folder."
    return str(error).splitlines()[0]


def implementations(spec: ModelSpec) -> dict[str, str]:
    """What transformers is told to compute attention with, and experts where there are some.

    Experts by grouped products, on every device: k*T rows in the order of their experts, one call for all of them, so
    that what is allocated depends on no routing. "eager" asks the host for each expert's tokens and "batched_mm" copies
    the experts' weights for every token (transformers integrations/moe.py). With bfloat16 on a Hopper GPU it is one
    kernel; elsewhere torch multiplies expert by expert and asks the host once a call.
    """
    chosen = {"attn_implementation": ATTENTION_NAME}
    return chosen if spec.experts is None else {**chosen, "experts_implementation": "grouped_mm"}


def check_experts(model_config: PretrainedConfig) -> None:
    """Refuse what transformers would add to the training of a mixture of experts and longfit does not.

    Raises:
        ConfigError: a balancing loss (output_router_logits), or noise on the experts' input (router_jitter_noise).
    """
    if getattr(model_config, "output_router_logits", False):
        raise ConfigError(
            "The model's config.json asks for the router's balancing loss: output_router_logits is true.",
            why="Adapters train on the loss of the tokens alone, and the router stays as it is.",
            fix="Set output_router_logits to false in the model's config.json.",
        )
    noise = getattr(model_config, "router_jitter_noise", 0.0)
    if noise:
        raise ConfigError(
            f"The model's config.json asks for router_jitter_noise {noise}.",
            why="It multiplies the experts' input by random numbers, and the router stays as it is.",
            fix="Set router_jitter_noise to 0.0 in the model's config.json.",
        )


def check_attention(model_config: PretrainedConfig) -> None:
    """Refuse what our attention cannot honour.

    Raises:
        ConfigError: attention_dropout > 0.
    """
    dropout = getattr(model_config, "attention_dropout", 0.0)
    if dropout:
        raise ConfigError(
            f"The model's config.json asks for attention_dropout {dropout}.",
            why="Attention kernels of linear memory keep no dropout mask, so that gradients would not be those of the "
            "forward.",
            fix="Set attention_dropout to 0.0 in the model's config.json.",
        )


def scale_rope(model_config: PretrainedConfig, rope_scaling: dict[str, Any]) -> None:
    """Write a preset's ``rope_scaling`` ({type, factor, ...}) into the config as transformers 5 spells it.

    The base frequency stays; a scaling that the model brought along is replaced. Of layers with a RoPE by their type it
    is that of the ones that attend to the whole row, and max_position_embeddings becomes what it reaches, as Gemma 3
    has it (but for dynamic, which counts from max_position_embeddings).

    Raises:
        ConfigError: the family takes none from a preset.
    """
    if not rope_scaling:
        return
    brought = model_config.rope_parameters
    by_type = gemma3.FULL in brought
    of_rows = brought[gemma3.FULL] if by_type else brought
    why = own_scaling(model_config.model_type, is_stretched=gemma3.is_stretched(of_rows))
    if why is not None:
        raise ConfigError(
            f"rope_scaling is set, and a model of type {model_config.model_type} takes none.",
            why=why, fix="Leave rope_scaling out.",
        )  # fmt: skip
    scaling = {key: value for key, value in rope_scaling.items() if key != "type"}
    scaling["rope_type"] = rope_scaling.get("type", scaling.get("rope_type"))
    original = of_rows.get("original_max_position_embeddings", model_config.max_position_embeddings)
    if scaling["rope_type"] == "yarn":
        scaling.setdefault("original_max_position_embeddings", original)
    kept = {key: of_rows[key] for key in ("rope_theta", "partial_rotary_factor") if key in of_rows}
    scaled = {**kept, **scaling}
    model_config.rope_parameters = {**brought, gemma3.FULL: scaled} if by_type else scaled
    if by_type and scaled["rope_type"] != "dynamic":
        model_config.max_position_embeddings = int(original * scaled["factor"])
    model_config.standardize_rope_params()
    model_config.validate_rope()


def freeze_dynamic_rope(model: nn.Module, max_length: int) -> None:
    """Give dynamic RoPE, and longrope, the frequencies of a row of ``max_length`` tokens, once and for all.

    transformers takes them from the longest position seen so far by the process, or, with longrope, from whether a
    position of the batch at hand is beyond ``original_max_position_embeddings``: ranks that hold different parts of a
    row would rotate differently, and a resumed run of dynamic RoPE would differ from an uninterrupted one. So short
    samples of a run with long rows have longrope's long factors too.
    """
    for module in model.modules():
        rope_type = getattr(module, "rope_type", None)
        if isinstance(rope_type, dict):  # by type of layer
            for layer_type in rope_type:
                if _freeze(module, rope_type[layer_type], max_length, layer_type):
                    rope_type[layer_type] = "default"
        elif rope_type is not None and _freeze(module, rope_type, max_length, None):
            module.rope_type = "default"  # what makes the forward leave them alone


def _freeze(rope: nn.Module, rope_type: str, max_length: int, layer_type: str | None) -> bool:
    """Whether it had to be."""
    if rope_type not in ("dynamic", "longrope"):
        return False
    of_type = "" if layer_type is None else f"{layer_type}_"
    inv_freq = getattr(rope, f"{of_type}inv_freq")
    frequencies, attention_scaling = ROPE_INIT_FUNCTIONS[rope_type](
        rope.config, inv_freq.device, seq_len=max_length, layer_type=layer_type
    )
    setattr(rope, f"{of_type}attention_scaling", attention_scaling)
    inv_freq.copy_(frequencies)
    getattr(rope, f"{of_type}original_inv_freq").copy_(frequencies)
    return True
