"""The plan of fsdp against what a rank really allocates, on tiny shapes: to a percent or two of what is above static.

A long row, where what a layer makes and keeps decides, and a short one, where gathered weights and gradients do.
"""

from __future__ import annotations

from typing import Any

import pytest

from planner.model_spec import model_spec_from_config
from planner.types import ParallelDegrees
from tests.distributed.sharded_bytes import rank_peaks
from tests.planner.plans import account_of, cluster_of, run_config
from tests.planner.test_against_engine import PHASES, SHAPES

LEAN: dict[str, Any] = {"gradient_checkpointing": {}, "fused_loss": {"chunk_tokens": 64}}
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "full, lean": LEAN,
    "16-bit adapters": {**LEAN, "lora": {"rank": 16, "adapter_dtype": "bfloat16"}},
    "fp32 adapters": {**LEAN, "lora": {"rank": 16}},
}
# untied and tied; without a chunked loss's gradient of the head, which a CPU forms otherwise (test_against_engine.py)
CASES = [
    ("qwen2", 512, "full", 0.01), ("qwen2", 512, "full, lean", 0.01), ("qwen2", 512, "fp32 adapters", 0.01),
    ("llama", 512, "full, lean", 0.01), ("llama", 512, "16-bit adapters", 0.02), ("qwen3", 32, "full", 0.01),
    ("llama", 32, "full, lean", 0.02), ("qwen2", 32, "16-bit adapters", 0.02),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "tokens", "method", "tolerance"), CASES)
def test_a_rank_allocates_what_is_planned(
    run_ranks: Any, shape: str, tokens: int, method: str, tolerance: float
) -> None:
    values: dict[str, Any] = {
        "optimizations": {**METHODS[method], "fsdp": {}}, "max_length": tokens, "optim": "adamw_torch_fused",
        "parallel": ParallelDegrees(data=2),
    }  # fmt: skip
    measured, _ = run_ranks(rank_peaks, 2, SHAPES[shape], run_config(**values))
    planned = planned_peaks(shape, values)
    # the planner's step begins with the embeddings' gradient, which is the end of the backward
    for peaks in (measured, planned):
        peaks["backward"] = max(peaks["backward"], peaks.pop("optimizer_step"))
    assert planned["backward"] == pytest.approx(measured["backward"], rel=tolerance)
    assert planned["evaluation"] == pytest.approx(measured["evaluation"], rel=0.03)
    if "fused_loss" not in METHODS[method] or "lora" in METHODS[method]:
        assert planned["forward"] == pytest.approx(measured["forward"], rel=0.05)


def planned_peaks(shape: str, values: dict[str, Any]) -> dict[str, int]:
    model = model_spec_from_config(shape, SHAPES[shape])
    combined = account_of(model=model, cluster=cluster_of("A100-80G", 2), **values).combined
    static = sum(s.bytes for s in combined.specs if s.key.startswith(("weights", "optimizer")) or s.part == "runtime")
    by_instant = combined.bytes_by_instant()
    return {phase: max(by_instant[instant] for instant in instants) - static for phase, instants in PHASES.items()}
