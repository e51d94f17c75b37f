"""Tensors of a mixture of experts against what the modeling code of the installed transformers allocates: tiny models
above static bytes, real ones in dry runs."""

from __future__ import annotations

from typing import Any

import pytest

from app.services.hardware import parse_cluster
from app.services.resolve import resolve
from app.services.verify import Case, compare
from core.verify.dry_run import depth_peaks, dry_run
from planner.catalog.models import MODELS
from planner.types import Preset
from tests.core.verify.test_dry_run import real_allocations
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
    "with a shared expert": {
        "model_type": "qwen2_moe", "intermediate_size": 384, "moe_intermediate_size": 96, "num_experts_per_tok": 4,
        "shared_expert_intermediate_size": 384, **SHARED,
    },
}  # fmt: skip
TOLERANCE = 0.065  # the weight gradients of grouped products hold a little more than planned
LEAN: dict[str, Any] = {"gradient_checkpointing": True, "fused_loss": True}
BF16: dict[str, Any] = {"lora": {"rank": 64, "adapter_dtype": "bfloat16"}}
FP32: dict[str, Any] = {"lora": {"rank": 64, "adapter_dtype": "float32"}, "autocast": True}
MODEL_NAMES = (
    "Qwen/Qwen3-30B-A3B",
    *(pytest.param(name, marks=pytest.mark.soak) for name in ("Qwen/Qwen1.5-MoE-A2.7B", "mistralai/Mixtral-8x7B-v0.1")),
)
RUNS: dict[str, dict[str, Any]] = {
    "bf16 adapters, checkpointing": {**BF16, **LEAN, "max_length": 8192},
    "bf16 adapters, attention kept": {
        **BF16, **LEAN, "gradient_checkpointing": {"save_attention": True}, "max_length": 8192,
    },
    "bf16 adapters, nothing recomputed": {**BF16, "fused_loss": True, "max_length": 2048},
    "fp32 adapters with autocast, checkpointing": {**FP32, **LEAN, "max_length": 8192},
    "qlora, checkpointing": {**LEAN, "qlora": {"rank": 64}, "max_length": 8192},
    "fp32 adapters with autocast, nothing recomputed, Liger": {
        **FP32, "fused_loss": True, "liger": {"swiglu": False}, "max_length": 2048,
    },
    "bf16 adapters, head groups, Liger": {
        **BF16, **LEAN, "gradient_checkpointing": {"save_attention": True}, "fake_parallel": {"groups": 4},
        "liger": {"swiglu": False}, "max_length": 8192,
    },
}  # fmt: skip


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


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_plan_of_adapters_holds_what_a_dry_run_holds(name: str, run: str) -> None:
    values = {"model": name, "engine": "module", "data": {"train": ["random"]}, **RUNS[run]}
    resolved = resolve(Preset(name=run, description="", values=values), cluster=parse_cluster("H200"))
    told = compare(Case(title=run, resolved=resolved), dry_run(resolved.config, MODELS[name]).by_instant)
    assert told.peak.planned_bytes == pytest.approx(told.peak.dry_run_bytes, rel=0.003)
    assert not told.off


@pytest.mark.parametrize("shape", SHAPES)
def test_a_dry_run_of_experts_holds_what_real_tensors_hold(shape: str) -> None:
    """Byte by byte: routes decide values and no size."""
    optimizations = {
        "lora": {"rank": 8, "adapter_dtype": "bfloat16"},
        "gradient_checkpointing": {"save_attention": True},
    }
    config = run_config(optimizations, max_length=256)
    dry, real = depth_peaks(config, SHAPES[shape]), depth_peaks(config, SHAPES[shape], real_allocations)
    assert {phase: dry[phase] - real[phase] for phase in dry} == dict.fromkeys(dry, 0)
