"""States, gradients and temporaries of each way to update, against numbers derived by hand, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from planner.account import Account
from planner.parts.optimizer import BUCKET_BYTES
from planner.parts.tensors import model_groups
from planner.types import INSTANTS, Instant, ParallelDegrees
from tests.planner.plans import (
    GIB,
    QWEN_7B,
    SMOLLM2,
    account_of,
    catalog_model,
    cluster_of,
    codes,
    cpu_cluster,
    environment_of,
    issue_of,
    plan_of,
)  # fmt: skip

W = QWEN_7B.num_parameters
FULL: dict[str, Any] = {"gradient_checkpointing": {}}
HIDDEN = 2 * 3584 * 8192  # the gradient of the embeddings' output, while theirs is formed
LAYER = 3584 * (3584 + 512 + 512 + 3584 + 3 * 18944)  # Qwen2.5-7B: q, k, v, o; gate, up, down


def bytes_of(result: Account, prefix: str, instant: Instant) -> int:
    return sum(spec.bytes for spec in result.combined.specs if spec.key.startswith(prefix) and instant in spec.instants)


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-4B", "HuggingFaceTB/SmolLM2-135M-Instruct"])
def test_groups_of_tensors_are_the_model(name: str) -> None:
    model = catalog_model(name)
    groups = model_groups(model)
    assert sum(group.elements * group.count for group in groups) == model.num_parameters
    assert max(group.elements for group in groups) == model.vocab_size * model.hidden_size


def test_full_training_of_qwen_7b_at_8k_is_that_of_the_dry_run() -> None:
    """notes of the design: foreach AdamW and stock loss 70.9 GiB, in the optimizer step; weights 14.19."""
    plan = plan_of(FULL, optim="adamw_torch")
    at_step = plan.worst_gpu.allocated.bytes_at("optimizer_step") / GIB
    assert plan.peak_instant == "optimizer_step"
    assert at_step == pytest.approx(70.94 + 64 / 1024, abs=0.05)  # and cuBLAS workspaces
    assert bytes_of(account_of(FULL, optim="adamw_torch_fused"), "step", "optimizer_step") == HIDDEN


def test_8_bit_states_are_two_bytes_and_a_scale_of_each_block() -> None:
    d, kv, n = 3584, 512, 28
    vectors = (2 * n + 1) * d + n * (d + 2 * kv)  # norms and biases of q, k, v: below 4,096 elements
    result = account_of(FULL, optim="adamw_8bit")
    blocks = 2 * 152064 * d // 256 + n * LAYER // 256
    assert bytes_of(result, "optimizer.base", "forward_loss") == 2 * (W - vectors) + 2 * 4 * blocks + 8 * vectors
    assert bytes_of(result, "step", "optimizer_step") == HIDDEN


def test_paged_states_are_on_the_gpu_only_while_they_are_updated() -> None:
    resident, paged = (account_of(FULL, optim=optim) for optim in ("adamw_8bit", "paged_adamw_8bit"))
    assert bytes_of(paged, "optimizer.base", "optimizer_step") == bytes_of(resident, "optimizer.base", "optimizer_step")
    moved = bytes_of(resident, "optimizer.base", "backward_end") - bytes_of(paged, "optimizer.base", "backward_end")
    vectors = (2 * 28 + 1) * 3584 + 28 * (3584 + 2 * 512)
    assert moved == 2 * (W - vectors)  # every matrix has more than 100,000 elements
    assert {w.key: w.amount for w in paged.combined.work}["update.base.pages"] == 2 * moved
    hosts = [plan_of(FULL, optim=optim).host_bytes for optim in ("adamw_8bit", "paged_adamw_8bit")]
    assert hosts[1] - hosts[0] == moved


@pytest.mark.parametrize(("kind", "state_bytes", "wide_copies"), [("fp32", 12, 3), ("stochastic", 8, 4)])
def test_master_weights_cost_their_states(kind: str, state_bytes: int, wide_copies: int) -> None:
    result = account_of(FULL, master_weights=kind)
    assert bytes_of(result, "optimizer.base", "forward_loss") == state_bytes * W
    assert bytes_of(result, "step", "optimizer_step") == wide_copies * 4 * 152064 * 3584  # the embeddings, in float32
    fused = account_of(FULL, master_weights=kind, optim="adamw_torch_fused")
    assert bytes_of(fused, "step", "optimizer_step") == (wide_copies - 2) * 4 * 152064 * 3584
    assert "adamw-16-bit" in codes(plan_of(FULL))
    assert "adamw-16-bit" not in codes(plan_of(FULL, master_weights=kind))


def test_an_update_in_the_backward_holds_the_gradients_of_one_layer() -> None:
    values = {"max_grad_norm": 0.0, "optim": "adamw_torch_fused"}
    step, layer = (account_of(FULL, update=update, **values) for update in ("step", "layer"))
    upper = 3584 * (3584 + 3 * 18944)  # o; gate, up, down
    assert bytes_of(layer, "gradients", "attention_backward") == 2 * upper
    assert bytes_of(layer, "gradients", "backward_end") == 2 * 3584 * 18944  # down_proj's, under the widest activations
    assert bytes_of(layer, "gradients", "optimizer_step") == 2 * 152064 * 3584  # the embeddings, last
    assert bytes_of(step, "gradients", "optimizer_step") == 2 * W
    gradients = 2 * SMOLLM2.vocab_size * SMOLLM2.hidden_size
    tied = account_of(FULL, model=SMOLLM2, update="layer", **values)
    assert bytes_of(tied, "gradients", "backward_end") > gradients  # the tied head's wait for the embeddings'
    speeds = [plan_of(FULL, update=update, **values).seconds_per_step for update in ("step", "layer")]
    assert speeds[1] == pytest.approx(speeds[0], rel=0.01)


@pytest.mark.parametrize("world", [1, 2])
def test_the_sum_over_ranks_holds_one_bucket_in_float32(world: int) -> None:
    values = {"optim": "adamw_torch_fused", "parallel": ParallelDegrees(data=world)}
    wanted = 0 if world == 1 else 2 * BUCKET_BYTES  # bf16 gradients: cast, and laid end to end
    assert bytes_of(account_of(FULL, **values), "step", "optimizer_step") == max(wanted, HIDDEN)
    float32 = account_of({"lora": {"rank": 64}, **FULL}, **values)
    assert bytes_of(float32, "step", "optimizer_step") == wanted // 2


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, str, tuple[tuple[str, Any], ...]]] = [
    ({}, {"update": "layer", "gradient_accumulation_steps": 4}, "update-layer-accumulation", "14.19 GiB",
     (("gradient_accumulation_steps", 1),)),
    ({}, {"update": "layer"}, "update-layer-clipping", "0.43 GiB", (("max_grad_norm", 0.0),)),
    ({}, {"update": "layer", "dtype": "float16"}, "update-layer-float16", "overflow", (("dtype", "bfloat16"),)),
    ({"lora": {}}, {"update": "layer"}, "update-layer-adapters", "small", (("update", "step"),)),
    ({}, {"master_weights": "fp32", "optim": "adamw_8bit"}, "master-weights-8bit", "16-bit parameters",
     (("master_weights", "none"),)),
    ({"lora": {}}, {"master_weights": "stochastic"}, "master-weights-float32", "float32",
     (("master_weights", "none"),)),
    ({}, {"master_weights": "stochastic", "dtype": "float16"}, "master-weights-float16", "bfloat16",
     (("master_weights", "fp32"),)),
]  # fmt: skip


@pytest.mark.parametrize(("optimizations", "values", "code", "arithmetic", "suggestion"), REFUSED)
def test_contradictions_are_refused_with_arithmetic_and_the_smallest_change(
    optimizations: dict[str, Any], values: dict[str, Any], code: str, arithmetic: str,
    suggestion: tuple[tuple[str, Any], ...],
) -> None:  # fmt: skip
    issue = issue_of(plan_of(optimizations, **values), code)
    assert issue.severity == "error"
    assert arithmetic in issue.why
    assert issue.suggestion == suggestion
    assert code not in codes(plan_of(optimizations, **{**values, **dict(suggestion)}))


def test_paged_states_need_a_gpu_and_8_bit_ones_a_package() -> None:
    cpu = cpu_cluster()
    assert "optim-paged-cpu" in codes(plan_of({}, cluster=cpu, dtype="float32", optim="paged_adamw_8bit"))
    here = cluster_of(source="detected")
    bare = environment_of(here, packages=("torch",), source="detected")
    assert "package-bitsandbytes" in codes(plan_of({}, optim="adamw_8bit", cluster=here, environment=bare))
    assert "package-bitsandbytes" not in codes(plan_of({}, optim="adamw_8bit"))


def test_every_instant_is_lower_layer_by_layer() -> None:
    values = {"max_grad_norm": 0.0, "optim": "adamw_torch_fused"}
    chosen = {**FULL, "fused_loss": {}}
    step, layer = (account_of(chosen, update=u, **values).combined.bytes_by_instant() for u in ("step", "layer"))
    assert all(layer[i] <= step[i] or i in ("layer_backward", "attention_backward") for i in INSTANTS)
    assert max(layer.values()) < max(step.values()) - 8 * GIB
