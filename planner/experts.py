"""Mixtures of experts: from the fields of a config.json to what the planner counts. Called by planner/model_spec.py.

Source: transformers 5.17 modeling_{qwen2_moe,qwen3_moe,mixtral}.py. The experts of a layer are two parameters,
gate_up_proj (E, 2w, d) and down_proj (E, d, w), and the router one, (E, d): none of them is an nn.Linear, so neither
PEFT's all-linear nor bitsandbytes reaches them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.config_fields import positive
from planner.errors import ConfigError
from planner.model_shape import Experts, ModelSpec

NUM_EXPERTS: Mapping[str, tuple[str, ...]] = {  # model_type -> the key that says how many; saved configs have either
    "qwen2_moe": ("num_experts", "num_local_experts"),
    "qwen3_moe": ("num_experts", "num_local_experts"),
    "mixtral": ("num_local_experts", "num_experts"),
}


def experts_from_config(name: str, family: str, config: Mapping[str, Any]) -> Experts | None:
    """None for a dense family, and when no layer has experts.

    Raises:
        ConfigError: a field is missing or impossible, or more experts are active than there are.
    """
    keys = NUM_EXPERTS.get(family)
    if keys is None:
        return None
    num_experts = positive(name, config, next((key for key in keys if config.get(key) is not None), keys[0]))
    num_active = positive(name, config, "num_experts_per_tok")
    if num_active > num_experts:
        raise ConfigError(
            f"{name}: num_experts_per_tok {num_active} exceeds the {num_experts} experts.",
            why="A token passes through different experts.",
            fix="Correct config.json.",
        )
    every = positive(name, config, "num_hidden_layers")
    num_layers = every if family == "mixtral" else _num_sparse_layers(name, config, every)
    if num_layers == 0:
        return None
    return Experts(
        num_experts=num_experts,
        num_active=num_active,
        width=positive(name, config, "intermediate_size" if family == "mixtral" else "moe_intermediate_size"),
        shared_width=positive(name, config, "shared_expert_intermediate_size") if family == "qwen2_moe" else 0,
        num_layers=num_layers,
    )


def num_expert_parameters(model: ModelSpec) -> int:
    """Of all experts in all layers, without routers and shared experts."""
    experts = model.experts
    return 0 if experts is None else experts.num_layers * experts.num_experts * 3 * model.hidden_size * experts.width


def _num_sparse_layers(name: str, config: Mapping[str, Any], layers: int) -> int:
    """Layers whose number is a multiple of decoder_sparse_step, counted from 1, and that mlp_only_layers leaves out."""
    step = positive(name, config, "decoder_sparse_step", default=1)
    dense = config.get("mlp_only_layers")
    dense = [] if dense is None else dense
    if not isinstance(dense, list | tuple) or not all(type(i) is int and 0 <= i < layers for i in dense):
        raise ConfigError(
            f"{name}: mlp_only_layers is {dense!r} in config.json.",
            why=f"It lists layers by number, 0 to {layers - 1}.",
            fix="Correct mlp_only_layers.",
        )
    return sum((layer + 1) % step == 0 and layer not in dense for layer in range(layers))
