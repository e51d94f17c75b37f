"""The plan of GaLore: projected states, projections, the decomposition's moment, and what it does not go with."""

from __future__ import annotations

from typing import Any

import pytest

from core.optimizations import REGISTRY
from planner.account import Account
from planner.parts.galore import Projected, projected
from planner.search import recommend
from planner.types import Instant
from tests.planner.plans import (
    GIB,
    QWEN_7B,
    account_of,
    catalog_model,
    cluster_of,
    environment_of,
    issue_of,
    plan_of,
    run_config,
)

GALORE: dict[str, Any] = {"gradient_checkpointing": {}, "fused_loss": {}, "galore": {"rank": 128}}
D, F, KV, N, V = 3584, 18944, 512, 28, 152064


def bytes_of(result: Account, prefix: str, instant: Instant) -> int:
    return sum(s.bytes for s in result.combined.specs if s.key.startswith(prefix) and instant in s.instants)


@pytest.mark.parametrize(
    ("proj_type", "states", "projections"),
    [("std", 300, 40), ("reverse_std", 40, 300), ("right", 300, 40), ("left", 40, 300), ("full", 4, 340)],
)
def test_a_tall_matrix_by_each_kind(proj_type: str, states: int, projections: int) -> None:
    assert projected(150, 20, rank=2, proj_type=proj_type) == Projected(states=states, projections=projections)


def test_states_of_qwen_7b_are_those_of_the_longer_sides() -> None:
    result = account_of(GALORE)
    longer = 128 * N * (D + D + D + D + 3 * F)  # q, k, v, o; gate, up, down
    shorter = 128 * N * (D + KV + KV + D + 3 * D)
    rest = QWEN_7B.num_parameters - QWEN_7B.num_linear_parameters
    assert bytes_of(result, "optimizer.galore.states", "forward_loss") == 2 * 2 * longer
    assert bytes_of(result, "optimizer.galore.projections", "forward_loss") == 2 * shorter
    assert bytes_of(result, "optimizer.galore.rest", "forward_loss") == 2 * 2 * rest
    assert bytes_of(result, "optimizer.base", "forward_loss") == 0
    plain = account_of({k: v for k, v in GALORE.items() if k != "galore"})
    saved = bytes_of(plain, "optimizer", "forward_loss") - bytes_of(result, "optimizer", "forward_loss")
    assert saved > 22 * GIB  # of 28.4


def test_the_step_holds_a_decomposition_of_the_largest_gradient() -> None:
    spike = 4 * (2 * D * F + D * (D + F))
    assert bytes_of(account_of({**GALORE}, optim="adamw_torch_fused"), "step.galore", "optimizer_step") == spike
    unfused = 2 * 2 * V * D  # square root and quotient of the embeddings' states are more
    assert bytes_of(account_of(GALORE), "step.galore", "optimizer_step") == max(unfused, spike)


def test_layer_by_layer_no_gradients_accumulate() -> None:
    whole, layered = (
        plan_of(GALORE, update=update, max_grad_norm=0.0, optim="adamw_torch_fused", max_length=4096)
        for update in ("step", "layer")
    )
    saved = whole.worst_gpu.allocated.peak_bytes - layered.worst_gpu.allocated.peak_bytes
    assert saved > 8 * GIB
    assert "master_weights" not in issue_of(layered, "adamw-16-bit").fix  # GaLore refuses them


def test_decompositions_cost_time_in_proportion_to_how_often() -> None:
    def seconds(gap: int) -> float:
        return plan_of({**GALORE, "galore": {"rank": 128, "update_proj_gap": gap}}).seconds_per_step

    assert seconds(1) - seconds(200) == pytest.approx(seconds(1) - seconds(100), rel=0.02)
    assert 400 < seconds(1) < 900  # ten minutes for 7B, as its authors say


def test_matrices_below_the_rank_are_left_alone() -> None:
    result = account_of({**GALORE, "galore": {"rank": 600}})  # k and v have 512 outputs
    rest = QWEN_7B.num_parameters - QWEN_7B.num_linear_parameters + 2 * N * KV * D
    assert bytes_of(result, "optimizer.galore.rest", "forward_loss") == 2 * 2 * rest


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, str, tuple[tuple[str, Any], ...]]] = [
    ({"lora": {"rank": 16}}, {}, "galore-adapters", "0.32 GB", (("galore", None),)),
    ({"qlora": {"rank": 16}}, {}, "galore-adapters", "30.5 GB", (("galore", None),)),
    ({}, {"optim": "adamw_8bit"}, "galore-optim", "small", (("optim", "adamw_torch_fused"),)),
    ({}, {"master_weights": "fp32"}, "galore-master-weights", "small", (("master_weights", "none"),)),
    ({"galore": {"rank": 3584}}, {}, "galore-rank", "3584", (("galore", 128),)),
    ({}, {"update": "layer", "gradient_accumulation_steps": 2, "max_grad_norm": 0.0}, "update-layer-accumulation",
     "14.19 GiB", (("gradient_accumulation_steps", 1),)),
]  # fmt: skip


@pytest.mark.parametrize(("optimizations", "values", "code", "arithmetic", "suggestion"), REFUSED)
def test_it_is_refused_with_arithmetic_and_the_smallest_change(
    optimizations: dict[str, Any], values: dict[str, Any], code: str, arithmetic: str,
    suggestion: tuple[tuple[str, Any], ...],
) -> None:  # fmt: skip
    plan = plan_of({**GALORE, **optimizations}, **values)
    issue = issue_of(plan, code)
    assert issue.severity == "error"
    assert arithmetic in issue.why
    assert issue.suggestion == suggestion


def test_what_fits_only_with_updates_within_the_backward_is_recommended_with_them() -> None:
    """Mistral-7B by GaLore: 24 GB hold one layer's gradients, not all of them."""
    values: dict[str, Any] = {"gradient_accumulation_steps": 4, "max_length": 8192}
    chosen = {"galore": {"rank": 128}, "gradient_checkpointing": {}, "fused_loss": {}}
    config = run_config(chosen, **values)
    found = recommend(
        config=config, model=catalog_model("mistralai/Mistral-7B-v0.3"), cluster=cluster_of("RTX-4090"),
        environment=environment_of(cluster_of("RTX-4090")), registry=REGISTRY,
    )  # fmt: skip
    assert found[0].verdict != "over"
    changes = dict(found[0].changes)
    assert {key: changes[key] for key in ("update", "max_grad_norm", "gradient_accumulation_steps")} == {
        "update": "layer", "max_grad_norm": 0.0, "gradient_accumulation_steps": 1,
    }  # fmt: skip
    assert "which can neither clip nor accumulate" in found[0].why
    roomy = recommend(
        config=config, model=catalog_model("mistralai/Mistral-7B-v0.3"), cluster=cluster_of("H200"),
        environment=environment_of(cluster_of("H200")), registry=REGISTRY,
    )  # fmt: skip
    assert all("update" not in dict(alternative.changes) for alternative in roomy)
