"""Gemma 3's config.json: the text model alone of one that reads pictures too, and what is left for the class to know.

Called by planner/model_spec.py, and by core before it builds a model of such a config (transformers 5.17
configuration_gemma3.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.config_fields import positive, section
from planner.errors import ConfigError

TEXT, WITH_PICTURES = "gemma3_text", "gemma3"  # model_type
SLIDING, FULL = "sliding_attention", "full_attention"
PATTERN = 6  # where the config does not say: the last of each six layers attends to the whole row


def text_config(name: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """``config`` itself, unless it is Gemma 3's: then that of its text model, with the type of every layer.

    Raises:
        ConfigError: a field is missing or impossible.
    """
    if config.get("model_type") not in (TEXT, WITH_PICTURES):
        return config
    text = config
    if config["model_type"] == WITH_PICTURES:
        whole = {key: config[key] for key in ("dtype", "torch_dtype", "tie_word_embeddings") if key in config}
        text = {**section(name, config, "text_config"), **whole, "model_type": TEXT}
    return {**text, "layer_types": layer_types(name, text)}


def layer_types(name: str, config: Mapping[str, Any]) -> list[str]:
    """SLIDING or FULL of every layer.

    Raises:
        ConfigError: another type, or not one for each layer.
    """
    num_layers = positive(name, config, "num_hidden_layers")
    given = config.get("layer_types")
    if given is None:
        pattern = positive(name, config, "sliding_window_pattern", default=PATTERN)
        return [FULL if (layer + 1) % pattern == 0 else SLIDING for layer in range(num_layers)]
    if not isinstance(given, list | tuple) or len(given) != num_layers or not {SLIDING, FULL}.issuperset(given):
        raise ConfigError(
            f"{name}: layer_types does not say of {num_layers} layers which slide in config.json.",
            why=f"It lists {SLIDING} or {FULL}, once for each layer.", fix="Correct layer_types.",
        )  # fmt: skip
    return list(given)


def rope_of_full_layers(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """RoPE of the layers that attend to the whole row, the only ones that are ever stretched: older configs have it as
    rope_scaling, newer ones under the layers' type in rope_parameters, and transformers lets the older key win."""
    by_type = config.get("rope_parameters")
    newer = by_type.get(FULL) if isinstance(by_type, Mapping) else None
    older = config.get("rope_scaling")
    return {
        **(newer if isinstance(newer, Mapping) else {}),
        **(older if isinstance(older, Mapping) else {}),
    }


def is_stretched(rope: Mapping[str, Any]) -> bool:
    """``rope``: of the layers that attend to the whole row."""
    kind: object = rope.get("rope_type", rope.get("type", "default"))
    return kind != "default"
