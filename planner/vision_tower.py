"""Parameters of the vision tower and its merger, of models that read pictures too. Called by planner/model_spec.py.

Only the text part is planned beyond its weights: longfit trains on text. Counts are those of transformers 5.17
modeling_{qwen2_vl,qwen2_5_vl,qwen3_vl}.py, compared with the classes themselves in tests/core/model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.config_fields import positive, section
from planner.errors import ConfigError

TEXT_FAMILIES: Mapping[str, str] = {"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3"}


def tower_parameters(name: str, family: str, config: Mapping[str, Any], text_hidden: int) -> int:
    """Every parameter outside the text model; ``text_hidden``: hidden_size of the text model.

    Raises:
        ConfigError: vision_config is missing, or a field of it is missing or impossible.
    """
    vision = _Fields(name, section(name, config, "vision_config"))
    return _COUNTS[family](vision, text_hidden)


class _Fields:
    """The fields of a vision_config; sizes that may be pairs are taken as both sides."""

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self._name, self._config = f"{name}, vision_config", config

    def __call__(self, key: str, default: int) -> int:
        return positive(self._name, self._config, key, default=default)

    def area(self, key: str, default: int) -> int:
        value = self._config.get(key)
        if isinstance(value, list | tuple) and len(value) == 2:
            sides = {"height": value[0], "width": value[1]}
            return positive(self._name, sides, "height") * positive(self._name, sides, "width")
        return self(key, default) ** 2

    def length(self, key: str, default: int) -> int:
        value = self._config.get(key, default)
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{self._name}: {key} is {value!r} in config.json.", why="It lists layers by number.")
        return len(value)


def _linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    return inputs * outputs + bias * outputs


def _patches(vision: _Fields, width: int, patch: int) -> int:
    """A convolution over patches of some frames, without bias."""
    channels = vision("in_channels", vision("in_chans", 3))  # the older key of the same field
    return channels * vision("temporal_patch_size", 2) * vision.area("patch_size", patch) * width


def _qwen2_vl(vision: _Fields, text_hidden: int) -> int:
    width, depth = vision("embed_dim", 1280), vision("depth", 32)
    mlp, merged = vision("mlp_ratio", 4) * width, vision.area("spatial_merge_size", 2) * width
    attention = _linear(width, 3 * width) + _linear(width, width)
    block = attention + _linear(width, mlp) + _linear(mlp, width) + 2 * 2 * width
    merger = 2 * width + _linear(merged, merged) + _linear(merged, vision("hidden_size", text_hidden))
    return _patches(vision, width, 14) + depth * block + merger


def _qwen2_5_vl(vision: _Fields, text_hidden: int) -> int:
    width, depth, mlp = vision("hidden_size", 3584), vision("depth", 32), vision("intermediate_size", 3420)
    merged = vision.area("spatial_merge_size", 2) * width
    attention = _linear(width, 3 * width) + _linear(width, width)
    block = attention + 2 * _linear(width, mlp) + _linear(mlp, width) + 2 * width
    merger = width + _linear(merged, merged) + _linear(merged, vision("out_hidden_size", text_hidden))
    return _patches(vision, width, 14) + depth * block + merger


def _qwen3_vl(vision: _Fields, text_hidden: int) -> int:
    width, depth, mlp = vision("hidden_size", 1152), vision("depth", 27), vision("intermediate_size", 4304)
    merged, out = vision.area("spatial_merge_size", 2) * width, vision("out_hidden_size", text_hidden)
    attention = _linear(width, 3 * width) + _linear(width, width)
    block = attention + _linear(width, mlp) + _linear(mlp, width) + 2 * 2 * width
    products = _linear(merged, merged) + _linear(merged, out)
    deep = vision.length("deepstack_visual_indexes", 3) * (2 * merged + products)
    positions = vision("num_position_embeddings", 2304) * width
    patches = _patches(vision, width, 16) + width
    return patches + positions + depth * block + 2 * width + products + deep


_COUNTS: Mapping[str, Callable[[_Fields, int], int]] = {
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
}
