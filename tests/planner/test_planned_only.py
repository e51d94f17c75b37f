"""What is planned before it can be trained is named in plans and left out of the search."""

from __future__ import annotations

from typing import Any

import pytest

from core.optimizations import REGISTRY
from planner.search import recommend
from planner.types import ParallelDegrees
from tests.planner.plans import QWEN_7B, cluster_of, environment_of, issue_of, plan_of, run_config

LEAN: dict[str, Any] = {
    "lora": {"rank": 64, "adapter_dtype": "bfloat16"}, "fused_loss": {}, "gradient_checkpointing": {}
}  # fmt: skip


@pytest.mark.parametrize("name", ["weight_streaming", "fsdp"])
def test_plans_name_them_and_the_search_does_not(name: str) -> None:
    values: dict[str, Any] = {"parallel": ParallelDegrees(data=2)}
    plan = plan_of({**LEAN, name: {}}, **values)
    assert issue_of(plan, "planned-only").what.startswith(name)
    cluster = cluster_of("A10", 2)
    found = recommend(
        config=run_config(LEAN, **values), model=QWEN_7B, cluster=cluster, environment=environment_of(cluster),
        registry=REGISTRY, limit=200,
    )  # fmt: skip
    assert all(name not in {s.name for s in alternative.optimizations} for alternative in found)
