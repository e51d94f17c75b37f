"""From a Hugging Face ``config.json`` (as a dict) to a ModelSpec with the exact number of parameters.

Called by the catalog, by app/services when a preset names a folder, and by the trainer on the loaded model's config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner import gemma3
from planner.config_fields import flag, positive, section
from planner.errors import ConfigError
from planner.experts import experts_from_config
from planner.types import ModelSpec
from planner.vision_tower import TEXT_FAMILIES, tower_parameters

CHECKPOINT_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a ``model_type`` decides that its config does not say (transformers 5.17 modeling files)."""

    qkv_bias: bool | None  # None: config key attention_bias, which then covers o_proj too
    qk_norm: bool
    num_kv_heads: int | None  # when num_key_value_heads is absent; None: as many as query heads
    max_position_embeddings: int  # when absent
    head_dim: int | None = None  # when absent; None: hidden_size / query heads
    is_tied: bool = False  # the head is the embeddings, when tie_word_embeddings is absent
    sliding_window: int | None = None  # when absent
    num_heads: int | None = None  # when num_attention_heads is absent; None: it has to be given
    vocab_size: int | None = None  # when absent; None: it has to be given
    fuses_qkv: bool = False
    fuses_gate_up: bool = False
    norms_outputs: bool = False
    norms_in_float32: bool = False
    rotates_pairs: bool = False
    rotary_share: float | None = None  # of a head, when partial_rotary_factor is absent; None: all of it, always


_GLM = Family(
    qkv_bias=True,
    qk_norm=False,
    num_kv_heads=2,
    max_position_embeddings=131072,
    head_dim=128,
    fuses_gate_up=True,
    rotates_pairs=True,
    rotary_share=0.5,
)

FAMILIES: Mapping[str, Family] = {
    "gemma": Family(
        qkv_bias=None,
        qk_norm=False,
        num_kv_heads=16,
        max_position_embeddings=8192,
        head_dim=256,
        is_tied=True,
        norms_in_float32=True,
    ),
    "gemma3_text": Family(  # the published configs of 4B, 12B and 27B leave out what is as here
        qkv_bias=None,
        qk_norm=True,
        num_kv_heads=4,
        max_position_embeddings=131072,
        head_dim=256,
        is_tied=True,
        sliding_window=4096,
        num_heads=8,
        vocab_size=262208,
        norms_outputs=True,
        norms_in_float32=True,
    ),
    "glm": _GLM,
    "glm4": replace(_GLM, norms_outputs=True),
    "llama": Family(qkv_bias=None, qk_norm=False, num_kv_heads=None, max_position_embeddings=2048),
    "mistral": Family(
        qkv_bias=False, qk_norm=False, num_kv_heads=8, max_position_embeddings=131072, sliding_window=4096
    ),
    "mixtral": Family(qkv_bias=False, qk_norm=False, num_kv_heads=8, max_position_embeddings=131072),
    "phi3": Family(
        qkv_bias=False,
        qk_norm=False,
        num_kv_heads=None,
        max_position_embeddings=4096,
        fuses_qkv=True,
        fuses_gate_up=True,
        rotary_share=1.0,
    ),
    "qwen2": Family(qkv_bias=True, qk_norm=False, num_kv_heads=None, max_position_embeddings=32768),
    "qwen2_moe": Family(qkv_bias=True, qk_norm=False, num_kv_heads=16, max_position_embeddings=32768),
    "qwen3": Family(qkv_bias=None, qk_norm=True, num_kv_heads=None, max_position_embeddings=32768),
    "qwen3_moe": Family(qkv_bias=None, qk_norm=True, num_kv_heads=4, max_position_embeddings=32768),
    "smollm3": Family(qkv_bias=None, qk_norm=False, num_kv_heads=4, max_position_embeddings=32768, is_tied=True),
}


# config keys that say whether q, k and v have biases, o_proj having none
QKV_BIAS: Mapping[str, str] = {"glm": "attention_bias", "glm4": "attention_bias", "qwen2_moe": "qkv_bias"}


NOT_COUNTED: Mapping[str, str] = {  # well-known families, and what of their layers has no formula or kernel here
    "mllama": "Its text model has cross-attention layers, which are not counted yet.",
    "gemma2": "Its layers cap attention scores by a tanh, which no attention kernel that longfit runs does.",
    "deepseek_v3": "Its attention has compressed keys and values, which are not counted yet.",
    "gpt_oss": "Its attention has sinks, its experts have biases, which are not counted yet.",
}


def model_spec_from_config(name: str, config: Mapping[str, Any]) -> ModelSpec:
    """The shape of a decoder: dense, with experts, or the text part of a model that reads pictures too. Of Qwen's the
    tower is counted; Gemma 3's is no part of a run, which loads the text model alone (core/model/load.py).

    Raises:
        ConfigError: it is no decoder of FAMILIES, a field is missing, null where it has to be given, or impossible, the
            query heads are not a multiple of the KV heads, or hidden_size is not one of the heads without head_dim.
    """
    config = gemma3.text_config(name, config)
    declared = config.get("model_type")
    if isinstance(declared, str) and declared in TEXT_FAMILIES:
        # older configs have the text model's fields beside vision_config, newer ones in text_config
        inner = section(name, config, "text_config") if "hidden_size" not in config else config
        tied = flag(name, config, "tie_word_embeddings", default=flag(name, inner, "tie_word_embeddings"))
        text = {**inner, "model_type": TEXT_FAMILIES[declared], "tie_word_embeddings": tied}
        spec = _decoder(name, TEXT_FAMILIES[declared], text)
        tower = tower_parameters(name, declared, config, spec.hidden_size)
        return replace(
            spec, family=declared, tower_parameters=tower, num_parameters=spec.num_parameters + tower
        )  # fmt: skip
    if not isinstance(declared, str) or declared not in FAMILIES:
        raise _unsupported(name, declared, config)
    return _decoder(name, declared, config)


def _unsupported(name: str, declared: Any, config: Mapping[str, Any]) -> ConfigError:
    if "model_type" not in config:
        reason = "It says what the other fields mean."
        return ConfigError(f"{name}: config.json has no model_type.", why=reason, fix="Add the model's own model_type.")
    why = "Memory is counted from the modeling code of each family."
    if config.get("is_encoder_decoder"):
        why = "is_encoder_decoder is true: longfit trains decoders, which read and write one sequence."
    elif declared in NOT_COUNTED:
        why += f" {NOT_COUNTED[declared]}"
    elif isinstance(config.get("text_config"), Mapping):
        why += " Its text_config may be of one: name a folder with that as config.json."
    return ConfigError(
        f"{name}: model_type {declared!r} is not supported.", why=why,
        fix=f"Supported families: {', '.join((*FAMILIES, gemma3.WITH_PICTURES, *TEXT_FAMILIES))}.",
    )  # fmt: skip


def _decoder(name: str, family_name: str, config: Mapping[str, Any]) -> ModelSpec:
    family = FAMILIES[family_name]
    hidden = positive(name, config, "hidden_size")
    heads = positive(name, config, "num_attention_heads", default=family.num_heads)
    kv_default = heads if family.num_kv_heads is None else family.num_kv_heads
    kv_heads = positive(name, config, "num_key_value_heads", default=kv_default)
    layers = positive(name, config, "num_hidden_layers")
    if heads % kv_heads:
        raise ConfigError(
            f"{name}: {heads} query heads cannot share {kv_heads} KV heads.",
            why="num_attention_heads has to be a multiple of num_key_value_heads.",
            fix="Correct config.json.",
        )
    if config.get("head_dim") is None and family.head_dim is None and hidden % heads:
        raise ConfigError(
            f"{name}: hidden_size {hidden} is not a multiple of {heads} heads, and head_dim is not given.",
            why="head_dim would be hidden_size / num_attention_heads.",
            fix="Give head_dim in config.json.",
        )
    attention_bias = flag(name, config, "attention_bias")
    qkv_bias = attention_bias if family.qkv_bias is None else family.qkv_bias
    positions = positive(name, config, "max_position_embeddings", default=family.max_position_embeddings)
    is_gemma3 = family_name == gemma3.TEXT
    original, stretched = (None, 0) if is_gemma3 else _brought_scaling(name, config)
    head_dim = positive(name, config, "head_dim", default=family.head_dim or hidden // heads)
    window, sliding_layers = _sliding_window(name, family_name, config, layers)
    types = config.get("layer_types")
    _refuse_dropout(name, config)
    _refuse_attention(name, config)
    spec = ModelSpec(
        name=name,
        family=family_name,
        hidden_size=hidden,
        intermediate_size=positive(name, config, "intermediate_size"),
        num_layers=layers,
        num_attention_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=positive(name, config, "vocab_size", default=family.vocab_size),
        max_position_embeddings=max(positions, stretched),
        positions_before_scaling=original,
        tie_word_embeddings=flag(name, config, "tie_word_embeddings", default=family.is_tied),
        qkv_bias=flag(name, config, QKV_BIAS[family_name], default=qkv_bias) if family_name in QKV_BIAS else qkv_bias,
        o_bias=attention_bias if family.qkv_bias is None else False,
        mlp_bias=family_name in ("llama", "smollm3") and flag(name, config, "mlp_bias"),
        qk_norm=family.qk_norm,
        sliding_window=window,
        sliding_layers=sliding_layers,
        last_layer_slides=not isinstance(types, list | tuple) or list(types[-1:]) != [gemma3.FULL],
        num_parameters=0,
        checkpoint_dtype=_checkpoint_dtype(name, config),
        experts=experts_from_config(name, family_name, config),
        fuses_qkv=family.fuses_qkv,
        fuses_gate_up=family.fuses_gate_up,
        norms_outputs=family.norms_outputs,
        norms_in_float32=family.norms_in_float32,
        rotations=len(set(config["layer_types"])) if is_gemma3 else 1,
        lowest_rotations=len(set(config["layer_types"][:2])) if is_gemma3 else 1,
        rope_is_stretched=is_gemma3 and gemma3.is_stretched(gemma3.rope_of_full_layers(config)),
        rotates_pairs=family.rotates_pairs,
        rotary_width=_rotary_width(name, family, config, head_dim),
    )
    return replace(spec, num_parameters=count_parameters(spec))


def count_parameters(spec: ModelSpec) -> int:
    """Every parameter of the causal LM, all experts, tied weights once."""
    d, q, kv = spec.hidden_size, spec.q_width, spec.kv_width
    embeddings = spec.vocab_size * d * (1 if spec.tie_word_embeddings else 2)
    attention = 2 * d * (q + kv) + spec.qkv_bias * (q + 2 * kv) + spec.o_bias * d
    norms = (4 if spec.norms_outputs else 2) * d + spec.qk_norm * 2 * spec.head_dim
    dense = 3 * d * spec.intermediate_size + spec.mlp_bias * (2 * spec.intermediate_size + d)
    experts, sparse = spec.experts, 0
    if experts is not None:
        shared = 3 * d * experts.shared_width + (d if experts.shared_width else 0)  # and the shared expert's gate
        sparse = experts.num_experts * (3 * d * experts.width + d) + shared  # and the router
    num_sparse = experts.num_layers if experts else 0
    layers = spec.num_layers * (attention + norms) + num_sparse * sparse + (spec.num_layers - num_sparse) * dense
    return embeddings + layers + d


def _sliding_window(name: str, family: str, config: Mapping[str, Any], layers: int) -> tuple[int | None, int]:
    """(window, layers that slide); (None, 0) when none does."""
    default = FAMILIES[family].sliding_window
    if config.get("sliding_window", default) is None:
        return None, 0
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list | tuple):
        sliding = layer_types.count("sliding_attention")
    elif not family.startswith(("qwen", "smollm3")):
        sliding = layers
    elif not flag(name, config, "use_sliding_window"):
        sliding = 0
    elif family == "qwen3_moe":
        sliding = layers
    elif family == "smollm3":  # the layers without RoPE: every fourth, unless the config says which
        rotated = config.get("no_rope_layers")
        every = config.get("no_rope_layer_interval", 4)
        sliding = layers // every if rotated is None else rotated.count(0)
    else:
        full_or_sliding = config.get("max_window_layers", 28)
        sliding = max(0, layers - full_or_sliding) if family != "qwen2_moe" else (min(layers, full_or_sliding) + 1) // 2
    return (positive(name, config, "sliding_window", default=default), sliding) if sliding else (None, 0)


def _rotary_width(name: str, family: Family, config: Mapping[str, Any], head_dim: int) -> int | None:
    """Of the families whose modeling reads partial_rotary_factor, which transformers 5 keeps in rope_parameters."""
    if family.rotary_share is None:
        return None
    key = "rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling"
    scaling = section(name, config, key) if config.get(key) is not None else {}
    share = scaling.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    share = family.rotary_share if share is None else share
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ConfigError(
            f"{name}: partial_rotary_factor is {share!r} in config.json.",
            why="It is the share of a head that RoPE rotates, above 0 and at most 1.", fix="Correct it.",
        )  # fmt: skip
    return None if share == 1 else int(head_dim * share)


def _refuse_dropout(name: str, config: Mapping[str, Any]) -> None:
    """
    Raises:
        ConfigError: residuals or embeddings are dropped.
    """
    for key in ("resid_pdrop", "embd_pdrop"):
        if config.get(key):
            raise ConfigError(
                f"{name}: {key} is {config[key]!r} in config.json.",
                why="Masks of dropout on residuals and embeddings are not counted.", fix=f"Set {key} to 0.0.",
            )  # fmt: skip


def _refuse_attention(name: str, config: Mapping[str, Any]) -> None:
    """
    Raises:
        ConfigError: tokens see later ones, or a tanh caps scores or logits.
    """
    if flag(name, config, "use_bidirectional_attention"):
        raise ConfigError(
            f"{name}: use_bidirectional_attention is true in config.json.",
            why="Its tokens attend to later ones, and longfit trains models that predict the next token.",
            fix="Name a model that is causal.",
        )
    caps = {"attn_logit_softcapping": "attention kernels have", "final_logit_softcapping": "the loss has"}
    for key, who in caps.items():
        if config.get(key) is not None:
            raise ConfigError(
                f"{name}: {key} is {config[key]!r} in config.json.", why=f"It is a cap by a tanh, which {who} not.",
                fix=f"Set {key} to null, if the model was trained without.",
            )  # fmt: skip


def _brought_scaling(name: str, config: Mapping[str, Any]) -> tuple[int | None, int]:
    """(positions before the RoPE scaling that the model brings along, positions by its factor); (None, 0) without.

    A scaling that does not say what it started from leaves max_position_embeddings as it is: configs mean either.
    """
    key = "rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling"
    if config.get(key) is None:
        return None, 0
    scaling = section(name, config, key)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None, 0
    if kind in ("longrope", "su"):  # max_position_embeddings is what it reaches
        given = scaling if scaling.get("original_max_position_embeddings") is not None else config
        if given.get("original_max_position_embeddings") is None:
            return None, 0
        return positive(f"{name}, {key}", given, "original_max_position_embeddings"), 0
    factor = scaling.get("factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 1e6:
        raise ConfigError(
            f"{name}: {key} has factor {factor!r} in config.json.", why="It multiplies the model's positions.",
            fix=f"Correct {key}.",
        )  # fmt: skip
    if scaling.get("original_max_position_embeddings") is None:
        return None, 0
    original = positive(f"{name}, {key}", scaling, "original_max_position_embeddings")
    return original, int(original * factor)


def _checkpoint_dtype(name: str, config: Mapping[str, Any]) -> str:
    """
    Raises:
        ConfigError: it is none of CHECKPOINT_DTYPES.
    """
    value = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    if value not in CHECKPOINT_DTYPES:
        raise ConfigError(
            f"{name}: dtype is {value!r} in config.json.",
            why=f"Weights on disk are read as {', '.join(CHECKPOINT_DTYPES)}.",
            fix="Correct dtype.",
        )
    return str(value)
