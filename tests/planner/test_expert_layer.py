"""Tensors of a mixture of experts against what the modeling code of the installed transformers allocates."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planner import test_against_engine as engine
from tests.planner.engine_bytes import step_peaks
from tests.planner.plans import run_config

SHARED: dict[str, Any] = {
    "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000,
    "tie_word_embeddings": False, "num_experts": 8,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "narrow": {
        "model_type": "qwen3_moe", "head_dim": 16, "intermediate_size": 384, "moe_intermediate_size": 96,
        "num_experts_per_tok": 4, **SHARED,
    },
    "wide": {
        "model_type": "mixtral", "intermediate_size": 512, "num_experts_per_tok": 2, "num_local_experts": 8, **SHARED,
    },
}  # fmt: skip
TOLERANCE = 0.06  # the weight gradients of grouped products hold a little more than planned


@pytest.mark.parametrize("policy", ["both", "fused loss"])
@pytest.mark.parametrize("method", ["full", "16-bit adapters", "fp32 adapters, autocast"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_gpu_step_in_bf16(shape: str, method: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engine.SHAPES, shape, SHAPES[shape])
    optimizations, autocast = engine.METHODS[method]
    optimizations = {**optimizations, **engine.POLICIES[policy]}
    values: dict[str, Any] = {"optimizations": optimizations, "autocast": autocast, "max_length": engine.TOKENS}
    measured = step_peaks(SHAPES[shape], run_config(**values), as_cuda=True)
    planned = engine.planned_peaks(shape, True, **values)
    for phase in ("forward", "backward", "evaluation"):
        assert planned[phase] == pytest.approx(measured[phase], rel=TOLERANCE), phase
