"""From a Hugging Face ``config.json`` (as a dict) to a ModelSpec with the exact number of parameters.

Called by the catalog, by app/services when a preset names a folder, and by the trainer on the loaded model's config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import ConfigError
from planner.types import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a ``model_type`` decides that its config does not say (transformers 5.17 modeling files)."""

    qkv_bias: bool | None  # None: config key attention_bias, which then covers o_proj too
    qk_norm: bool
    num_kv_heads: int | None  # when num_key_value_heads is absent; None: as many as query heads
    max_position_embeddings: int  # when absent


FAMILIES: Mapping[str, Family] = {
    "llama": Family(qkv_bias=None, qk_norm=False, num_kv_heads=None, max_position_embeddings=2048),
    "mistral": Family(qkv_bias=False, qk_norm=False, num_kv_heads=8, max_position_embeddings=131072),
    "qwen2": Family(qkv_bias=True, qk_norm=False, num_kv_heads=None, max_position_embeddings=32768),
    "qwen3": Family(qkv_bias=None, qk_norm=True, num_kv_heads=None, max_position_embeddings=32768),
}


def model_spec_from_config(name: str, config: Mapping[str, Any]) -> ModelSpec:
    """The shape of a dense decoder.

    Raises:
        ConfigError: model_type is not one of FAMILIES, a field is missing or not a positive integer, the query heads
            are not a multiple of the KV heads, or hidden_size is not a multiple of the heads without head_dim.
    """
    family_name = config.get("model_type")
    family = FAMILIES.get(family_name) if isinstance(family_name, str) else None
    if family is None or not isinstance(family_name, str):
        inner = config.get("text_config")
        hint = " (its text_config may be one: pass that)" if isinstance(inner, Mapping) else ""
        raise ConfigError(
            f"{name}: model_type {family_name!r} is not supported{hint}.",
            why="Memory is counted from the modeling code of each family.",
            fix=f"Supported families: {', '.join(FAMILIES)}.",
        )

    hidden = _positive(name, config, "hidden_size")
    heads = _positive(name, config, "num_attention_heads")
    kv_default = heads if family.num_kv_heads is None else family.num_kv_heads
    kv_heads = _positive(name, config, "num_key_value_heads", default=kv_default)
    layers = _positive(name, config, "num_hidden_layers")
    if heads % kv_heads:
        raise ConfigError(
            f"{name}: {heads} query heads cannot share {kv_heads} KV heads.",
            why="num_attention_heads has to be a multiple of num_key_value_heads.",
            fix="Correct config.json.",
        )
    if config.get("head_dim") is None and hidden % heads:
        raise ConfigError(
            f"{name}: hidden_size {hidden} is not a multiple of {heads} heads, and head_dim is not given.",
            why="head_dim would be hidden_size / num_attention_heads.",
            fix="Give head_dim in config.json.",
        )
    attention_bias = bool(config.get("attention_bias", False))
    spec = ModelSpec(
        name=name,
        family=family_name,
        hidden_size=hidden,
        intermediate_size=_positive(name, config, "intermediate_size"),
        num_layers=layers,
        num_attention_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_positive(name, config, "head_dim", default=hidden // heads),
        vocab_size=_positive(name, config, "vocab_size"),
        max_position_embeddings=_positive(
            name, config, "max_position_embeddings", default=family.max_position_embeddings
        ),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        o_bias=attention_bias if family.qkv_bias is None else False,
        mlp_bias=family_name == "llama" and bool(config.get("mlp_bias", False)),
        qk_norm=family.qk_norm,
        sliding_window=_sliding_window(name, family_name, config, layers),
        num_parameters=0,
        checkpoint_dtype=str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"),
    )
    return replace(spec, num_parameters=count_parameters(spec))


def count_parameters(spec: ModelSpec) -> int:
    """Every parameter of the causal LM, tied weights once."""
    d, f, q, kv = spec.hidden_size, spec.intermediate_size, spec.q_width, spec.kv_width
    embeddings = spec.vocab_size * d * (1 if spec.tie_word_embeddings else 2)
    biases = spec.qkv_bias * (q + 2 * kv) + spec.o_bias * d + spec.mlp_bias * (2 * f + d)
    norms = 2 * d + spec.qk_norm * 2 * spec.head_dim
    return embeddings + spec.num_linear_parameters + spec.num_layers * (biases + norms) + d


def _sliding_window(name: str, family: str, config: Mapping[str, Any], layers: int) -> int | None:
    """The window, if at least one layer really slides."""
    window = config.get("sliding_window")
    if window is None:
        return None
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list | tuple):
        return _positive(name, config, "sliding_window") if "sliding_attention" in layer_types else None
    if family in ("qwen2", "qwen3") and (
        not config.get("use_sliding_window", False) or int(config.get("max_window_layers", 28)) >= layers
    ):
        return None
    return _positive(name, config, "sliding_window")


def _positive(name: str, config: Mapping[str, Any], key: str, *, default: int | None = None) -> int:
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
    return value
