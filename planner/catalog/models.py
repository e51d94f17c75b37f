"""Configs of well-known models by hub id, so that plans need no network: the keys that decide shape and bytes.

From each repository's config.json on the Hugging Face hub, as of 2026-11-29. Where a repository's safetensors index
states the number of parameters, tests/planner/test_catalog.py asserts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _decoder(
    model_type: str, hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, vocab: int, positions: int, *,
    tied: bool = False, head_dim: int | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    return {
        "model_type": model_type, "hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": vocab,
        "max_position_embeddings": positions, "tie_word_embeddings": tied, **more,
    }  # fmt: skip


def _qwen3_moe(hidden: int, mlp: int, expert: int, layers: int, heads: int) -> dict[str, Any]:
    return _decoder(
        "qwen3_moe", hidden, mlp, layers, heads, 4, 151936, 40960, head_dim=128, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=expert,
    )  # fmt: skip


def _mixtral(hidden: int, mlp: int, layers: int, heads: int, vocab: int, positions: int) -> dict[str, Any]:
    return _decoder(
        "mixtral", hidden, mlp, layers, heads, 8, vocab, positions, num_local_experts=8, num_experts_per_tok=2
    )


def _vision_language(model_type: str, text: Mapping[str, Any], **vision: Any) -> dict[str, Any]:
    return {**text, "model_type": model_type, "vision_config": vision}


_QWEN25 = {
    "0.5B": _decoder("qwen2", 896, 4864, 24, 14, 2, 151936, 32768, tied=True),
    "1.5B": _decoder("qwen2", 1536, 8960, 28, 12, 2, 151936, 32768, tied=True),
    "3B": _decoder("qwen2", 2048, 11008, 36, 16, 2, 151936, 32768, tied=True),
    "7B": _decoder("qwen2", 3584, 18944, 28, 28, 4, 152064, 32768),
    "14B": _decoder("qwen2", 5120, 13824, 48, 40, 8, 152064, 32768),
    "32B": _decoder("qwen2", 5120, 27648, 64, 40, 8, 152064, 32768),
    "72B": _decoder("qwen2", 8192, 29568, 80, 64, 8, 152064, 32768),
}
_QWEN25_LONG_BASES = ("1.5B", "7B", "14B", "32B", "72B")  # the base models of these sizes say 131072 positions


def _stretched(config: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Llama 3.1 and later: 131,072 positions by scaling RoPE from 8,192."""
    scaling = {
        "rope_type": "llama3", "factor": factor, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }  # fmt: skip
    return {**config, "rope_scaling": scaling}


_LLAMA31 = {
    "8B": _stretched(_decoder("llama", 4096, 14336, 32, 32, 8, 128256, 131072), 8.0),
    "70B": _stretched(_decoder("llama", 8192, 28672, 80, 64, 8, 128256, 131072), 8.0),
}
_LLAMA32 = {
    "1B": _stretched(_decoder("llama", 2048, 8192, 16, 32, 8, 128256, 131072, tied=True, head_dim=64), 32.0),
    "3B": _stretched(_decoder("llama", 3072, 8192, 28, 24, 8, 128256, 131072, tied=True, head_dim=128), 32.0),
}
_SMOLLM2 = {
    "135M": _decoder("llama", 576, 1536, 30, 9, 3, 49152, 8192, tied=True),
    "360M": _decoder("llama", 960, 2560, 32, 15, 5, 49152, 8192, tied=True),
    "1.7B": _decoder("llama", 2048, 8192, 24, 32, 32, 49152, 8192, tied=True),
}
_LLAMA3 = {
    "8B": _decoder("llama", 4096, 14336, 32, 32, 8, 128256, 8192),
    "70B": _decoder("llama", 8192, 28672, 80, 64, 8, 128256, 8192),
}
_QWEN3 = {
    "0.6B": _decoder("qwen3", 1024, 3072, 28, 16, 8, 151936, 40960, tied=True, head_dim=128),
    "1.7B": _decoder("qwen3", 2048, 6144, 28, 16, 8, 151936, 40960, tied=True, head_dim=128),
    "4B": _decoder("qwen3", 2560, 9728, 36, 32, 8, 151936, 40960, tied=True, head_dim=128),
    "8B": _decoder("qwen3", 4096, 12288, 36, 32, 8, 151936, 40960, head_dim=128),
    "14B": _decoder("qwen3", 5120, 17408, 40, 40, 8, 151936, 40960, head_dim=128),
    "32B": _decoder("qwen3", 5120, 25600, 64, 64, 8, 151936, 40960, head_dim=128),
}
_QWEN3_MOE = {
    "30B-A3B": _qwen3_moe(2048, 6144, 768, 48, 32),
    "235B-A22B": _qwen3_moe(4096, 12288, 1536, 94, 64),
}
_QWEN15_MOE = _decoder(
    "qwen2_moe", 2048, 5632, 24, 16, 16, 151936, 8192, num_experts=60, num_experts_per_tok=4,
    moe_intermediate_size=1408, shared_expert_intermediate_size=5632,
)  # fmt: skip
_MIXTRAL = {
    "8x7B-v0.1": _mixtral(4096, 14336, 32, 32, 32000, 32768),
    "8x22B-v0.1": _mixtral(6144, 16384, 56, 48, 32000, 65536),
}
_QWEN2_VL = {
    size: _vision_language("qwen2_vl", _QWEN25[like], embed_dim=1280, depth=32, hidden_size=width)
    for size, like, width in (("2B", "1.5B", 1536), ("7B", "7B", 3584))
}
_QWEN25_VL = {
    size: _vision_language(
        "qwen2_5_vl", {**_QWEN25[size], "max_position_embeddings": 128000}, hidden_size=1280, depth=32,
        intermediate_size=mlp, out_hidden_size=width,
    )
    for size, width, mlp in (("3B", 2048, 3420), ("7B", 3584, 3420), ("72B", 8192, 3456))
}  # fmt: skip
_QWEN3_VL = {
    size: _vision_language(
        "qwen3_vl", {**_QWEN3[size], "max_position_embeddings": 262144}, hidden_size=tower, depth=depth,
        intermediate_size=mlp, out_hidden_size=width, num_position_embeddings=2304, deepstack_visual_indexes=deep,
    )
    for size, width, tower, depth, mlp, deep in (
        ("4B", 2560, 1024, 24, 4096, (5, 11, 17)), ("8B", 4096, 1152, 27, 4304, (8, 16, 24)),
    )
}  # fmt: skip
_GEMMA = {
    "2b": _decoder("gemma", 2048, 16384, 18, 8, 1, 256000, 8192, tied=True, head_dim=256),
    "7b": _decoder("gemma", 3072, 24576, 28, 16, 16, 256000, 8192, tied=True, head_dim=256),
}


def _gemma3_text(
    hidden: int, mlp: int, layers: int, *, heads: int, kv_heads: int, vocab: int, positions: int, window: int,
    head_dim: int = 256, stretched: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Five layers that slide to one that does not; 4B and larger were stretched to 131,072 positions in the latter."""
    scaling = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}} if stretched else {}
    return _decoder(
        "gemma3_text", hidden, mlp, layers, heads, kv_heads, vocab, positions, tied=True, head_dim=head_dim,
        sliding_window=window, sliding_window_pattern=6, **scaling,
    )  # fmt: skip


_SIGLIP = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "image_size": 896, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
_GEMMA3 = {
    "270m": _gemma3_text(640, 2048, 18, heads=4, kv_heads=1, vocab=262144, positions=32768, window=512),
    "1b": _gemma3_text(1152, 6912, 26, heads=4, kv_heads=1, vocab=262144, positions=32768, window=512),
    **{
        size: {
            "model_type": "gemma3",
            "text_config": _gemma3_text(
                hidden, mlp, layers, heads=heads, kv_heads=heads // 2, vocab=262208, positions=131072, window=1024,
                head_dim=head_dim, stretched=True,
            ),
            "vision_config": _SIGLIP,
        }
        for size, hidden, mlp, layers, heads, head_dim in (
            ("4b", 2560, 10240, 34, 8, 256), ("12b", 3840, 15360, 48, 16, 256), ("27b", 5376, 21504, 62, 32, 128),
        )
    },
}  # fmt: skip
_GLM4_9B = _decoder("glm4", 4096, 13696, 40, 32, 2, 151552, 32768, head_dim=128, attention_bias=False)
_PHI4 = _decoder("phi3", 5120, 17920, 40, 40, 10, 100352, 16384)
_SMOLLM3 = _decoder("smollm3", 2048, 11008, 36, 16, 4, 128256, 65536, tied=True)
_LLAMA2 = {
    "7b": _decoder("llama", 4096, 11008, 32, 32, 32, 32000, 4096),
    "13b": _decoder("llama", 5120, 13824, 40, 40, 40, 32000, 4096),
    "70b": _decoder("llama", 8192, 28672, 80, 64, 8, 32000, 4096),
}
_YI15 = {
    "6B": _decoder("llama", 4096, 11008, 32, 32, 4, 64000, 4096),
    "9B": _decoder("llama", 4096, 11008, 48, 32, 4, 64000, 4096),
    "34B": _decoder("llama", 7168, 20480, 60, 56, 8, 64000, 4096),
}
_DEEPSEEK_CODER = {
    **_decoder("llama", 4096, 11008, 32, 32, 32, 32256, 16384),
    "rope_scaling": {"type": "linear", "factor": 4.0, "original_max_position_embeddings": 4096},
}
_MISTRAL_V01 = _decoder("mistral", 4096, 14336, 32, 32, 8, 32000, 32768, sliding_window=4096)
_MISTRAL_SMALL = _decoder("mistral", 5120, 32768, 40, 32, 8, 131072, 32768, head_dim=128, sliding_window=None)
_MISTRAL_V02 = _decoder("mistral", 4096, 14336, 32, 32, 8, 32000, 32768, sliding_window=None)
_MISTRAL_NEMO = _decoder("mistral", 5120, 14336, 40, 32, 8, 131072, 131072, head_dim=128, sliding_window=None)
_MISTRAL_V03 = _decoder("mistral", 4096, 14336, 32, 32, 8, 32768, 32768, head_dim=128, sliding_window=None)

MODELS: Mapping[str, Mapping[str, Any]] = {
    **{f"Qwen/Qwen2.5-{size}-Instruct": config for size, config in _QWEN25.items()},
    **{
        f"Qwen/Qwen2.5-{size}": {**config, "max_position_embeddings": 131072} if size in _QWEN25_LONG_BASES else config
        for size, config in _QWEN25.items()
    },
    **{f"Qwen/Qwen2.5-Coder-{size}-Instruct": _QWEN25[size] for size in ("0.5B", "1.5B", "3B", "7B", "14B", "32B")},
    **{f"Qwen/Qwen3-{size}": config for size, config in _QWEN3.items()},
    **{
        f"Qwen/Qwen3-{size}-Base": {**config, "max_position_embeddings": 32768}
        for size, config in _QWEN3.items()
        if size != "32B"  # has no base repository
    },
    "Qwen/Qwen3-4B-Instruct-2507": {**_QWEN3["4B"], "max_position_embeddings": 262144},
    "Qwen/Qwen3-4B-Thinking-2507": {**_QWEN3["4B"], "max_position_embeddings": 262144},
    **{f"meta-llama/Meta-Llama-3-{size}": config for size, config in _LLAMA3.items()},
    **{f"meta-llama/Meta-Llama-3-{size}-Instruct": config for size, config in _LLAMA3.items()},
    "meta-llama/Llama-3.3-70B-Instruct": _LLAMA31["70B"],
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": {
        **_QWEN25["1.5B"],
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    },
    **{
        f"deepseek-ai/DeepSeek-R1-Distill-Qwen-{size}": {**_QWEN25[size], "max_position_embeddings": 131072}
        for size in ("7B", "14B", "32B")
    },
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": _LLAMA31["8B"],
    **{f"google/gemma-{size}": config for size, config in _GEMMA.items()},
    **{f"google/gemma-1.1-{size}-it": config for size, config in _GEMMA.items()},
    "google/gemma-3-270m": _GEMMA3["270m"],
    "google/gemma-3-270m-it": _GEMMA3["270m"],
    **{f"google/gemma-3-{size}-{kind}": _GEMMA3[size] for size in ("1b", "4b", "12b", "27b") for kind in ("it", "pt")},
    "microsoft/phi-4": _PHI4,
    "THUDM/GLM-4-9B-0414": _GLM4_9B,
    "HuggingFaceTB/SmolLM3-3B": _SMOLLM3,
    "HuggingFaceTB/SmolLM3-3B-Base": _SMOLLM3,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": _decoder("llama", 2048, 5632, 22, 32, 4, 32000, 2048),
    **{f"01-ai/Yi-1.5-{size}-Chat": config for size, config in _YI15.items()},
    **{f"01-ai/Yi-1.5-{size}": config for size, config in _YI15.items()},
    **{f"meta-llama/Llama-2-{size}-hf": config for size, config in _LLAMA2.items()},
    **{f"meta-llama/Llama-2-{size}-chat-hf": config for size, config in _LLAMA2.items()},
    **{f"Qwen/Qwen2-{size}-Instruct": _QWEN25[size] for size in ("0.5B", "1.5B", "7B", "72B")},
    "Qwen/Qwen2.5-Math-7B-Instruct": {**_QWEN25["7B"], "max_position_embeddings": 4096},
    "Qwen/QwQ-32B": {**_QWEN25["32B"], "max_position_embeddings": 40960},
    "NousResearch/Hermes-3-Llama-3.1-8B": _LLAMA31["8B"],
    "deepseek-ai/deepseek-coder-6.7b-instruct": _DEEPSEEK_CODER,
    "mistralai/Mistral-7B-v0.1": _MISTRAL_V01,
    "mistralai/Mistral-7B-Instruct-v0.1": _MISTRAL_V01,
    "HuggingFaceH4/zephyr-7b-beta": _MISTRAL_V01,
    "mistralai/Mistral-Small-24B-Instruct-2501": _MISTRAL_SMALL,
    "mistralai/Mistral-7B-Instruct-v0.2": _MISTRAL_V02,
    "mistralai/Mistral-Nemo-Instruct-2407": _MISTRAL_NEMO,
    **{f"meta-llama/Llama-3.1-{size}": config for size, config in _LLAMA31.items()},
    **{f"meta-llama/Llama-3.1-{size}-Instruct": config for size, config in _LLAMA31.items()},
    **{f"meta-llama/Llama-3.2-{size}": config for size, config in _LLAMA32.items()},
    **{f"meta-llama/Llama-3.2-{size}-Instruct": config for size, config in _LLAMA32.items()},
    "mistralai/Mistral-7B-v0.3": _MISTRAL_V03,
    "mistralai/Mistral-7B-Instruct-v0.3": _MISTRAL_V03,
    **{f"Qwen/Qwen3-{size}": config for size, config in _QWEN3_MOE.items()},
    **{
        f"Qwen/Qwen3-{size}-2507": {**_QWEN3_MOE[size.rsplit("-", 1)[0]], "max_position_embeddings": 262144}
        for size in ("30B-A3B-Instruct", "30B-A3B-Thinking", "235B-A22B-Instruct", "235B-A22B-Thinking")
    },
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": {**_QWEN3_MOE["30B-A3B"], "max_position_embeddings": 262144},
    "Qwen/Qwen1.5-MoE-A2.7B": _QWEN15_MOE,
    "Qwen/Qwen1.5-MoE-A2.7B-Chat": _QWEN15_MOE,
    **{f"mistralai/Mixtral-{size}": config for size, config in _MIXTRAL.items()},
    "mistralai/Mixtral-8x7B-Instruct-v0.1": _MIXTRAL["8x7B-v0.1"],
    "mistralai/Mixtral-8x22B-Instruct-v0.1": {**_MIXTRAL["8x22B-v0.1"], "vocab_size": 32768},
    **{f"Qwen/Qwen2-VL-{size}-Instruct": config for size, config in _QWEN2_VL.items()},
    **{f"Qwen/Qwen2.5-VL-{size}-Instruct": config for size, config in _QWEN25_VL.items()},
    **{f"Qwen/Qwen3-VL-{size}-Instruct": config for size, config in _QWEN3_VL.items()},
    **{f"HuggingFaceTB/SmolLM2-{size}": config for size, config in _SMOLLM2.items()},
    **{f"HuggingFaceTB/SmolLM2-{size}-Instruct": config for size, config in _SMOLLM2.items()},
}


def nearest_models(name: str, count: int = 3) -> tuple[str, ...]:
    """Ids of the catalog whose last part is most like that of ``name``, best first."""
    from difflib import get_close_matches  # only on the way to an error

    short = {known.rsplit("/", 1)[-1].lower(): known for known in MODELS}
    found = get_close_matches(name.rsplit("/", 1)[-1].lower(), list(short), n=count, cutoff=0.0)
    return tuple(short[match] for match in found)
