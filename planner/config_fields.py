"""One field of a config.json at a time: present, of the right kind, within what a model can have. Used by model_spec,
experts and vision_tower.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.errors import ConfigError

LARGEST: Mapping[str, int] = {  # beyond these a config.json is damaged, not ambitious
    "num_hidden_layers": 10_000,
    "depth": 10_000,
    "num_attention_heads": 1 << 16,
    "num_key_value_heads": 1 << 16,
    "head_dim": 1 << 14,
    "vocab_size": 1 << 26,
    "max_position_embeddings": 1 << 32,
    "sliding_window": 1 << 32,
}
LARGEST_WIDTH = 1 << 22  # of every other field


def positive(name: str, config: Mapping[str, Any], key: str, *, default: int | None = None) -> int:
    """
    Raises:
        ConfigError: ``key`` is missing (or null) without a default, is no positive integer, or is absurdly large.
    """
    value = config.get(key)
    if value is None and default is not None:
        return default
    if value is None:
        raise ConfigError(
            f"{name}: config.json has no {key}.",
            why="The shape of the model cannot be known without it.",
            fix=f"Add {key}, or name a folder with the model's own config.json.",
        )
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"{name}: {key} is {value!r} in config.json.", why="It has to be a positive integer.", fix=f"Correct {key}."
        )
    largest = LARGEST.get(key, LARGEST_WIDTH)
    if value > largest:
        raise ConfigError(
            f"{name}: {key} is {value} in config.json.",
            why=f"No model has more than {largest}.",
            fix=f"Correct {key}.",
        )
    return value


def flag(name: str, config: Mapping[str, Any], key: str, *, default: bool = False) -> bool:
    """
    Raises:
        ConfigError: ``key`` is neither true, false nor null: the word "false" would count as true.
    """
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(
            f"{name}: {key} is {value!r} in config.json.", why="It has to be true or false.", fix=f"Correct {key}."
        )
    return value


def section(name: str, config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """
    Raises:
        ConfigError: ``key`` is missing or no mapping.
    """
    value = config.get(key)
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{name}: {key} is {'missing' if value is None else repr(value)} in config.json.",
            why="It describes a part of the model.",
            fix="Name a folder with the model's own config.json.",
        )
    return value
