"""Families whose q, k, v or gate, up come from one linear: planned bytes against what torch allocates, tiny models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.planner.engine_bytes import step_peaks
from tests.planner.plans import run_config
from tests.planner.test_against_engine import METHODS, POLICIES, SHAPES, TILED, TOKENS, assert_close, planned_peaks

FUSED: dict[str, dict[str, Any]] = {
    "grouped heads": {
        "model_type": "phi3", "hidden_size": 128, "intermediate_size": 640, "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000, "pad_token_id": 0,
        "partial_rotary_factor": 0.75, "tie_word_embeddings": True,
    },
    "as many KV heads": {
        "model_type": "phi3", "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 6, "vocab_size": 1000, "pad_token_id": 0,
    },
    "normed outputs": {
        "model_type": "glm4", "hidden_size": 128, "intermediate_size": 640, "num_hidden_layers": 3, "head_dim": 32,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "pad_token_id": 0, "eos_token_id": 1,
        "attention_bias": True,
    },
    "normed outputs, a narrow MLP": {
        "model_type": "glm4", "hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 3, "head_dim": 32,
        "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 1000, "pad_token_id": 0, "eos_token_id": 1,
        "attention_bias": False, "tie_word_embeddings": True,
    },
    "pairs": {
        "model_type": "glm", "hidden_size": 128, "intermediate_size": 640, "num_hidden_layers": 3, "head_dim": 32,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "pad_token_id": 0, "eos_token_id": 1,
    },
}  # fmt: skip
WITHOUT_GROUPS = [name for name, chosen in POLICIES.items() if "fake_parallel" not in chosen]
SHORT = ("nothing", "both")
CASES = [
    *((shape, policy) for shape in ("grouped heads", "normed outputs") for policy in WITHOUT_GROUPS),
    *((shape, policy) for shape in ("as many KV heads", "normed outputs, a narrow MLP", "pairs") for policy in SHORT),
]


@pytest.fixture(autouse=True)
def shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, shape in FUSED.items():
        monkeypatch.setitem(SHAPES, name, shape)


def compared(shape: str, **values: Any) -> tuple[dict[str, int], dict[str, int]]:
    values = {"max_length": TOKENS, **values}
    return step_peaks(FUSED[shape], run_config(**values), as_cuda=True), planned_peaks(shape, True, **values)


@pytest.mark.parametrize(("shape", "policy"), CASES)
@pytest.mark.parametrize("method", METHODS)
def test_a_gpu_step_in_bf16(shape: str, method: str, policy: str) -> None:
    optimizations, autocast = METHODS[method]
    measured, planned = compared(shape, optimizations={**optimizations, **POLICIES[policy]}, autocast=autocast)
    if method == "full":  # the head's gradient of a chunk is made in 16 bit first on a CPU, which no plan for a GPU has
        measured = {**measured, "forward": planned["forward"]}
    assert_close(measured, planned)


@pytest.mark.parametrize("policy", TILED)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", ["grouped heads", "normed outputs"])
def test_the_fullest_moment_with_the_mlp_by_tiles(shape: str, method: str, policy: str) -> None:
    optimizations, autocast = METHODS[method]
    measured, planned = compared(shape, optimizations={**optimizations, **TILED[policy]}, autocast=autocast)
    assert planned["backward"] == pytest.approx(measured["backward"], rel=0.03)


@pytest.mark.parametrize("targets", ["qkv_proj", "o_proj,down_proj", "gate_up_proj"])
@pytest.mark.parametrize("method", ["16-bit adapters", "fp32 adapters, autocast", "fp32 adapters"])
def test_adapters_on_some_linears(method: str, targets: str) -> None:
    optimizations, autocast = METHODS[method]
    lora = {**optimizations["lora"], "targets": targets}
    chosen = {"lora": lora, **POLICIES["both"]}
    measured, planned = compared("grouped heads", optimizations=chosen, autocast=autocast)
    assert planned["backward"] == pytest.approx(measured["backward"], rel=0.03)


@pytest.mark.parametrize("policy", ["nothing", "fused loss", "both"])
@pytest.mark.parametrize("method", ["16-bit adapters", "fp32 adapters, autocast", "fp32 adapters"])
@pytest.mark.parametrize("shape", ["grouped heads", "normed outputs"])
def test_dropout_keeps_masks_and_dropped_copies(
    shape: str, method: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(nn.Dropout, "forward", _with_a_mask_of_bytes)
    optimizations, autocast = METHODS[method]
    chosen = {"lora": {**optimizations["lora"], "dropout": 0.1}, **POLICIES[policy]}
    measured, planned = compared(shape, optimizations=chosen, autocast=autocast)
    assert planned["forward"] == pytest.approx(measured["forward"], rel=0.02)
    assert planned["backward"] == pytest.approx(measured["backward"], rel=0.01)


def _with_a_mask_of_bytes(self: nn.Dropout, x: torch.Tensor) -> torch.Tensor:
    """As on a GPU, where nothing happens at p 0."""
    return torch.native_dropout(x, self.p, self.training)[0] if self.p > 0 else x
